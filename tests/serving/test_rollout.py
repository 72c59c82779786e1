"""Rollouts: the file moves as the log says, by the evidence of one rollout, of persons whose reward is settled."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from localpolicy.errors import ConfigError, DataError, RunError
from localpolicy.serving import rollout as rollouts
from localpolicy.serving.assignment import Assignment, hashed_position
from localpolicy.serving.database import Database
from localpolicy.serving.erase import erase
from localpolicy.serving.experiment_units import RolloutList, units_of
from localpolicy.serving.filters import Filter
from localpolicy.serving.join import JoinConfig
from localpolicy.serving.log import write
from localpolicy.serving.records import Feedback, Request, Shadowed, new_id
from localpolicy.serving.rollout import RolloutRules, judge, plan, read_plan, roll_back
from localpolicy.serving.rotate import rotate

START = 1_700_000_000_000


# ---------------------------------------------------------------------- from a log to a decision


def made(person: str, arm: str, stage: str, at: int, reward: float, mode: str = "drawn") -> RolloutList:
    return RolloutList(person, at, arm, stage, "v", mode, reward)


def test_a_person_counts_once_in_each_stage():
    lists = [
        made("a", "current", "1", 0, 1.2), made("a", "current", "1", 50, 0.0, "fallback"),
        made("a", "current", "1", 5000, 9.0), made("b", "candidate", "1", 10, 0.5, "fallback"),
        made("b", "candidate", "5", 2000, 0.5), made("a", "candidate", "5", 3000, 0.7),
        made("d", "current", "shadow", 0, 1.0), made("e", "current", "100", 0, 1.0),
    ]  # fmt: skip
    found = units_of(lists, {"shadow": 0.0, "1": 0.01, "5": 0.05}, horizon_ms=1000)
    assert found.arm.tolist() == [0, 1, 1]
    assert found.reward.tolist() == pytest.approx([0.6, 0.5, 0.7])
    assert found.fallback.tolist() == [0, 1, 0] and found.lists.tolist() == [2, 1, 1]
    assert found.first.tolist() == [0, 10, 3000]
    assert found.probability.tolist() == pytest.approx([0.01, 0.01, 0.04 / 0.99])


HOUR = 3_600_000
RIPE = 2 * HOUR + 1  # horizon and window
EASY = RolloutRules(units=200, people=50, lists=50, places=1, margin=0.5)


def written(
    path, rollout, *, persons: int, stage: str, share: float, effect: float = 0.0, seed: int = 0, fallback: float = 0.0,
    start: int = START, every: int = 1, delay: tuple[int, int] = (0, 0), reward=(None, None),
    rate: float = 0.5, policies: tuple[str, str] = ("old", "new"),
):  # fmt: skip
    """A log of one stage: each person sees one list and buys with some chance; pairs are of current and candidate."""
    rng = np.random.default_rng(seed)
    database = Database(path, create=True)
    with database.transaction():
        for number in range(persons):
            candidate = int(rng.random() < share)
            mode = "fallback" if candidate and rng.random() < fallback else "drawn"
            at = start + number * every
            request = Request(
                id=new_id(at), time=at, person=f"p{seed}-{number}", history=[], items=[1], propensities=[0.5],
                policy=policies[candidate], beta=None, mode=mode, floor=0.0, item_filter=Filter(), deferred=False,
                share=1.0, arm=("current", "candidate")[candidate], stage=stage, rollout=rollout["id"],
            )  # fmt: skip
            write(database, request)
            if rng.random() < rate + effect * candidate:
                arrived = at + delay[candidate]
                write(database, Feedback(request.id, request.id, 1, "purchase", reward[candidate], arrived, False))
            if stage == "shadow":
                write(database, Shadowed(request.id, "y", rng.random() < -effect, rollout["id"]))
    database.close()
    return path


def test_a_rollout_walks_through_its_stages(tmp_path):
    path, log = tmp_path / "rollout.json", tmp_path / "log.db"
    rollout = plan(path, stages=["shadow", "50", "100"], rules=EASY)
    written(log, rollout, persons=100, stage="shadow", share=0.0)
    found = judge(path, log=log, at=START)
    assert (found.decision, found.exit_code) == ("hold", 5) and "100 of 200 shadow answers" in found.why
    written(log, rollout, persons=150, stage="shadow", share=0.0, seed=1)
    assert judge(path, log=log, at=START, apply=False).decision == "advance"
    assert read_plan(path)["stage"] == "shadow"
    assert judge(path, log=log, at=START).exit_code == 0
    assert (read_plan(path)["stage"], read_plan(path)["share"]) == ("50", 0.5)
    written(log, rollout, persons=400, stage="50", share=0.5, seed=3)
    found = judge(path, log=log, at=START + RIPE + 400)
    assert found.decision == "advance" and sum(found.units.values()) == 400
    assert read_plan(path)["share"] == 1.0
    # At 100 % too, people must be seen: what the stages before brought is ripe by then.
    assert judge(path, log=log, at=START + RIPE + 400).decision == "hold"
    with pytest.raises(ConfigError, match="holds a running rollout"):
        plan(path)
    written(log, rollout, persons=300, stage="100", share=1.0, seed=4)
    done = [judge(path, log=log, at=START + RIPE + 400) for _ in range(2)]
    assert [(one.decision, one.exit_code) for one in done] == [("done", 0)] * 2
    assert [one["stage"] for one in read_plan(path)["history"]] == ["shadow", "50", "100", "100"]
    assert read_plan(path)["replaces"] == ["old"]
    with pytest.raises(ConfigError, match="it is done"):
        roll_back(path, why="too late")
    plan(path)
    assert read_plan(path)["stage"] == "shadow" and len(list(tmp_path.glob("rollout-*.json"))) == 1


@pytest.mark.parametrize(
    ("stage", "settings", "why"),
    [
        ("50", {"effect": -0.3}, "earns less"),
        ("50", {"fallback": 0.5}, "falls back more often"),
        ("50", {"share": 0.7}, "not given in the planned ratio"),
        ("shadow", {"effect": -0.2, "share": 0.0}, "shadow answers failed"),
    ],
)
def test_harm_of_any_kind_is_rolled_back(tmp_path, stage, settings, why):
    path = tmp_path / "rollout.json"
    rollout = plan(path, stages=["shadow", "50"] if stage == "shadow" else ["50", "100"], rules=EASY)
    log = written(tmp_path / "log.db", rollout, persons=600, stage=stage, **{"share": 0.5, **settings})
    at = START + (RIPE + 600 if why == "earns less" else 600)  # the other alarms need no reward, and do not wait
    found = judge(path, log=log, at=at)
    assert found.decision == "roll back" and why in found.why and found.exit_code == 3
    after = read_plan(path)
    assert (after["stage"], after["share"]) == ("rolled back", 0.0)
    assert not Assignment.of(after).on and not Assignment.of(after).is_candidate("anyone")
    assert judge(path, log=log).exit_code == 3, "a cron job that looks again learns the same"


# ---------------------------------------------------------------------- evidence in time


def test_a_candidate_that_earns_nothing_is_not_rolled_out_before_answers_can_come(tmp_path):
    """Answers take 20 minutes, 3,000 persons a minute: at first nobody has earned anything, in either arm."""
    path, log = tmp_path / "rollout.json", tmp_path / "log.db"
    rules = RolloutRules(units=300, people=30, lists=30, places=1)
    rollout = plan(path, stages=["50", "100"], rules=rules)
    written(log, rollout, persons=3000, stage="50", share=0.5, effect=-0.3, rate=0.3, delay=(HOUR // 3, 0), every=20)
    for minutes in (1, 5, 60, 119):
        found = judge(path, log=log, at=START + minutes * 60_000)
        assert found.decision == "hold" and sum(found.units.values()) == 0, "nobody's reward is settled"
    assert sum(found.waiting.values()) == 3000
    found = judge(path, log=log, at=START + RIPE + 60_000)
    assert found.decision == "roll back" and "earns less" in found.why


def test_later_answers_are_not_fewer_answers(tmp_path):
    """The same rewards, but the candidate's come later: at every look the evidence is the same."""
    seen = []
    for name, minutes in (("soon", 0), ("late", 10), ("last", 60)):
        path, log = tmp_path / f"{name}.json", tmp_path / f"{name}.db"
        rollout = plan(path, stages=["50", "100"], rules=RolloutRules(units=10**6, places=1))
        written(log, rollout, persons=1500, stage="50", share=0.5, rate=0.15, delay=(0, minutes * 60_000), every=4800)
        seen.append([judge(path, log=log, at=START + step * HOUR) for step in range(5)])
    assert seen[0] == seen[1] == seen[2] and {one.decision for one in seen[0]} == {"hold"}


