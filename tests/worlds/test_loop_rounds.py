"""The loop: what is served, what is trained on it, what is measured; and continuing after a kill."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from page_tree import cells, parse

from localpolicy.cli.main import main
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, RunError, TrainingError
from localpolicy.measure.evaluation import SCHEMA
from localpolicy.measure.truth import PolicyAgent
from localpolicy.report.contents import Interval
from localpolicy.runs.run import Run
from localpolicy.study.measured import over_seeds
from localpolicy.training.train import train
from localpolicy.training.trainer import Trainer
from localpolicy.worlds import loop as loop_module
from localpolicy.worlds.loop import world_of
from localpolicy.worlds.loop_page import loop_contents, loop_verdict, tables_of, write_loop
from localpolicy.worlds.scenarios import loop_config, policies_of
from localpolicy.worlds.trajectory import Loop, Trajectory

TINY = {"changes": ("train.epochs=1", "model.width=8"), "episodes": 40}
WORLDS = {
    "bandit": {
        "sequences": 300,
        "items": 12,
        "dials": ("contexts=15",),
        "objectives": ("mle", "lpi_cb_weighted"),
        "betas": (0.3,),
        **TINY,
    },
    "store": {
        "sequences": 80,
        "items": 20,
        "dials": ("categories=4", "mean_length=6"),
        "objectives": ("lpi_rl_weighted",),
        "betas": (0.1,),
        **TINY,
    },
}


@pytest.fixture(autouse=True, scope="module")
def small_pages():
    """Few contexts and no charting library: what is tested here needs neither."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localpolicy.worlds.loop.VISITS", 10)
        patch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
        yield


def tiny(world: str, **changes):
    return loop_config(world, **{**WORLDS[world], **changes})


def loop(config, *, out: Path, rounds: int, processes: int = 1) -> Loop:
    """In this process, by default: a new one would cost more than a round."""
    return loop_module.loop(config, out=out, rounds=rounds, processes=processes)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> dict[str, tuple[Path, Loop]]:
    """Two rounds in each world."""
    found = {}
    for world in WORLDS:
        out = tmp_path_factory.mktemp(world)
        found[world] = out, loop(tiny(world), out=out, rounds=2)
    return found


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """JS as it is defined: the mean KL from the middle."""
    middle = (p + q) / 2
    return ((p * np.log(p / middle)).sum(1) + (q * np.log(q / middle)).sum(1)) / 2


def test_figures_of_the_bandit_are_the_exact_sums(done):
    out, result = done["bandit"]
    world = result.world
    shares = [world.logging]
    for number, said in enumerate(result.rounds["lpi_cb_weighted β=0.3"][0], start=1):
        policy = Run(out / f"seed-0/lpi_cb_weighted-beta-0.3/round-{number:02d}/run").policy()
        shares.append(world.table(PolicyAgent(policy, world)))
        weight = world.context_probabilities
        assert said["truth"] == {"mean": pytest.approx(world.value(shares[-1])), "se": 0.0}
        assert said["gain"]["mean"] == pytest.approx(world.value(shares[-1]) - world.logging_value())
        assert said["step"] == {"mean": pytest.approx(world.value(shares[-1]) - world.value(shares[-2])), "se": 0.0}
        assert said["js_before"]["mean"] == pytest.approx(weight @ divergence(shares[-1], shares[-2]), rel=1e-5)
        assert said["js_first"]["mean"] == pytest.approx(weight @ divergence(shares[-1], shares[0]), rel=1e-5)
        entropy = -(shares[-1] * np.log(shares[-1])).sum(1)
        assert said["entropy"] == pytest.approx(weight @ entropy, rel=1e-5)
        assert said["coverage"] == len(set(shares[-1].argmax(1))) / world.n_items
    first = result.first[0]
    assert first["truth"]["mean"] == world.logging_value()
    assert first["js_first"]["mean"] == pytest.approx(0, abs=1e-12)


