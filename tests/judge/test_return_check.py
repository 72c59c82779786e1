"""Where what is shown now changes what comes later, the gate asks for the return, not for the next reward."""

from __future__ import annotations

import numpy as np
import pytest
from measured import scores

from localpolicy.judge.checks.baselines import baselines_by_return
from localpolicy.judge.checks.returns import APART, DECIDES, by_return
from localpolicy.judge.claims import check
from localpolicy.judge.rules import GateRules
from localpolicy.measure.later import Returns, later_effect, returns_of
from localpolicy.measure.returns import ReturnModel, Visits, return_gain

RULES, STEPS = GateRules(), 4
MU = np.array([0.5, 0.2, 0.3])  # bait pays .4 at once; after the door everything pays .6 more; the third does nothing
BAIT, DOOR = 0, 1


def drawn(rng, visits):
    """Items, and rewards of 0 and 1."""
    item = rng.choice(3, p=MU, size=(visits, STEPS))
    pay = 0.05 + 0.35 * (item == BAIT)
    pay[:, 1:] += 0.6 * (item[:, :-1] == DOOR)
    return item.ravel(), (rng.random(item.shape) < pay).ravel().astype(float)


def judged(policy, *, visits=1500, seed=0):
    """The gate's claims on a policy of these probabilities, the same in every context."""
    rng = np.random.default_rng(seed)
    item, reward = drawn(rng, 4 * visits)
    known = Visits.of(np.repeat(np.arange(4 * visits), STEPS), item, reward)
    later = later_effect(known, MU[item], n_items=3)
    item, reward = drawn(rng, visits)
    made = scores(
        rank=np.ones(len(item)), sequence=np.repeat(np.arange(visits), STEPS), item=item, reward=reward,
        logp=np.log(policy[item]), propensity=MU[item],
    )  # fmt: skip
    at_once = float(((policy / MU)[item] - 1) @ reward / len(item))
    value = check("value", "yes" if at_once > 0 else "no", "", at_once)
    found = returns_of(made, None, known, later, n_items=3)
    return found, by_return(value, found, RULES)


def earned(policy):
    """What a visit earns: .05 and the bait's .35 at every step, and .6 after every door."""
    return STEPS * (0.05 + 0.35 * policy[BAIT]) + (STEPS - 1) * 0.6 * policy[DOOR]


def test_bait_that_costs_what_comes_later_is_refused():
    """Before: the next reward rose, and it was deployed."""
    policy = np.array([0.6, 0.1, 0.3])
    assert earned(policy) < earned(MU)
    found, (decides, value) = judged(policy)
    assert found.decides and found.own < 0
    assert decides.figure == "return" and decides.outcome == "no" and decides.high < 0
    assert value.outcome == "not asked" and DECIDES in value.because and value.value > 0
    assert decides.value == pytest.approx(earned(policy) - earned(MU), abs=3 * found.gain.gain.se)


def test_a_gain_of_whole_visits_is_one_even_where_the_next_reward_falls():
    policy = np.array([0.45, 0.3, 0.25])
    found, (decides, value) = judged(policy)
    assert found.gain.asked == "visit" and value.value < 0
    assert decides.outcome == "yes" and earned(policy) > earned(MU)


def test_items_in_a_row_show_a_gain_that_the_next_reward_hides():
    """Before: of policies that earn a fifth more, half were answered "cannot tell", since their next reward falls."""
    far = np.array([0.1, 0.8, 0.1])
    found, (decides, value) = judged(far, visits=300)
    assert earned(far) > 1.2 * earned(MU) and value.value < 0
    assert found.gain.asked == "deviation" and found.gain.steps == 2 and found.gain.within > 0
    assert decides.outcome == "yes" and "2 items in a row" in decides.because


@pytest.mark.parametrize("steps", [1, 3])
def test_a_deviation_recommends_nothing_whose_own_items_earn_less(steps):
    """Its gain is that of the first order: where both signs agree it counts, where they differ nobody knows."""
    found, _ = judged(np.array([0.1, 0.8, 0.1]), visits=300)
    lost = found._replace(gain=found.gain._replace(steps=steps, within=-0.01))
    at_once = check("value", "no", "", -0.01 if steps == 1 else 0.01)
    decides = by_return(at_once, lost, RULES)[0]
    assert decides.outcome == "cannot tell" and decides.plain == APART
    gained = found._replace(gain=found.gain._replace(steps=steps, within=0.01))
    assert by_return(check("value", "yes", "", 0.01 if steps == 1 else -0.01), gained, RULES)[0].outcome == "yes"


def test_where_nothing_comes_later_the_value_decides_alone():
    rng = np.random.default_rng(3)
    item = rng.choice(3, p=MU, size=6000)
    reward = (rng.random(6000) < np.array([0.4, 0.2, 0.1])[item]).astype(float)
    visits, policy = Visits.of(np.repeat(np.arange(1500), STEPS), item, reward), np.array([0.6, 0.2, 0.2])
    made = scores(
        rank=np.ones(6000), sequence=visits.sequence, item=item, reward=reward, logp=np.log(policy[item]),
        propensity=MU[item],
    )  # fmt: skip
    found = returns_of(made, None, visits, later_effect(visits, MU[item], n_items=3), n_items=3)
    value = check("value", "yes", "", 0.02)
    assert not found.decides and by_return(value, found, RULES) == [value]
    assert by_return(value, None, RULES) == [value]


def test_either_sign_of_a_later_effect_of_its_own_makes_the_return_decide():
    found, _ = judged(np.array([0.6, 0.1, 0.3]))
    quiet = found.later._replace(t=0.0)
    for own, decides in ((0.0, False), (found.reach * 1.01, True), (-found.reach * 1.01, True), (found.reach, False)):
        assert Returns(found.gain, found.base, quiet, own, found.reach).decides == decides


def test_baselines_are_compared_by_return_too():
    """Before: one that earned more at once refused a policy that tripled what a visit earns."""
    bait, door = np.array([0.6, 0.1, 0.3]), np.array([0.4, 0.35, 0.25])
    rng = np.random.default_rng(9)
    item, reward = drawn(rng, 3000)
    visits = Visits.of(np.repeat(np.arange(3000), STEPS), item, reward)
    model = ReturnModel.fit(visits, gamma=1.0, n_items=3)

    def over(new, old):
        return return_gain(visits, (new / MU)[item], (old / MU)[item], model)

    assert baselines_by_return({"most clicked": over(door, bait)}, RULES).outcome == "yes"
    lost = baselines_by_return({"log": over(bait, MU), "door": over(bait, door)}, RULES)
    assert lost.outcome == "no" and "door" in lost.plain and lost.instead is None
    assert baselines_by_return({"itself": over(door, door)}, RULES).outcome == "yes", "no more is not less"
    refused = over(bait, door)._replace(overlap=over(bait, door).overlap._replace(refusal="too far"))
    assert baselines_by_return({"door": refused}, RULES).outcome == "not judged"
    assert baselines_by_return({"door": refused, "log": over(door, MU)}, RULES).outcome == "yes"
    assert baselines_by_return({}, RULES).outcome == "not asked"