def test_an_answer_counts_when_it_arrives(tmp_path):
    """A response that arrives after the window changes nothing, whatever time it states."""
    path, log = tmp_path / "rollout.json", tmp_path / "log.db"
    rollout = plan(path, stages=["50", "100"], rules=EASY)
    written(log, rollout, persons=20, stage="50", share=0.5, rate=0.0)
    before = judge(path, log=log, at=START + RIPE + 20)
    database = Database(log)
    for (request,) in database.rows("SELECT id FROM requests"):
        write(database, Feedback(request, request, 1, "purchase", None, START, False, START + 2 * HOUR))
    database.close()
    assert judge(path, log=log, at=START + RIPE + 20) == before


@pytest.mark.parametrize("reward", [(5.0, 1.0), (-1.0, 1.0), (1.0, -1.0)])
def test_rewards_outside_the_range_stop_the_judgement(tmp_path, reward):
    path, log = tmp_path / "rollout.json", tmp_path / "log.db"
    rollout = plan(path, stages=["50", "100"], rules=EASY)
    written(log, rollout, persons=300, stage="50", share=0.5, reward=reward)
    with pytest.raises(DataError, match=r"the plan says 0 to 1.*Plan a new rollout"):
        judge(path, log=log, at=START + RIPE + 300)
    assert read_plan(path)["stage"] == "50"
    # The remedy: a plan with the range, and evidence of its own.
    wide = EASY.model_copy(update={"smallest_reward": min(*reward, 0.0), "largest_reward": max(reward), "scale": 1.0})
    other = plan(tmp_path / "other.json", stages=["50", "100"], rules=wide)
    written(log, other, persons=300, stage="50", share=0.5, reward=reward, seed=1)
    found = judge(tmp_path / "other.json", log=log, at=START + RIPE + 300)
    better = reward[1] > reward[0]
    assert (found.decision == "roll back") is not better and (found.evidence["no harm"] > 3) is better


