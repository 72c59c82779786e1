"""What a log says before a rollout starts: how rewards spread, and the persons and days that a proof takes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from test_rollout import EASY, HOUR, RIPE, START, written
from typer.testing import CliRunner

from localpolicy.cli.main import app
from localpolicy.errors import ConfigError, DataError
from localpolicy.serving.database import Database
from localpolicy.serving.join import JoinConfig
from localpolicy.serving.log import write
from localpolicy.serving.past import Past, known, read_past
from localpolicy.serving.records import Feedback
from localpolicy.serving.reward_tests import Known
from localpolicy.serving.rollout import RolloutRules, judge, plan, read_plan, size
from localpolicy.serving.rotate import rotate
from localpolicy.serving.sample_size import MOST, TYPICAL, least_margin, persons_needed, rollout_size

NOBODY = {"id": ""}  # no rollout
LATER = START + 1000 * RIPE


def served(path, **settings):
    """A log of the current policy, as it is served without a rollout."""
    return written(path, NOBODY, **{"persons": 300, "stage": "", "share": 0.0, **settings})


# ---------------------------------------------------------------------- the past


def test_a_log_and_its_rotated_days_say_the_same(tmp_path):
    log = served(tmp_path / "log.db")
    before = read_past([log], EASY, at=LATER)
    assert before.persons == 300 and before.rewarded == before.total == before.squares
    rotate(log, out=tmp_path / "events" / "day", upto=START + 150)
    assert read_past([log], EASY, at=LATER).persons == 150
    assert read_past([log, tmp_path / "events"], EASY, at=LATER) == before
    rotate(log, out=tmp_path / "events" / "next", upto=LATER)
    assert read_past([tmp_path / "events"], EASY, at=LATER) == before


def test_persons_are_counted_as_the_rollout_counts_them(tmp_path):
    """A person counts once, by the lists within the horizon; lists of a candidate do not count."""
    log = served(tmp_path / "log.db", rate=1.0)
    served(log, rate=0.0, start=START + 1000)  # the same persons again, who buy nothing
    found = read_past([log], EASY, at=LATER)
    assert (found.persons, found.total) == (300, 150)
    rollout = plan(tmp_path / "rollout.json", stages=["50", "100"], rules=EASY)
    written(log, rollout, persons=400, stage="50", share=0.5, seed=1)
    database = Database(log)
    ((current,),) = database.rows("SELECT COUNT(*) FROM requests WHERE arm = 'current' AND stage = '50'")
    database.close()
    assert read_past([log], EASY, at=LATER).persons == 300 + current
    assert read_past([log], EASY, at=START + EASY.ripe_ms + 99).persons > 100
    with pytest.raises(DataError, match="0 of 0 persons"):
        read_past([log], EASY, at=START + EASY.ripe_ms - 1)


def test_thirty_persons_must_have_brought_something(tmp_path):
    log = served(tmp_path / "log.db", rate=0.0)
    database = Database(log)
    requests = [name for (name,) in database.rows("SELECT id FROM requests ORDER BY time LIMIT 30")]
    for number, request in enumerate(requests):
        if number == 29:
            with pytest.raises(DataError, match=r"29 of 300 persons .* 30 are needed"):
                read_past([log], EASY, at=LATER)
        write(database, Feedback(request, request, 1, "purchase", None, START + number, False))
    database.close()
    assert read_past([log], EASY, at=LATER).rewarded == 30


def test_folders_without_rotated_days_are_refused(tmp_path):
    with pytest.raises(DataError, match="no rotated days"):
        read_past([tmp_path], EASY, at=LATER)
    (tmp_path / "odd.parquet").write_text("text")
    with pytest.raises(DataError, match="odd.parquet is not readable"):
        read_past([tmp_path], EASY, at=LATER)


def test_the_cut_and_its_excess_follow_the_quantile():
    rewards = np.r_[np.zeros(900), np.arange(1.0, 101.0)]
    found = Past.of(rewards, days=4.0)
    assert found.cut == pytest.approx(np.quantile(rewards, 0.999)) and 98 < found.cut < 100
    above = np.maximum(rewards - found.cut, 0)
    assert found.excess == pytest.approx(above.mean() + 2 * above.std() / math.sqrt(1000))
    assert (found.persons, found.rewarded, found.persons_a_day) == (1000, 100, 250)
    assert Past.of(rewards[1:], days=1.0).cut is None and Past.of(rewards[1:], days=1.0).excess == 0
    assert Past.of(rewards, days=1.0, most=50.0).cut == 50 and Past.of(rewards, days=1.0, most=500.0).cut == found.cut
    # Where hardly anybody brings something, 99.9 % of all would cut nearly all of it away.
    rare = Past.of(np.r_[np.zeros(99_900), np.arange(1.0, 101.0)], days=1.0)
    assert 94 <= rare.cut <= 96


def test_what_is_known_depends_on_the_log():
    past = Past.of(np.r_[np.zeros(900), np.arange(1.0, 101.0)], days=1.0)
    rules = RolloutRules(places=2)
    assert known(rules, None) == Known(2.0)
    few = past.model_copy(update={"cut": None, "excess": 0.0})
    assert known(rules, few) == Known(
        2.0, 0.0, False, 0.0, None, 1000, 5050.0, float((np.arange(101.0) ** 2).sum()), 100, 100.0
    )
    assert known(rules, past).cut == past.cut and known(rules, past).tail and known(rules, past).excess == past.excess
    summed = RolloutRules(answers=JoinConfig(aggregation="sum"))
    assert known(summed, past).cut == past.cut
    for short in (None, few):
        with pytest.raises(ConfigError, match=r"summed.*log of 1,000 persons"):
            known(summed, short)
    negative = RolloutRules(answers=JoinConfig(rewards="click=1,skip=-1"))
    with pytest.raises(ConfigError, match=r"no share of the mean.*scale"):
        known(negative, None)
    assert known(negative, past).scale == past.size == 5.05
    stated = negative.model_copy(update={"scale": 2.0})
    assert known(stated, past).scale == known(stated, None).scale == 2.0


# ---------------------------------------------------------------------- persons and days


def test_the_sample_size_and_the_least_margin_follow_the_law():
    assert persons_needed(5.5, 0.5, 0.1, c=4.0) == pytest.approx(4 * 5.5 / (0.25 * 0.01))
    # At 50 % and the 95 % quantile, the least margin is what its own number of persons proves.
    assert persons_needed(2.0, 0.5, least_margin(2.0, 12_345), c=15.0) == pytest.approx(12_345)


def test_a_stage_needs_what_those_before_it_have_not_brought():
    margins = {"5": (0.05, 0.2), "25": (0.25, 0.1), "50": (0.5, 0.1), "100": (1.0, None)}
    found = rollout_size(3.0, margins, persons_a_day=1000.0, wait_days=0.5, least=dict.fromkeys(margins, 100),
                         at_hand=60_000)  # fmt: skip
    first = TYPICAL * 3 / (0.05 * 0.95 * 0.2**2)
    second = (TYPICAL * 3 / 0.1**2 - math.ceil(first) * 0.05 * 0.95) / (0.25 * 0.75)
    assert [stage.persons for stage in found.stages.values()] == [math.ceil(first), math.ceil(second), 100, 100]
    assert found.stages["5"].most == math.ceil(MOST * 3 / (0.05 * 0.95 * 0.2**2))
    assert found.persons == sum(stage.persons for stage in found.stages.values()) < found.most
    assert found.days(found.persons) == pytest.approx(found.persons / 1000 + 4 * 0.5)
    assert found.least_margin == pytest.approx(math.sqrt(60 * 3 / 60_000))
    halved = rollout_size(3.0, {"50": (0.5, 0.05)}, persons_a_day=1.0, wait_days=0.0, least={"50": 1}, at_hand=1)
    whole = rollout_size(3.0, {"50": (0.5, 0.1)}, persons_a_day=1.0, wait_days=0.0, least={"50": 1}, at_hand=1)
    assert halved.persons == pytest.approx(4 * whole.persons, abs=4)


def test_the_size_comes_from_a_log(tmp_path):
    """300 persons within the hour at rate ½: CV² is about 1, 7,200 a day."""
    log = served(tmp_path / "log.db", every=1000)
    found = size([log], stages=["50", "100"], rules=EASY)
    past = read_past([log], EASY, at=LATER)
    mean = past.total / 300
    assert found.cv2 == pytest.approx((mean - mean**2) / mean**2)
    assert found.persons_a_day == pytest.approx(300 * 24) and found.at_hand == 28 * 300 * 24
    assert found.stages["50"].persons == max(200, math.ceil(persons_needed(found.cv2, 0.5, 0.5, c=TYPICAL)))
    assert found.stages["100"].margin is None and found.wait_days == pytest.approx(2 * HOUR / (24 * HOUR))
    assert size([log], stages=["50"], rules=EASY, persons=9_000).least_margin == pytest.approx(
        math.sqrt(60 * found.cv2 / 9_000)
    )


def test_the_command_says_persons_and_days(tmp_path):
    log, out = served(tmp_path / "log.db", every=1000), tmp_path / "size.json"
    said = CliRunner().invoke(app, ["rollout", "size", str(log), "--stages", "5,50,100", "--margin", "0.2", "--places",
                                    "1", "--json", str(out)])  # fmt: skip
    assert said.exit_code == 0, said.output
    found = json.loads(out.read_text())
    rules = RolloutRules(margin=0.2, places=1)
    assert found["persons"] == size([log], stages=["5", "50", "100"], rules=rules).persons
    assert f"{found['persons']:,}" in said.output and f"{found['most']:,}" in said.output
    assert all(len(line) <= 80 for line in said.output.splitlines())
    gone = CliRunner().invoke(app, ["rollout", "size", str(tmp_path / "gone.db")])
    assert gone.exit_code != 0


# ---------------------------------------------------------------------- in the rollout's file


def test_a_plan_says_what_it_needs_and_is_judged_by_its_past(tmp_path):
    log = served(tmp_path / "past.db", persons=1500)
    path = tmp_path / "rollout.json"
    rollout = plan(path, stages=["50", "100"], rules=EASY, logs=[log])
    assert rollout["past"] == read_past([log], EASY, at=LATER).model_dump() and rollout["past"]["cut"] == 1
    assert rollout["size"]["stages"] == size([log], stages=["50", "100"], rules=EASY).model_dump()["stages"]
    written(tmp_path / "log.db", rollout, persons=20, stage="50", share=0.5)
    found = judge(path, log=tmp_path / "log.db", at=START + RIPE + 20)
    assert found.evidence["no harm"] != 0, "the log's persons are known before the first"
    assert plan(tmp_path / "other.json", stages=["50", "100"], rules=EASY)["size"] is None


@pytest.mark.parametrize("unproven", ["back", "hold"])
def test_an_unproven_stage_goes_back_or_is_held(unproven, tmp_path):
    """A loss of 30 % against a margin of 25 %, at levels that neither test reaches with so few."""
    path, log = tmp_path / "rollout.json", tmp_path / "log.db"
    rules = EASY.model_copy(update={"margin": 0.25, "alpha": 1e-6, "unproven": unproven, "places": 1})
    rollout = plan(path, stages=["50", "100"], rules=rules)
    written(log, rollout, persons=2200, stage="50", share=0.5, effect=-0.1, rate=0.5)
    found = judge(path, log=log, at=START + RIPE + 2200)
    assert (found.decision, found.exit_code) == ("unproven", 4) and found.most <= 2200, found.why
    after = read_plan(path)
    if unproven == "back":
        assert (after["stage"], after["share"]) == ("rolled back", 0.0)
        again = judge(path, log=log)
        assert (again.decision, again.exit_code, again.why) == ("unproven", 4, found.why)
        plan(path, stages=["50", "100"], rules=rules)
    else:
        assert after == rollout, "it goes on"
        written(log, rollout, persons=4000, stage="50", share=0.5, effect=0.3, seed=1)
        assert judge(path, log=log, at=START + RIPE + 6200).decision == "advance"


def test_a_rollout_of_an_earlier_version_can_be_ended_and_put_aside(tmp_path):
    path = tmp_path / "rollout.json"
    plan(path, stages=["50", "100"], rules=EASY)
    old = {**read_plan(path), "format": 2, "done": True}
    path.write_text(json.dumps(old))
    plan(path, stages=["50", "100"], rules=EASY)
    assert json.loads((tmp_path / f"rollout-{old['id']}.json").read_text()) == old
    assert read_plan(path)["id"] != old["id"]
