"""The findings of a comparison: questions to ask before an online test, each with its answer and its numbers."""

from __future__ import annotations

import math

from localpolicy.judge.claims import unjudged
from localpolicy.judge.comparison import VALUE, Comparison
from localpolicy.judge.gate_ranks import unmeasured
from localpolicy.judge.gate_value import too_little
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.significance import SIGNIFICANT, Paired
from localpolicy.report.contents import Claim, Section
from localpolicy.report.table import corrected, counted, decimals, interval_text, short

TESTED = f"paired t-test by sequence, Holm-corrected, {SIGNIFICANT}"
BY_VALUE = "paired difference in value by sequence, its 95 % interval by Holm's steps excludes 0"
BEYOND = "the 95 % intervals of JS and of the noise floor do not meet"
LARGEST = "the larger mean"


def comparison_claims(comparison: Comparison, section: Section, of: str | None = None) -> list[Claim]:
    """The questions to ask before an online test, each with its answer; those about one policy are about `of`."""
    best = of if of in section.names else judged_on(comparison, section)
    moved = [] if who_is(comparison, section)[best].estimates_logging else [_has_moved(section, best)]
    claims = [_is_better(comparison, section), *moved, *_beats_simple(comparison, section)]
    claims += [*_seen_by_js(section), *_features(comparison, section), *_alike(comparison), *_enough_weight(section)]
    return [*claims, *_metric_picks_truth(section)]


def called_on(comparison: Comparison, section: Section) -> dict[str, str]:
    """What the section calls each policy."""
    return dict(zip((each.name for each in comparison.evaluations), section.names, strict=True))


def who_is(comparison: Comparison, section: Section) -> dict[str, Candidate]:
    """The policies by what the section calls them."""
    return dict(zip(section.names, comparison.candidates, strict=True))


def judged_on(comparison: Comparison, section: Section) -> str:
    """The best of the policies that are meant to be better than the log; without any, the best of all."""
    called, order = called_on(comparison, section), comparison.order(comparison.main)
    rivals = [name for name in (*order, *comparison.rivals) if name in comparison.rivals]
    return called[(rivals or order or list(called))[0]]


def _rule(comparison: Comparison) -> str:
    return BY_VALUE if comparison.main == VALUE else TESTED


def around(test: Paired, count: int) -> str:
    """Where the difference lies, and for how many comparisons that is corrected."""
    return f"{test.low:+.4f} to {test.high:+.4f} (95 %{corrected(count)})"


def _is_better(comparison: Comparison, section: Section) -> Claim:
    called, main, rule = called_on(comparison, section), comparison.main, _rule(comparison)
    best, second, *_ = (*(called[name] for name in comparison.order(main)), "", "")
    claim = f"{best or 'the best'} is significantly better than the second best in {section.metric}"
    lead = comparison.leads.get(main)
    if lead is None:
        why = f"it cannot be compared with {second}: the notes say why"
        if not second:
            why = "there is no second policy" if len(called) < 2 else "the log says too little of the others"
        return Claim(main, rule, None, claim, why)
    test, count = lead.test, comparison.comparisons(main)
    p = "" if math.isnan(test.holm_p) else f"; p = {test.holm_p:.2g}, corrected alike"
    because = f"{test.difference:+.4f} over {second}, {around(test, count)}{p}; {counted(test.n, comparison.unit)}"
    if test.alike:
        because = f"it equals {second} at all {test.n:,} {comparison.unit}s"
    return _claim(main, rule, test.sign > 0, claim, because, test, comparison.unit)


def _claim(
    figure: str, rule: str, holds: bool | None, claim: str, because: str, test: Paired, unit: str = "position"
) -> Claim:
    """With the numbers of its test."""
    return Claim(figure, rule, holds, claim, because, *test.numbers, unit=f"{unit}s")


def _has_moved(section: Section, best: str) -> Claim:
    js, floor = section.figure(best, "JS"), section.floor
    claim = f"{best} differs from the log by more than seed noise"
    if js is None:
        return Claim("JS", BEYOND, None, claim, "no reference was given")
    if floor is None:
        because = f"JS {interval_text(js)}; the noise is unknown without a second mle seed"
    else:
        digits = decimals([js.mean, floor.mean])
        because = f"JS {interval_text(js, digits)}, noise {interval_text(floor, digits)}"
    n = next((row.n for row in section.measurements if (row.policy, row.figure) == (best, "JS")), None)
    return Claim("JS", BEYOND, beyond_floor(js, floor), claim, because, js.mean, js.low, js.high, n)