def test_a_candidate_may_bring_more_than_anybody_thought(tmp_path):
    """Five times the reward, less often, is no harm; only the current policy's rewards need a bound."""
    path, log = tmp_path / "rollout.json", tmp_path / "log.db"
    rollout = plan(path, stages=["50", "100"], rules=EASY)
    written(log, rollout, persons=400, stage="50", share=0.5, reward=(1.0, 5.0), effect=-0.1)
    found = judge(path, log=log, at=START + RIPE + 400)
    assert found.decision == "advance" and found.reward["candidate"] > 1 > found.reward["current"]


def test_the_range_follows_the_reward_map_and_the_length_of_lists():
    def rules(**settings):
        return RolloutRules(answers=JoinConfig(**{k: v for k, v in settings.items() if k != "places"}),
                            places=settings.get("places", 10))  # fmt: skip

    assert rules().range == (0, 10 * 1.0)
    assert rules(rewards="click=0.2,skip=-0.1", places=4).range == pytest.approx((4 * -0.1, 4 * 0.2))
    assert rules(rewards=">=4=1,*=-2", places=3).range == (3 * -2, 3 * 1)
    assert rules(rewards="click=1", default=2.0, places=1).range == (1, 2)
    assert rules(rewards="click=1", default=0.1, places=5).range == (0.1, 5), "a list of one brings less than five do"
    assert rules(rewards="skip=-1", default=-0.1, places=5).range == (-5, -0.1)
    assert RolloutRules(smallest_reward=-1, largest_reward=7).range == (-1, 7)
    assert rules(aggregation="sum").range == (0, None)
    with pytest.raises(ConfigError, match="summed"):
        _ = rules(aggregation="sum", rewards="click=1,skip=-1").range
    with pytest.raises(ConfigError, match="must be able"):
        _ = rules(rewards="click=0").range


def test_one_persons_visit_does_not_carry_a_stage(tmp_path):
    """1 % of 1,000 persons is ten: people of the candidate's own are counted too."""
    path, log = tmp_path / "rollout.json", tmp_path / "log.db"
    rollout = plan(path, stages=["1", "50"], rules=RolloutRules(places=1))
    written(log, rollout, persons=3000, stage="1", share=0.01)
    found = judge(path, log=log, at=START + RIPE + 3000)
    assert found.decision == "hold" and "of 100 persons with the candidate" in found.why