def test_figures_of_the_store_come_with_errors(done):
    _, result = done["store"]
    one, two = result.rounds["lpi_rl_weighted β=0.1"][0]
    assert one["js_before"] == one["js_first"], "the policy before the first round is μ"
    assert two["js_before"]["mean"] != two["js_first"]["mean"]
    for said in (one, two):
        assert said["truth"]["se"] > 0 and said["gain"]["se"] > 0 and said["js_first"]["se"] > 0
        assert 0 < said["js_first"]["mean"] < np.log(2)
        assert said["truth"]["mean"] - result.first[0]["truth"]["mean"] == pytest.approx(said["gain"]["mean"])
    assert one["step"] == one["gain"]
    assert two["truth"]["mean"] - one["truth"]["mean"] == pytest.approx(two["step"]["mean"])
    together = np.hypot(one["truth"]["se"], two["truth"]["se"])
    for row in (row for row in result.measurements if (row.round, row.figure) == (2, "step")):
        reach = 1.96 * two["step"]["se"]  # of each seed, and of all: there is one
        assert (row.mean, row.high - row.mean) == pytest.approx((two["step"]["mean"], reach), rel=1e-4)
        assert row.seed is None or row.se == two["step"]["se"]
    assert 0 < two["step"]["se"] < together, "the same shoppers and luck: what is chance in one is chance in both"


@pytest.mark.parametrize(
    ("world", "arm"),
    [("bandit", "lpi_cb_weighted-beta-0.3"), ("store", "lpi_rl_weighted-beta-0.1")],
)
def test_a_policy_writes_the_log_that_the_next_is_trained_on(world, arm, done):
    out, _ = done[world]
    first, second = (out / f"seed-0/{arm}/round-{number:02d}" for number in (1, 2))
    start, served = Prepared(out / "seed-0/start/data"), Prepared(first / "data")
    run = Run(second / "run")
    assert Run(first / "run").manifest["data"]["digest"] == start.digest
    assert run.manifest["data"]["digest"] == served.digest
    assert run.config.objective.logging == str(first / "run"), "μ is known: the run that served"
    assert Run(first / "run").config.objective.logging == "head", "μ is no run"
    assert served.manifest["policies"] == [Run(first / "run").version]
    assert len(served) == len(start), "the last log alone"
    assert served.catalogue["item_id"].equals(start.catalogue["item_id"]) and served.events == start.events
    # The logged propensities are those of the policy that served.
    policy = Run(first / "run").policy()
    ids = served.catalogue["item_id"].to_pylist()
    for sequence in list(served["train"])[:5]:
        items = [ids[item] for item in sequence["item"]]
        answers = [served.events[code] for code in sequence["event"]]
        logp = policy.log_probabilities([items[:-1]], [answers[:-1]])[0]
        assert sequence["propensity"][-1] == pytest.approx(float(logp[sequence["item"][-1]].exp()), rel=1e-4)


def test_all_logs_can_be_kept(tmp_path):
    loop(tiny("bandit", keep_logs=True, objectives=("lpi_cb_weighted",)), out=tmp_path, rounds=2)
    chain = tmp_path / "seed-0/lpi_cb_weighted-beta-0.3"
    both, start = Prepared(chain / "round-01/data"), Prepared(tmp_path / "seed-0/start/data")
    assert len(both) == 2 * len(start)
    assert both.manifest["policies"] == ["logging", Run(chain / "round-01/run").version]
    assert Run(chain / "round-02/run").config.objective.logging == "head", "no single run wrote these logs"
    # And no run may stand for the policies of several.
    served = (
        Run(chain / "round-02/run")
        .config.model_copy(deep=True)
        .with_changes([f"objective.logging={chain / 'round-01/run'}"])
    )
    with pytest.raises(RunError, match="an impression log that it served alone"):
        train(both, out=tmp_path / "no", config=served)


