"""Arms and their references: trained side by side, measured when the references are there."""

from __future__ import annotations

import pickle
import shutil

import pytest
from shop_logs import write_shop

from localpolicy.errors import RunError, TrainingError
from localpolicy.measure.estimate import Estimate, mean_of_estimates
from localpolicy.runs.config import Config
from localpolicy.study import arms, measured
from localpolicy.study.arms import Arm, Group, Study
from localpolicy.training import jobs
from localpolicy.training.train import training


def arm(name, objective="mle", **train):
    settings = {"epochs": 1, "batch_size": 16, "device": "cpu", "select": "click.nDCG@20", **train}
    return Arm(name, Config.parse({"model": {"width": 4}, "objective": {"name": objective}, "train": settings}))


REFERENCES = [arm("mle-101", seed=101, epochs=4), arm("mle-102", seed=102, epochs=4)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return write_shop(tmp_path_factory.mktemp("shop") / "data")


@pytest.fixture
def order(monkeypatch):
    """What ended when: trainings, and evaluations of a split."""
    ends, evaluated = [], measured.measure

    def noted(data, run, config, **how):
        if not run.finished:
            training(data, run, config, **how)
            ends.append(f"train {run.folder.name}")
        return run

    def noted_measure(candidate, *given, config, **options):
        ends.append(f"{config.split} {candidate.name}")
        return evaluated(candidate, *given, config=config, **options)

    monkeypatch.setattr(jobs, "training", noted)
    monkeypatch.setattr(measured, "measure", noted_measure)
    return ends


def last_first(work, tasks, **options):
    """What several processes may do: the last of the tasks ends first."""
    while tasks:
        task = tasks.pop()
        yield task, work(task)


def test_an_arm_that_is_trained_first_waits_for_its_references(shop, tmp_path, order, monkeypatch):
    monkeypatch.setattr(arms, "in_processes", last_first)
    study = Study(shop, tmp_path / "out", references=REFERENCES)
    known = study.measure([*REFERENCES, arm("quick", "reward_weighted")])
    assert order[0] == "train quick"
    assert order.count("train quick") == 1, "it is held, not trained again"
    assert order.index("validation quick") > max(order.index(f"train {each.name}") for each in REFERENCES)
    assert list(known) == ["mle-101", "mle-102", "quick"] and study.stopped == []
    assert [each["seed"] for each in known["quick"].record["against"]] == [101, 102]
    assert [each["seed"] for each in known["mle-101"].record["against"]] == [102]
    before = list(order)
    assert study.floor()["test"].mean == pytest.approx(known["mle-101"].estimate("JS", "test").mean)
    assert study.measure([arm("quick", "reward_weighted")]).keys() == {"quick"}
    assert order == before, "nothing is done twice"


def test_references_are_trained_where_only_an_arm_is_asked_for(shop, tmp_path, order):
    study = Study(shop, tmp_path / "out", references=REFERENCES, processes=1)
    assert study.measure([arm("alone", "reward_weighted")]).keys() == {"alone"}
    assert order == ["train mle-101", "train mle-102", "train alone", "validation alone", "test alone"]


def test_arms_that_follow_are_begun_once_they_are_known(shop, tmp_path, order):
    first, second, third = arm("first", seed=0), arm("second", seed=1), arm("third", seed=2)
    study = Study(shop, tmp_path / "out", processes=1)

    def then(known):
        asked.append(set(known))
        return [second, *([third] if "second" in known else [])] if "first" in known else []

    asked = []
    assert list(study.measure([first], then=then)) == ["first", "second", "third"]
    assert [end for end in order if end.startswith("train")] == ["train first", "train second", "train third"]
    assert set() in asked, "it is asked before anything is known"
    order.clear()
    assert list(study.measure([first], then=then)) == ["first", "second", "third"]
    assert order == [], "all were done before"


def test_a_reference_that_cannot_be_trained_is_an_error(shop, tmp_path):
    wild = arm("mle-102", seed=102, learning_rate=1e36)
    study = Study(shop, tmp_path / "out", references=[REFERENCES[0], wild], processes=1)
    with pytest.raises(TrainingError, match="mle-102, a reference, could not be trained"):
        study.measure([arm("quick", "reward_weighted")])


def test_a_reference_whose_run_is_another_by_now_is_refused(shop, tmp_path):
    """Its figures are those of old, but what is measured from here on would be taken from something else."""
    study = Study(shop, tmp_path / "out", references=REFERENCES, processes=1)
    study.measure(REFERENCES)
    other = arm("mle-101", seed=101, epochs=1)
    Study(shop, tmp_path / "other", processes=1).measure([other])
    shutil.rmtree(tmp_path / "out" / "runs" / "mle-101")
    shutil.copytree(tmp_path / "other" / "runs" / "mle-101", tmp_path / "out" / "runs" / "mle-101")
    with pytest.raises(RunError, match=r"mle-101 was trained with another train\.epochs \(1, now 4\)"):
        study.measure([arm("quick", "reward_weighted")])


def test_what_is_excluded_is_measured_again(shop, tmp_path, order):
    """And trained but once; the same question is not asked twice."""
    for exclude_seen, asked in ((False, ["validation one", "test one"]), (True, ["validation one", "test one"])):
        order.clear()
        for _ in range(2):
            study = Study(shop, tmp_path / "out", processes=1, exclude_seen=exclude_seen)
            (known,) = study.measure([arm("one")]).values()
        assert [end for end in order if "train" not in end] == asked
        assert known.record["test"]["settings"]["exclude_seen"] is exclude_seen


def test_a_process_is_sent_the_study_without_its_data(shop, tmp_path):
    """A study opens the data set by its folder."""
    sent = pickle.dumps(Study(shop, tmp_path / "out"))
    assert len(sent) < min(file.stat().st_size for file in shop.path.glob("train/item.npy"))
    (towers := tmp_path / "towers").mkdir()
    assert pickle.loads(sent).work(Group([arm("one")], towers)) == [("measured", "")]
    assert not towers.exists(), "what its arms shared goes with the last of them"
    assert Study(shop, tmp_path / "out").measure([arm("one")]).keys() == {"one"}


def test_figures_of_a_gpu_are_known_where_there_is_none(shop, tmp_path, order):
    """There sums over the catalogue come from other kernels, and steps are captured."""
    study = Study(shop, tmp_path / "out", references=REFERENCES, processes=1)
    study.measure([*REFERENCES, arm("quick", "reward_weighted")])
    there = {"catalogue": "dense", "capture": False}
    references = [arm("mle-101", seed=101, epochs=4, **there), arm("mle-102", seed=102, epochs=4, **there)]
    order.clear()
    again = Study(shop, tmp_path / "out", references=references, processes=1)
    assert again.measure([arm("quick", "reward_weighted", **there)]).keys() == {"quick"}
    assert again.floor() is not None
    assert order == []


def test_seeds_share_positions_so_their_mean_has_the_largest_error():
    over = mean_of_estimates([Estimate(0.1, 0.02, 50, 0.03), Estimate(0.4, 0.01, 50, 0.05)])
    assert over == Estimate((0.1 + 0.4) / 2, 0.02, 50, 0.05)