# ---------------------------------------------------------------------- evidence of one rollout


def test_every_rollout_has_its_own_evidence(address, tmp_path):
    """A good one, a bad one, its plan again, a good one: each is judged by its own lists, rotated or not."""
    log, at = address, START
    decisions = []
    for number, effect in enumerate([0.1, -0.3, -0.3, 0.1]):
        path = tmp_path / "rollout.json"
        rollout = plan(path, stages=["50", "100"], rules=EASY)
        if number:
            early = judge(path, log=log, at=at)
            assert early.decision == "hold" and sum(early.units.values()) == 0, "nothing is inherited"
        written(log, rollout, persons=400, stage="50", share=0.5, seed=number, effect=effect, start=at,
                policies=("old", f"new{number}"))  # fmt: skip
        at += RIPE + 400
        seen = judge(path, log=log, at=at, apply=False)
        rotate(log, out=tmp_path / "events", upto=at)
        rotated = judge(path, log=log, at=at)
        assert rotated == seen, "evidence survives a rotation"
        decisions.append(rotated.decision)
        if rotated.decision == "advance":
            written(log, rollout, persons=300, stage="100", share=1.0, seed=100 + number, start=at,
                    policies=("old", f"new{number}"))  # fmt: skip
            at += RIPE + 300
            assert judge(path, log=log, at=at).decision == "done"
    assert decisions == ["advance", "roll back", "roll back", "advance"]


def test_a_clock_that_stepped_back_costs_no_rollout_its_evidence(address, tmp_path, monkeypatch):
    """The second plan's id is then the smaller one."""
    path = tmp_path / "rollout.json"
    for number, at in enumerate([START + 10 * HOUR, START]):
        monkeypatch.setattr(rollouts, "now", lambda moment=at: moment)
        rollout = plan(path, stages=["50", "100"], rules=EASY)
        written(address, rollout, persons=400, stage="50", share=0.5, seed=number, effect=-0.5, start=at,
                policies=("old", f"new{number}"))  # fmt: skip
        end = at + RIPE + 400
        seen = judge(path, log=address, at=end, apply=False)
        rotate(address, out=tmp_path / "events", upto=end)
        assert judge(path, log=address, at=end) == seen and seen.decision == "roll back"
    database = Database(address)
    assert database.rows("SELECT DISTINCT rollout FROM evidence") == [(rollout["id"],)], "nothing else is kept"
    database.close()


@pytest.mark.parametrize("stage", ["shadow", "50"])
def test_what_a_rollout_keeps_of_a_person_is_erased(stage, tmp_path):
    """Also where the person's lists are rotated, and nobody names the files."""
    log = tmp_path / "log.db"
    rollout = plan(tmp_path / "rollout.json", stages=["shadow", "50"], rules=EASY)
    written(log, rollout, persons=5, stage=stage, share=0.5, rate=1.0)
    rotate(log, out=tmp_path / "events", upto=START + RIPE)

    def kept() -> list[int]:
        database = Database(log)
        counts = [database.rows(f"SELECT COUNT(*) FROM {table}")[0][0]
                  for table in ("evidence", "evidence_answers", "shadow")]  # fmt: skip
        database.close()
        return counts

    before = kept()
    assert before == [5, 5, 5 if stage == "shadow" else 0]
    erase("p0-3", log=log)
    assert kept() == [max(count - 1, 0) for count in before]


def test_an_exchanged_candidate_is_not_judged(tmp_path):
    path, log = tmp_path / "rollout.json", tmp_path / "log.db"
    rollout = plan(path, stages=["50", "100"], rules=EASY)
    written(log, rollout, persons=300, stage="50", share=0.5)
    written(log, rollout, persons=300, stage="50", share=0.5, seed=1, policies=("old", "newer"))
    with pytest.raises(RunError, match="made by new, newer"):
        judge(path, log=log, at=START + RIPE + 300)


def test_an_event_that_the_map_does_not_know_is_counted_and_set_aside(tmp_path):
    path, log = tmp_path / "rollout.json", tmp_path / "log.db"
    rollout = plan(path, stages=["50", "100"], rules=EASY)
    written(log, rollout, persons=300, stage="50", share=0.5, effect=0.1)
    database = Database(log)
    ((request,),) = database.rows("SELECT id FROM requests LIMIT 1")
    write(database, Feedback("odd", request, 1, "poke", None, START, False))
    database.close()
    found = judge(path, log=log, at=START + RIPE + 300)
    assert found.decision == "advance" and found.unknown_events == 1