def test_arms_start_from_the_same_log_and_seeds_differ(tmp_path):
    result = loop(tiny("bandit", seeds=(0, 1), objectives=("mle", "reward_weighted")), out=tmp_path, rounds=1)
    digests = {
        (seed, arm): Run(tmp_path / f"seed-{seed}/{arm}/round-01/run").manifest["data"]["digest"]
        for seed in (0, 1)
        for arm in ("mle", "reward_weighted")
    }
    assert digests[0, "mle"] == digests[0, "reward_weighted"] != digests[1, "mle"]
    values = [seed[0]["truth"]["mean"] for seed in result.rounds["mle"]]
    rounds = result.trajectories[0].rounds
    assert rounds[1]["true J"] == over_seeds(values, [0.0, 0.0])
    rows = [row for row in result.measurements if (row.policy, row.round, row.figure) == ("mle", 1, "true J")]
    assert [(row.seed, row.mean) for row in rows] == [(None, rounds[1]["true J"].mean), (0, values[0]), (1, values[1])]
    reach = 12.706 * abs(values[0] - values[1]) / 2  # Student's t with one degree of freedom; sd/√2 of two values
    assert rounds[1]["true J"].high - rounds[1]["true J"].mean == pytest.approx(reach, rel=1e-4)


def test_an_arm_that_cannot_learn_stops_and_says_why(tmp_path):
    config = tiny("bandit", dials=("contexts=15", "base=-60"), objectives=("mle", "reward_weighted"))
    result = loop(config, out=tmp_path, rounds=2)
    assert len(result.rounds["mle"][0]) == 2
    (stopped,) = result.rounds["reward_weighted"][0]
    assert "all rewards are 0" in stopped["stopped"]
    write_loop(result, tmp_path)
    said = json.loads((tmp_path / "loop.json").read_text())["arms"]["reward_weighted"]
    assert [one["kind"] for one in said["symptoms"]] == ["stopped"]
    assert said["stopped"] == {"1": stopped["stopped"]}
    text = (tmp_path / "loop.md").read_text()
    assert "reward_weighted could not go on." in text and "Could not be trained in round 1: all rewards are 0" in text


# ---------------------------------------------------------------------- continuing


class Killed(BaseException):
    """As a kill: nothing catches it."""


