"""Views and purchases without propensities: the reward per answer, and how many there would be."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from measured import evaluate_policy
from measured import log as small_log

from localpolicy.data.batches import WindowConfig
from localpolicy.judge.checks.answers import WORDS, answers_checks
from localpolicy.judge.checks.baselines import baselines_by_answers
from localpolicy.judge.checks.gains import ALIKE, gain_claim
from localpolicy.judge.claims import UNJUDGED, Claim, check, unjudged
from localpolicy.judge.rules import GateRules
from localpolicy.judge.verdict import Gate
from localpolicy.logits import DenseLogits, Logits
from localpolicy.measure.answers import (
    NO_ESTIMATE,
    TOGETHER,
    WORTH,
    Answers,
    Choices,
    answers,
    choices_of,
    log_probability,
    together,
)
from localpolicy.measure.decisions import OverlapRules
from localpolicy.measure.significance import Paired, paired
from localpolicy.types import Batch

RULES = GateRules()
OVERLAP = RULES.refusals
GAIN = check("gain", "cannot tell", "")


def policy(name: str, logp: np.ndarray, reward: np.ndarray, ndcg: float = 0.5):
    """Each position is a sequence of its own, with ranks that vary a little."""
    ranks = ndcg + 0.05 * np.cos(np.arange(len(reward)))
    return Choices(name, logp, {}, reward, ranks, np.arange(len(reward)), False)


def judged(choices: Choices, log: np.ndarray | None) -> Answers:
    return answers(choices, log, OVERLAP)


def measured(*, events: list[str], event: list[int], ndcg: list[float], **columns: object):
    """Scores with these columns."""
    n = len(event)
    scores = SimpleNamespace(
        logp=np.zeros(n), logp_reference={}, rank_unseen=None, reward=np.zeros(n), sequence=np.arange(n),
        metric=lambda name, unseen: np.array(ndcg), events=events, event=np.array(event),
    )  # fmt: skip
    vars(scores).update(columns)
    return scores


def log(n: int = 400):
    """Every fourth answer is a purchase; one policy gives purchases twice their share, one half of it."""
    reward = np.where(np.arange(n) % 4 == 0, 1.0, 0.2)
    mu = np.full(n, np.log(0.1))
    dear = reward == 1
    return reward, mu, mu + np.log(np.where(dear, 2, 2 / 3)), mu + np.log(np.where(dear, 1 / 2, 7 / 6))


def test_the_reward_per_answer_by_hand():
    reward, mu, dearer, _ = log()
    values = answers(policy("π", dearer, reward), mu, OVERLAP).values
    np.testing.assert_allclose(values.mean(), (2 * 1 * 1.0 + 2 / 3 * 3 * 0.2) / (2 * 1 + 2 / 3 * 3))
    sharper = answers(policy("π", mu + np.log(1.5), reward), mu, OVERLAP)
    assert "the mean of π/μ̂ is 1.50" in sharper.refusal, "a better imitation is no better policy"
    np.testing.assert_allclose(answers(policy("μ̂", mu, reward), mu, OVERLAP).values, reward)
    far = np.where(np.arange(400) == 0, 0.0, -20.0)
    assert "effective sample" in answers(policy("far", far, reward), mu, OVERLAP).refusal


def test_reward_and_number_of_answers_decide_together():
    """By hand, answers of `dearer` earn 0.6 instead of 0.4: 50 % more. The nDCG of `old` is 0.5."""
    reward, mu, dearer, cheaper = log()
    old = policy("old", mu, reward)

    def asked(logp: np.ndarray, ndcg: float) -> list[Claim]:
        return answers_checks(judged(policy("new", logp, reward, ndcg), mu), judged(old, mu), GAIN, RULES)

    def outcomes(logp: np.ndarray, ndcg: float) -> list[str]:
        return [each.outcome for each in asked(logp, ndcg)]

    worth, both = asked(dearer, 0.4)
    assert worth.outcome == both.outcome == "yes" and (worth.figure, both.figure) == (WORTH, TOGETHER)
    assert worth.value == pytest.approx(0.2) and both.value == pytest.approx(0.5 - 0.1 / old.ranks.mean())
    assert both.low < both.value < both.high and both.n == worth.n == 400, "each has its own interval"
    assert "worth +50.0%, and number -20.0%" in both.because and "added: +30.0%" in both.because
    assert "%" not in worth.because.replace("95%", ""), "what the other check says is not said here"
    worth, both = asked(dearer, 0.2)
    assert (worth.outcome, both.outcome) == ("yes", "cannot tell") and both.needed is None
    assert "added: -10.0%" in both.because and "does not tell which" in both.plain
    worth, both = asked(dearer, 0.26)
    assert (worth.outcome, both.outcome) == ("yes", "cannot tell"), "+2 %, and not significantly above 0"
    assert both.low < 0 < both.value and both.needed > 400 and "About" in both.because
    assert "does not tell" not in both.plain, "more of the log would"
    assert outcomes(cheaper, 0.5) == ["no", "no"]
    worth, both = asked(cheaper, 0.7)
    assert worth.outcome == "cannot tell" and "may be more of them" in worth.plain and TOGETHER in worth.because
    assert both.outcome != "no" and both.high > 0
    assert outcomes(mu, 0.9)[0] != "yes", "higher ranks alone are no verdict"
    noise = np.exp(0.7 * np.random.default_rng(0).standard_normal(len(mu)))
    unsure, rarer = (asked(mu + np.log(noise / noise.mean()), ndcg) for ndcg in (0.5, 0.2))
    assert unsure[0].outcome == rarer[0].outcome == rarer[1].outcome == "cannot tell" and unsure[0].needed is not None
    assert rarer[0].needed is rarer[1].needed is None and rarer[1].plain == "there may be fewer of them"
    unweighted = judged(policy("new", dearer, reward), None)
    blind = answers_checks(unweighted, judged(old, None), GAIN, RULES)
    assert [each.outcome for each in blind] == ["cannot tell", "not judged"] and "give an mle run" in blind[0].because
    assert baselines_by_answers(unweighted, [unweighted], RULES).because == unjudged(NO_ESTIMATE)
    few, mu_few, dearer_few, _ = log(20)
    short = [judged(policy(name, logp, few), mu_few) for name, logp in (("new", dearer_few), ("old", mu_few))]
    found = answers_checks(*short, GAIN, RULES)
    assert {each.outcome for each in found} == {"cannot tell"} and all("too few" in each.because for each in found)
    assert {each.unit for each in (*found, worth, both, *unsure, *rarer, blind[0])} == {"answers"}
    rare = judged(policy("new", mu_few + 0.01 * np.cos(np.arange(20)), few, 0.1), mu_few)
    rarely = answers_checks(rare, short[1], GAIN, RULES)
    assert {each.plain for each in rarely} == {"20 sequences are too few"} and rarely[0].needed == 32
    alike = answers_checks(*short, check("gain", "no", "", plain=ALIKE), RULES)
    assert [(each.figure, each.outcome) for each in alike] == [(WORTH, "no"), (TOGETHER, "not asked")]
    assert {each.unit for each in alike} == {"answers"} and alike[0].n == len(short[0].choices.sequence)
    assert alike[0].because.startswith(f"the two rank all {alike[0].n:,} answers alike"), "not an nDCG of all rows"


def answer_before(test: Paired, both: Paired, worth: str) -> str:
    """Answer of one check of both figures."""
    if (worth == "yes" and both.low <= 0) or (worth == "no" and test.high < 0 <= both.high):
        return "cannot tell"
    return {"yes": "test online", "no": "do not deploy"}.get(worth, worth)


@pytest.mark.parametrize("seed", range(20))
def test_two_checks_give_the_answer_that_one_gave(seed):
    """On logs with gains and losses of both kinds, significant and not."""
    rng = np.random.default_rng(seed)
    reward, mu, dearer, cheaper = log()
    old = judged(policy("old", mu, reward), mu)
    for toward, ndcg in itertools.product((dearer, cheaper), (0.2, 0.45, 0.5, 0.55, 0.8)):
        share = rng.uniform(0, 1)
        noise = np.exp(rng.uniform(0, 0.5) * rng.standard_normal(len(mu)))
        weight = share * np.exp(toward - mu) + (1 - share) * noise / noise.mean()
        new = judged(policy("new", mu + np.log(weight / weight.mean()), reward, ndcg), mu)
        checks = answers_checks(new, old, GAIN, RULES)
        test = paired(new.values, old.values, new.choices.sequence, confidence=0.95)
        alone = gain_claim(WORTH, test, float(old.values.mean()), "", WORDS, RULES)
        verdict = Gate(checks, SimpleNamespace(name="new"), SimpleNamespace(name="old"), RULES, kind="rewards")
        assert verdict.answer == answer_before(test, together(new, old), alone.outcome)
        torn = checks[0].outcome == "yes" and checks[1].outcome == "cannot tell"
        assert verdict.decided_by == (TOGETHER if torn else WORTH) and verdict.sentence.count(":") == 1


def test_what_decided_is_the_check_that_made_the_answer():
    """Before: "reward per answer", which was yes, where both together could not tell, or where lists collapsed."""

    def decided(*checks: Claim) -> tuple[str, str]:
        found = Gate(list(checks), SimpleNamespace(name="new"), SimpleNamespace(name="old"), RULES, "buy.nDCG@20")
        assert found.deciding.plain in found.sentence
        return found.answer, found.decided_by

    worth, both = check(WORTH, "yes", "", plain="worth more"), check(TOGETHER, "yes", "", plain="together")
    torn, fell = check(TOGETHER, "cannot tell", "", plain="torn"), check("coverage", "no", "", plain="lists collapse")
    assert decided(worth, both) == ("deploy", WORTH)
    assert decided(worth, torn) == ("cannot tell", TOGETHER)
    assert decided(worth, torn, fell) == ("do not deploy", "coverage")
    assert decided(check("gain", "no", "", plain="no gain"), fell) == ("do not deploy", "buy.nDCG@20")
    order = check("order", "cannot tell", "", plain="rows are sorted by item")
    assert decided(order, worth.as_fact("of that"), both.as_fact("of that")) == ("cannot tell", "order")
    served = [check("value", "no", "", plain="it earns less"), check("baselines", "no", "", instead="popularity")]
    instead = Gate(served, SimpleNamespace(name="new"), None, RULES)
    assert instead.decided_by == "baselines" and "'popularity' does better" in instead.sentence


def test_what_nobody_answered_has_no_rank():
    """Where the log also holds what was shown for nothing, ranking that lower is no loss."""
    shown = measured(events=["none", "view"], event=[0, 1, 1, 0], ndcg=[0.9, 0.2, 0.4, 0.1])
    assert choices_of("π", shown).ranks.mean() == pytest.approx((0.2 + 0.4) / 2)


def test_what_an_item_earned_counts_for_the_first_meeting():
    """Person 0 views a, views b, buys a, buys b; person 1 views a, views it again and buys it, and buys b of before."""
    people = measured(
        events=["view", "buy"], event=[0, 0, 1, 1, 0, 0, 1, 1], ndcg=[0.1, 0.2, 0.9, 0.9, 0.3, 0.9, 0.9, 0.9],
        sequence=np.array([0, 0, 0, 0, 1, 1, 1, 1]), item=np.array([5, 7, 5, 7, 5, 5, 5, 7]),
        reward=np.array([0.2, 0.2, 1.0, 1.0, 0.2, 0.2, 1.0, 1.0]), repeat=np.array([0, 0, 1, 1, 0, 1, 1, 1], bool),
        rank_unseen=np.ones(8), logp_unseen=np.log([0.1, 0.2, 0.9, 0.9, 0.4, 0.9, 0.9, 0.9]),
        logp_unseen_reference={"μ̂": np.log([0.2, 0.2, 0.9, 0.9, 0.2, 0.9, 0.9, 0.9])},
    )  # fmt: skip
    met = choices_of("π", people)
    assert met.first and met.sequence.tolist() == [0, 0, 1]
    np.testing.assert_allclose(met.reward, [1.2, 1.2, 1.4 / 2], err_msg="what two views brought, by view")
    np.testing.assert_allclose(np.exp(met.logp), [0.1, 0.2, 0.4])
    np.testing.assert_allclose(np.exp(met.logp_reference["μ̂"]), [0.2, 0.2, 0.2])
    np.testing.assert_allclose(met.ranks, [0.1, 0.2, 0.3])


def test_of_answers_that_cost_fewer_are_better():
    reward, mu, *_ = log()
    old, new = policy("old", mu, reward), policy("new", mu, reward, 0.6)
    costly = [Answers(each, reward - 2.0) for each in (new, old)]
    assert together(*costly).difference == pytest.approx(-0.1 / old.ranks.mean())


def test_the_weights_are_by_all_estimates_of_the_log():
    """Of two seeds each is as near to the log as the other: by their mean the deployed one has weights of mean 1."""
    logp = {"a": np.log([0.2, 0.5]), "b": np.log([0.4, 0.1]), "deployed": np.log([0.9, 0.9])}
    known = policy("π", np.zeros(2), np.zeros(2))._replace(logp_reference=logp)
    np.testing.assert_allclose(np.exp(log_probability(known, {"a", "b"})), [0.3, 0.3])
    np.testing.assert_allclose(np.exp(log_probability(known, {"a"})), [0.2, 0.5])
    np.testing.assert_allclose(np.exp(log_probability(known, ())), [0.9, 0.9])
    assert log_probability(known._replace(logp_reference={}), ()) is None


def test_a_baseline_blocks_by_both_figures_alone():
    reward, mu, dearer, _ = log()
    new = judged(policy("new", mu, reward), mu)
    better, torn = policy("better", dearer, reward, 0.6), policy("torn", dearer, reward, 0.1)
    twins = [judged(each, mu) for each in (better, better._replace(name="the same"))]
    found = baselines_by_answers(new, twins, RULES)
    assert found.outcome == "cannot tell" and found.instead is None, "it is far from what was shown: nobody knows"
    assert "better" in found.plain and "the same" not in found.because
    assert baselines_by_answers(new, [judged(torn, mu)], RULES).outcome == "yes"
    far = policy("far", np.where(np.arange(400) == 0, 0.0, -20.0), reward, 0.9)
    alone = baselines_by_answers(new, [judged(far, mu)], RULES)
    assert alone.outcome == "not judged" and alone.because.startswith(UNJUDGED) and "effective sample" in alone.because
    beside = baselines_by_answers(new, [judged(torn, mu), judged(far, mu)], RULES)
    assert beside.outcome == "yes" and "Not judged: the log says too little of far" in beside.because
    assert (found.n, found.unit, beside.unit) == (400, "answers", "answers")


def test_where_nobody_meets_anything_new_there_is_no_figure():
    """Regulars who buy what they always buy: no row is a first meeting."""
    none = policy("π", np.empty(0), np.empty(0))
    found = judged(none, np.empty(0))
    assert "effective sample of 0.0%" in found.refusal
    assert answers_checks(found, found, GAIN, RULES)[0].outcome == "cannot tell"


class Again:
    """Shows the last item again with chance `share`, each of the others equally."""

    def __init__(self, share: float, items: int) -> None:
        self.share, self.items = share, items

    def logits(self, batch: Batch) -> Logits:
        chance = torch.full((len(batch.scored), self.items), (1 - self.share) / (self.items - 1))
        chance[torch.arange(len(chance)), batch.previous_item[batch.scored]] = self.share  # nothing is asked at START
        return DenseLogits(chance.log())


def test_to_show_again_what_was_just_viewed_is_no_gain(tmp_path):
    """Every view leads to a purchase of the same product in half of the cases, whatever the product."""
    rng, items = np.random.default_rng(0), 8
    sequences, events = [], []
    for _ in range(60):
        rows = [(int(item), event) for item in rng.integers(0, items, 4) for event in range(1 + rng.integers(0, 2))]
        sequences.append([item for item, _ in rows])
        events.append([event for _, event in rows])
    data = small_log(tmp_path / "data", sequences, events=events, items=items, names=["view", "purchase"])
    mu, again = Again(0.35, items), Again(0.8, items)

    def gain(*, unseen: bool) -> float:
        asked = {"window": WindowConfig(length=20), "references": {"μ̂": mu}, "unseen": unseen}
        measured = [evaluate_policy(each, data, name="π", **asked) for each in (again, mu)]
        new, old = (choices_of("π", each.scores) for each in measured)
        log = log_probability(new, {"μ̂"})
        rules = OverlapRules(max_bias=9.0)  # μ̂ is rough
        values = [answers(each, log, rules).values for each in (new, old)]
        return values[0].mean() / values[1].mean() - 1

    assert gain(unseen=False) > 0.2
    assert gain(unseen=True) == pytest.approx(0, abs=1e-6)


def test_where_all_answers_earned_the_same_there_is_no_figure():
    """Before: "do not deploy", by a gain of -0.0000 that was rounding alone."""
    few = np.full(200, 0.2)
    mine, old = (judged(policy(name, np.full(200, logp), few), np.full(200, -2.0)) for name, logp in
                 (("new", -2.1), ("old", -2.0)))  # fmt: skip
    assert "earned the same, so none can be worth more" in mine.refusal
    assert answers_checks(mine, old, GAIN, RULES)[0].outcome == "cannot tell"