def _beats_simple(comparison: Comparison, section: Section) -> list[Claim]:
    """Asked of the policies that are meant to be better than the log, against the strongest of the simple ones."""
    strongest, main, called = comparison.strongest, comparison.main, called_on(comparison, section)
    rivals, simple, claim = comparison.rivals, comparison.simple, "every new policy is better than the simple baselines"
    if not rivals or not simple:
        return []
    refusals = {name: comparison.values[name].refusal for name in (*rivals, *simple)} if main == VALUE else {}
    unknown = {called[name]: refusal for name, refusal in refusals.items() if refusal}
    tests = {name: test for name in rivals if (test := comparison.test(name, strongest, main)) is not None}
    if strongest is None or not tests:
        why = too_little(unknown) if unknown else unmeasured(main) if strongest is None else "the notes say why"
        return [Claim(main, _rule(comparison), None, claim, unjudged(why), asked=False, judged=False)]
    signs, least = {test.sign for test in tests.values()}, min(tests.values(), key=lambda test: test.difference)
    said = ", ".join(
        f"{called[name]} {test.difference:+.4f}, {around(test, comparison.comparisons(main))}"
        for name, test in tests.items()
    )
    because = f"over {called[strongest]}, whose {section.metric} is {level_of(section, called[strongest])}: {said}"
    if unknown:
        because, claim = f"{because}. Not judged: {too_little(unknown)}", f"{claim}, of those that can be judged"
    holds = False if -1 in signs else True if signs == {1} else None
    return [_claim(main, _rule(comparison), holds, claim, because, least, comparison.unit)]


def level_of(section: Section, policy: str, figure: str = "") -> str:
    """A policy's mean of a figure, by default of the one that decides."""
    return short(section.mean(policy, figure or section.main))


def _seen_by_js(section: Section) -> list[Claim]:
    """A finding only where JS misleads."""
    missed = [name for name in section.names if name in section.unseen_by_js]
    if not missed or section.baseline not in section.names:
        return []
    js = ", ".join(f"{name} has JS {short(section.mean(name, 'JS'), 2)}" for name in missed)
    noise = "" if section.floor is None else f" (noise {short(section.floor.mean, 2)})"
    figure = section.ranked or section.main
    ranks = ", ".join(level_of(section, name, figure) for name in missed)
    base = f"{level_of(section, section.baseline, figure)} of {section.baseline}"
    because = (
        f"{js}{noise}, but a {section.said(figure)} of {ranks} against {base}: JS hardly sees the order of the first "
        "few items"
    )
    return [Claim("JS", TESTED, False, "JS alone shows which policies resemble the log", because)]


def _features(comparison: Comparison, section: Section) -> list[Claim]:
    """Whether what is known of the items helps, where runs with and without it are there."""
    called, ranked, found = called_on(comparison, section), section.ranked or section.main, []
    for gain in comparison.feature_gains:
        name, other, (main, likelihood) = called[gain.policy], called[gain.against], gain.tests.values()
        signs = {main.sign, likelihood.sign}
        claim, holds = f"{name} gains by its item features ({', '.join(gain.features)})", 1 in signs and -1 not in signs
        if gain.shuffled:
            claim, holds = f"shuffled among the items, these features bring nothing ({name})", 1 not in signs
        words = {section.said(ranked): main, "log-likelihood": likelihood}
        said = (f"{word} {test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f})" for word, test in words.items())
        because = f"against {other}, without features: {'; '.join(said)}"
        found.append(_claim(f"{ranked}, logp", TESTED, holds, claim, because, main))
    return found


def _alike(comparison: Comparison) -> list[Claim]:
    """A finding only where the policies differ in more than what is compared."""
    if not comparison.differences:
        return []
    claim = "all runs have the same data and the same rule for choosing epochs, and no seed is on both sides"
    return [Claim("settings", "all are equal", False, claim, ". ".join(comparison.differences))]


def _enough_weight(section: Section) -> list[Claim]:
    weights = {policy.name: policy.weights for policy in section.policies}
    shares = {name: each["effective_share"] for name, each in weights.items() if "effective_share" in each}
    if not shares:
        return []
    few = [f"{name} ({share:.1%})" for name, share in shares.items() if share < LEAST_EFFECTIVE]
    because = f"below it: {', '.join(few)}" if few else f"the least is {min(shares.values()):.0%}"
    claim = f"every policy learned from at least {LEAST_EFFECTIVE:.0%} of the log"
    least = min(shares.values())
    return [Claim("effective share", f"at least {LEAST_EFFECTIVE:.0%}", not few, claim, because, least)]


def _metric_picks_truth(section: Section) -> list[Claim]:
    true = [name for name in section.names if section.figure(name, "true J")]
    best = section.best(section.names)
    if len(true) < 2 or not math.isfinite(section.decisive(best)):
        return []
    top = max(true, key=lambda name: section.mean(name, "true J") or 0.0)
    values = {name: section.figure(name, "true J") for name in (top, best)}
    digits = decimals([value.mean for value in values.values() if value])
    because = "; ".join(f"{name}: J {interval_text(values[name], digits)}" for name in dict.fromkeys((top, best)))
    claim = f"{section.metric} on the log picks the policy that earns most"
    numbers = () if (found := values[best]) is None else (found.mean, found.low, found.high)
    return [Claim("true J", LARGEST, top == best, claim, because, *numbers)]