@pytest.mark.parametrize(
    ("world", "step"),
    [("bandit", "write_prepared"), ("bandit", "write_json"), ("store", "train_job")],
)
def test_a_killed_loop_continues_to_the_same_result(world, step, done, tmp_path, monkeypatch):
    _, result = done[world]
    calls, real = [0], getattr(loop_module, step)

    def dies(*given, **options):
        calls[0] += 1
        if calls[0] == 2:  # after the start, or in the second round
            raise Killed
        return real(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(loop_module, step, dies)
        with pytest.raises(Killed):
            loop(tiny(world), out=tmp_path, rounds=2)
    again = loop(tiny(world), out=tmp_path, rounds=2)
    assert (again.first, again.rounds) == (result.first, result.rounds)


def test_more_rounds_continue_from_the_last(done, tmp_path):
    _, result = done["bandit"]
    one = loop(tiny("bandit"), out=tmp_path, rounds=1)
    assert one.rounds["mle"][0] == result.rounds["mle"][0][:1]
    two = loop(tiny("bandit"), out=tmp_path, rounds=2)
    assert two.rounds == result.rounds


# ---------------------------------------------------------------------- what is reported


def test_files_agree(done):
    out, result = done["bandit"]
    write_loop(result, out, json=out / "copy.json")
    said = json.loads((out / "loop.json").read_text())
    assert said == json.loads((out / "copy.json").read_text())
    page = parse(out / "report.html")
    table = cells(page, "s1-comparison")
    rows = result.to_arrow()
    assert rows.schema == SCHEMA, "the long table, as of any result"
    assert said["measurements"] == rows.to_pylist()
    over = {(row["policy"], row["round"], row["figure"]): row for row in said["measurements"] if row["seed"] is None}
    for name, arm in said["arms"].items():
        last = {figure: over[name, 2, figure] for figure in ("true J", "JS", "true gain")}
        assert float(table[name]["J(π)"].attributes["data-value"]) == last["true J"]["mean"]
        assert float(table[name]["JS"].attributes["data-value"]) == last["JS"]["mean"]
        for place, figure in enumerate(("true J", "JS from the round before", "JS", "entropy")):
            rounds = cells(page, f"s1-rounds-{place}-numbers")
            for number in (1, 2):
                assert float(rounds[str(number)][name].attributes["data-value"]) == over[name, number, figure]["mean"]
        assert f"{last['true J']['mean']:.4f}" in (out / "loop.md").read_text()
        assert arm["summary"] in (out / "loop.md").read_text()
        (claim,) = [claim for claim in said["claims"] if claim["claim"].startswith(f"{name} ends above")]
        assert claim["holds"] is (
            True if last["true gain"]["low"] > 0 else False if last["true gain"]["high"] < 0 else None
        )
        assert [claim[end] for end in ("value", "low", "high")] == [
            last["true gain"][end] for end in ("mean", "low", "high")
        ]
    picture = (out / "loop.svg").read_text()
    assert picture.startswith("<svg") and "lpi_cb_weighted β=0.3" in picture
    assert (out / "report.html").stat().st_size < 2_000_000


def test_a_round_is_of_the_seeds_that_got_there():
    """A figure over seeds is one that all of them have; who stopped has none, and says why."""
    exact = {key: {"mean": 0.5, "se": 0.1} for key in ("truth", "gain", "step", "js_before", "js_first", "kl_first")}

    def entry(value: float, **weights: float):
        return {**exact, "entropy": 2.0, "coverage": 0.5, "truth": {"mean": value, "se": 0.1}, "weights": weights}

    config = tiny("bandit", seeds=(3, 7, 9), objectives=("mle",))
    seeds = [[entry(0.6, effective_share=0.9), entry(0.8, effective_share=0.7)], [entry(0.7), {"stopped": "no reward"}]]
    seeds.append([{"stopped": "no rows"}])
    found = Loop(
        config, world_of(config), policies_of(("mle",), ()), [entry(0.4), entry(0.5), entry(0.45)], {"mle": seeds}
    )
    rows = {(row.round, row.seed, row.figure): row for row in found.measurements}
    assert len(rows) == len(found.measurements)
    assert {number: rows[number, None, "true J"].mean for number in range(3)} == pytest.approx(
        {0: 0.45, 1: 0.65, 2: 0.8}
    )
    assert rows[1, None, "true J"].interval == over_seeds([0.6, 0.7], [0.1, 0.1])
    assert rows[2, None, "true J"].interval == Interval.of(0.8, 0.1) == rows[2, 3, "true J"].interval, (
        "of one seed its own"
    )
    assert rows[1, 3, "effective share"].mean == 0.9 and (1, None, "effective share") not in rows, "one seed has it"
    assert rows[2, None, "effective share"].mean == 0.7 and {key[:2] for key in rows if key[0] == 2} == {
        (2, None),
        (2, 3),
    }
    (arm,) = found.trajectories
    assert [figures["true J"].mean for figures in arm.rounds] == pytest.approx([0.45, 0.65, 0.8])
    assert arm.stopped == {1: "no rows", 2: "no reward"} and [sign.kind for sign in arm.symptoms] == ["stopped"]
    assert found.summary() == "bandit, 2 rounds; J at the end: mle 0.8000"
    said = found.to_dict()
    assert said["arms"]["mle"]["summary"] == arm.summary() and len(said["claims"]) == 2
    assert arm.summary().startswith("mle: J 0.4500 → 0.8000 (+78%) at JS 0.50 from μ. Could not be trained in round 1")


def test_gains_at_the_end_are_decided_together():
    """Each objective's own interval claimed that it ends above μ: of several, one in twenty does by chance."""

    def entry(gain: float):
        exact = {
            key: {"mean": gain, "se": 0.1} for key in ("truth", "gain", "step", "js_before", "js_first", "kl_first")
        }
        return {**exact, "entropy": 2.0, "coverage": 0.5, "weights": {}}

    arms = {"mle": 0.21, "ips": 0.28, "lpi_cb": -0.205}  # 2.1, 2.8 and 2.05 standard errors
    config = tiny("bandit", objectives=tuple(arms), betas=())
    rounds = {name: [[entry(gain), entry(gain)]] for name, gain in arms.items()}
    found = Loop(config, world_of(config), policies_of(tuple(arms), ()), [entry(0.0)], rounds)
    assert {name: each.sign for name, each in found.gains.items()} == {"mle": 0, "ips": 1, "lpi_cb": 0}
    assert found.gains["ips"].low == pytest.approx(0.28 - 2.394 * 0.1, abs=1e-4), "1 - 0.05/3"
    said = {claim["claim"]: claim for claim in found.to_dict()["claims"]}
    held = [said[f"{name} ends above the policy it started from"]["holds"] for name in arms]
    assert held == [None, True, None]
    assert not [sign for arm in found.trajectories for sign in arm.symptoms if sign.kind == "loses"]
    ends = tables_of(found)[1]
    assert [row[1] for row in ends.plain()] == ["+0.2100 ± 0.2241", "+0.2800 ± 0.2394", "-0.2050 ± 0.2241"]
    assert "Those of gains: 95 %, corrected for 3 comparisons (Holm)." in ends.note
    section = loop_contents(found).sections[0]
    assert {name: section.figure(name, "true gain") for name in arms} == found.gains, "the page shows the same"
    assert {name: section.gains[name]["true gain"].sign for name in arms} == {"mle": 0, "ips": 1, "lpi_cb": 0}


def figures(value: float, *, entropy: float = 3.0, coverage: float = 0.4, share: float = 1.0, js: float = 0.1):
    exact = {
        "true J": value,
        "true gain": value - 0.5,
        "entropy": entropy,
        "coverage@1": coverage,
        "effective share": share,
    }
    return {name: Interval(one, one, one) for name, one in {**exact, "JS": js}.items()}


@pytest.mark.parametrize(
    ("last", "kinds"),
    [
        (figures(0.7), []),
        (figures(0.45), ["loses", "fell"]),
        (figures(0.55), ["fell"]),
        (figures(0.598), []),  # less than one per cent below the best
        (figures(0.7, entropy=0.29), ["no exploration"]),
        (figures(0.7, entropy=0.31), []),
        (figures(0.7, coverage=0.01), []),  # those that rise most show the fewest items first
        (figures(0.7, share=0.09), ["few decide"]),
    ],
)
def test_every_sign_of_collapse_is_named(last, kinds):
    ips = Trajectory("ips", [figures(0.5), figures(0.6), last])
    assert [one.kind for one in ips.symptoms] == kinds
    assert ("Nothing went wrong." in ips.summary()) == (not kinds)


def test_a_sign_that_is_gone_at_the_end_is_none():
    """And one of μ alone is none of the policy's."""
    low, good = figures(0.7, entropy=0.2), figures(0.7)
    lost, even = Trajectory("ips", [figures(0.4), figures(0.45)]), Trajectory("ips", [figures(0.5), figures(0.5)])
    assert [(sign.kind, sign.since) for sign in lost.symptoms] == [("loses", 1)]
    assert [[claim.holds for claim in each.claims()] for each in (lost, even)] == [[False, True], [None, True]]
    still = Trajectory("ips", [figures(0.5), low]).claims()
    assert [claim.holds for claim in still] == [True, False] and still[
        0
    ].because == "J 0.5000 → 0.7000 (+40%) in 1 rounds"
    assert Trajectory("ips", [figures(0.5), low, good]).symptoms == []
    (one,) = Trajectory("ips", [figures(0.5), good, low, low]).symptoms
    assert (one.kind, one.since) == ("no exploration", 2)
    assert Trajectory("ips", [figures(0.4)], {1: "no reward"}).symptoms == [
        ("stopped", 1, "could not be trained in round 1: no reward")
    ]
    few = [figures(0.5), figures(0.6, share=0.04), figures(0.7, share=0.02), figures(0.8)]
    (one,) = Trajectory("ips", few).symptoms
    assert (one.kind, one.since) == ("few decide", 1)
    assert one.text == "only 2.0 % of its log counted in training in round 2; below 10% in 2 of 4 rounds"


def test_a_fall_within_its_interval_is_not_called_one():
    def unsure(value: float):
        return {**figures(value), "true J": Interval(value, value - 0.1, value + 0.1)}

    assert Trajectory("ips", [unsure(0.5), unsure(0.6), unsure(0.55)]).symptoms == []


def test_a_fall_is_reported_even_if_the_end_is_better():
    (one,) = Trajectory("ips", [figures(0.5), figures(0.8), figures(0.6), figures(0.85)]).symptoms
    assert one.text == "J fell from 0.8000 in round 1 to 0.6000 in round 2 (-25%), and is 0.8500 at the end"


def test_the_verdict_names_who_lost():
    good, bad = [figures(0.5), figures(0.7)], [figures(0.5), figures(0.4)]
    text = loop_verdict([Trajectory("lpi", good), Trajectory("ips", bad)])
    assert text.startswith("After 1 round lpi earns most: J 0.7000, +40% against the first policy, at JS 0.10 from it.")
    assert text.endswith("ips ends below where it began.")


def test_the_best_of_the_verdict_is_the_first_key_number():
    """An objective that stopped early with a larger J was the best in one place and not in the other."""
    exact = {key: {"mean": 0.1, "se": 0.0} for key in ("truth", "gain", "step", "js_before", "js_first", "kl_first")}

    def entry(value: float):
        return {**exact, "entropy": 2.0, "coverage": 0.5, "truth": {"mean": value, "se": 0.0}}

    config = tiny("bandit", objectives=("mle", "lpi_cb"), betas=())
    rounds = {"mle": [[entry(0.6), entry(0.6)]], "lpi_cb": [[entry(0.9), {"stopped": "no reward"}]]}
    found = Loop(config, world_of(config), policies_of(config.objectives, ()), [entry(0.5)], rounds)
    contents = loop_contents(found)
    assert contents.verdict.startswith("After 2 rounds mle earns most")
    assert contents.numbers[0].name == "true reward of mle"


def test_arms_have_names_and_settings():
    observed = "lpi_cb_weighted:advantage=observed:beta=2"
    config = loop_config("bandit", objectives=("mle", "lpi_cb", observed), betas=(1.0, 0.1))
    assert [arm.name for arm in policies_of(config.objectives, config.betas)] == [
        "mle", "lpi_cb β=1", "lpi_cb β=0.1", "lpi_cb_weighted β=2 advantage=observed",
    ]  # fmt: skip
    form = {"advantage": "observed", "beta": 2}
    assert policies_of(config.objectives, config.betas)[-1].objective == {"name": "lpi_cb_weighted", **form}
    (alone,) = policies_of(("lpi_cb",), ())
    assert alone.objective == {"name": "lpi_cb"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stoer", "--out", "x"), "did you mean 'store'"),
        (("yoochoose", "--out", "x"), "known: bandit, store"),
        (("bandit", "--out", "x", "--objectives", "lpi_bc"), "did you mean 'lpi_cb'"),
        (("bandit", "--out", "x", "--objectives", "mle:beta=2"), "mle does not use it"),
        (("bandit", "--out", "x", "--objectives", "mle,mle"), "none twice"),
        (("bandit", "--out", "x", "--rounds", "0"), "rounds: expected a number greater than or equal to 1"),
        (("bandit", "--out", "x", "--seeds", "0,a"), "seeds"),
        (("bandit", "--out", "x", "--logging", "mine"), "'served' or 'head'"),
        (("bandit", "--out", "x", "--dial", "temprature=2"), "did you mean 'temperature'"),
        (("bandit", "--out", "x", "--set", "train.epoch=2"), "did you mean 'epochs'"),
        (("store", "--out", "x", "--sequences", "3"), "greater than or equal to 30"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lpi", "loop", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_another_loop_in_the_same_folder_is_refused(done, tmp_path):
    out, _ = done["bandit"]
    with pytest.raises(ConfigError, match="sequences was 300, now 400"):
        loop(tiny("bandit", sequences=400), out=out, rounds=2)


def test_arms_of_one_name_are_refused():
    for objectives, betas in ((("lpi_cb:beta=0.3", "lpi_cb"), (0.3,)), (("lpi_cb",), (0.1, 0.1000001))):
        with pytest.raises(ConfigError, match="two arms are called"):
            policies_of(objectives, betas)


def test_an_arm_that_diverges_stops_alone(tmp_path, monkeypatch):
    step = Trainer.step

    def diverges(self, batch, number, **options):
        if self.config.objective.name == "lpi_cb_weighted":
            raise TrainingError("step 0: the term 'policy' is nan.")
        return step(self, batch, number, **options)

    monkeypatch.setattr(Trainer, "step", diverges)
    result = loop(tiny("bandit"), out=tmp_path, rounds=2)
    assert [len(result.rounds[arm.name][0]) for arm in result.arms] == [2, 1]
    assert result.rounds["lpi_cb_weighted β=0.3"][0] == [{"stopped": "step 0: the term 'policy' is nan."}]
    write_loop(result, tmp_path / "shown")
    assert "the term 'policy' is nan" in (tmp_path / "shown" / "loop.md").read_text()


def test_every_round_has_its_own_luck(done):
    out, _ = done["bandit"]
    logs = [Prepared(out / "seed-0" / place / "data")["train"].arrays["item"] for place in ("start", "mle/round-01")]
    assert len(logs[0]) != len(logs[1]) or not np.array_equal(*logs)
    seeds = [Run(out / f"seed-0/mle/round-0{number}/run").config.train.seed for number in (1, 2)]
    assert len({*seeds}) == 2
    assert len({loop_module.round_seed(seed, number) for seed in range(3) for number in range(20)}) == 60


def test_a_closed_form_starts_from_the_policy_that_served(tmp_path):
    """An estimate from the items shown would lose some of it in every round."""
    result = loop(tiny("bandit", objectives=("lpi_cb",), betas=()), out=tmp_path, rounds=2)
    assert len(result.rounds["lpi_cb"][0]) == 2
    first, second = (Run(tmp_path / f"seed-0/lpi_cb/round-{number:02d}/run") for number in (1, 2))
    assert first.config.objective.logging == "head", "μ is no run"
    assert second.config.objective.logging == str(first.folder)
    assert second.manifest["logging"]["policy_sha256"] == first.manifest["policy_sha256"]
    for run in (first, second):
        assert list(run.manifest["stages"]) == ["logging", "critic-1"]


def test_any_number_of_processes_gives_the_same_files(done, tmp_path):
    out, result = done["bandit"]
    again = loop(tiny("bandit"), out=tmp_path, rounds=2, processes=2)
    assert (again.first, again.rounds) == (result.first, result.rounds)
    write_loop(result, out)
    write_loop(again, tmp_path)
    weights = "seed-0/{}/round-02/run/policy.safetensors"
    arms = [weights.format(arm) for arm in ("mle", "lpi_cb_weighted-beta-0.3")]
    for name in ("loop.json", "loop.md", "loop.svg", "settings.json", *arms):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes(), name
    listed = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) for folder in (tmp_path, out)]
    assert listed[0] == [name for name in listed[1] if name != "copy.json"]


def test_measured_rounds_suffice_for_the_report(done, tmp_path):
    """Weights and logs need not be kept, nor carried to another machine."""
    out, result = done["store"]
    for file in (out / "settings.json", *out.rglob("round.json")):
        copy = tmp_path / file.relative_to(out)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    before = sorted(tmp_path.rglob("*"))
    again = loop(tiny("store"), out=tmp_path, rounds=2)
    assert (again.first, again.rounds) == (result.first, result.rounds)
    assert sorted(tmp_path.rglob("*")) == before


def test_new_items_are_shown_from_the_round_on_in_which_they_come(tmp_path):
    dials = ("contexts=15", "features=1", "feature_values=3", "new_items=0.5", "new_rounds=2")
    changes = (*TINY["changes"], "model.features=['true_1']")
    config = tiny("bandit", objectives=("mle",), dials=dials, changes=changes)
    loop_module.loop(config, out=tmp_path / "loop", rounds=2, processes=1)
    world = world_of(config)
    for number, on_sale in ((1, 9), (2, 12)):
        run = Run(tmp_path / "loop" / "seed-0" / "mle" / f"round-{number:02d}" / "run")
        shown = world.table(PolicyAgent(run.policy(), world)).min(0) > 0
        assert shown[:on_sale].all() and not shown[on_sale:].any()
    served = Prepared(tmp_path / "loop" / "seed-0" / "mle" / "round-01" / "data")
    shown = np.unique(served.catalogue["item_id"].to_numpy()[served.catalogue["count"].to_numpy() > 0])
    assert (shown >= 6).any(), "what is new is tried, and can be learnt"