def test_a_plan_whose_rewards_are_of_other_events_goes_no_further(tmp_path):
    """All rewards would be 0 in both arms: no harm could ever be seen."""
    path, log = tmp_path / "rollout.json", tmp_path / "log.db"
    rules = EASY.model_copy(update={"answers": JoinConfig(rewards="buy=1")})
    rollout = plan(path, stages=["50", "100"], rules=rules)
    written(log, rollout, persons=300, stage="50", share=0.5, effect=-0.4)
    with pytest.raises(DataError, match=r"answers are of no event .*buy=1.*lpi rollout back"):
        judge(path, log=log, at=START + RIPE + 300)
    assert read_plan(path)["stage"] == "50"
    # Other alarms are raised all the same.
    written(log, rollout, persons=600, stage="50", share=0.5, seed=1, fallback=0.5)
    assert judge(path, log=log, at=START + 600).decision == "roll back"


def test_a_rollout_is_ended_by_hand(tmp_path):
    path = tmp_path / "rollout.json"
    plan(path, rules=EASY, stages=["50", "100"])
    roll_back(path, why="the shop closes")
    after = read_plan(path)
    assert (after["stage"], after["share"]) == ("rolled back", 0.0) and not Assignment.of(after).on
    assert judge(path, log=tmp_path / "log.db").why == "the shop closes"
    with pytest.raises(ConfigError, match="no running rollout"):
        roll_back(path, why="again")
    plan(path, rules=EASY)
    assert read_plan(path)["stage"] == "shadow"


def test_everyone_keeps_their_arm_while_the_share_grows():
    people = [f"p{n}" for n in range(20_000)]
    arms = {
        share: {one for one in people if Assignment("s", "x", share).is_candidate(one)} for share in (0.01, 0.05, 0.25)
    }
    assert arms[0.01] < arms[0.05] < arms[0.25]
    for share, given in arms.items():
        assert abs(len(given) / len(people) - share) < 5 * math.sqrt(share / len(people))
    other = {one for one in people if Assignment("t", "x", 0.05).is_candidate(one)}
    assert len(other & arms[0.05]) < 0.2 * len(other), "another salt, another share of people"
    assert 0 <= hashed_position("p", "s") < 1


def test_plans_that_make_no_sense(tmp_path):
    for stages in (["5", "1"], ["1", "1"], ["101"], ["half"], [], ["100"], ["shadow", "100"]):
        with pytest.raises(ConfigError, match="stage"):
            plan(tmp_path / "rollout.json", stages=stages)
    plan(tmp_path / "rollout.json")
    with pytest.raises(ConfigError, match="holds a running rollout"):
        plan(tmp_path / "rollout.json")
    with pytest.raises(DataError, match="does not exist"):
        judge(tmp_path / "rollout.json", log=tmp_path / "mistyped.db")
    assert not (tmp_path / "mistyped.db").exists()
    (tmp_path / "other.json").write_text(json.dumps({"format": 9}))
    with pytest.raises(RunError, match="is not a rollout"):
        judge(tmp_path / "other.json", log=tmp_path / "log.db")


def test_a_rollout_has_one_judge_at_a_time(tmp_path, monkeypatch):
    """A judge that looked before another rolled back would write "advance" over it; so would a second plan."""
    import threading

    from localpolicy.serving import rollout as judging

    path, log = tmp_path / "rollout.json", tmp_path / "log.db"
    Database(log, create=True).close()
    plan(path)
    looking, go_on, found = threading.Event(), threading.Event(), []
    decide = judging.decide

    def slowly(*given, **named):
        looking.set()
        assert go_on.wait(60)
        return decide(*given, **named)

    monkeypatch.setattr(judging, "decide", slowly)
    first = threading.Thread(target=lambda: found.append(judge(path, log=log)))
    first.start()
    assert looking.wait(60)
    try:
        with pytest.raises(RunError, match="another process writes .*rollout.json"):
            judge(path, log=log)
        with pytest.raises(RunError, match="another process writes .*rollout.json"):
            plan(path)
    finally:
        go_on.set()
        first.join(60)
    assert [verdict.decision for verdict in found] == ["hold"] and not list(tmp_path.glob(".*"))
