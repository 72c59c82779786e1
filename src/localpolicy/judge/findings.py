"""What was found in a comparison: questions to ask before an online test, each with its answer and its numbers."""

from __future__ import annotations

import math

from localpolicy.judge.checks.gains import unmeasured
from localpolicy.judge.checks.value import too_little
from localpolicy.judge.claims import Claim, unjudged
from localpolicy.judge.comparison import Comparison
from localpolicy.measure.decisions import LEAST_EFFECTIVE
from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.number_text import corrected, counted, decimals, interval_text, short
from localpolicy.measure.significance import SIGNIFICANT, Paired

TESTED = f"paired t-test by sequence, Holm-corrected, {SIGNIFICANT}"
BY_VALUE = "paired difference in value by sequence, its 95 % interval by Holm's steps excludes 0"
BEYOND = "the 95 % intervals of JS and of the noise floor do not meet"
LARGEST = "the larger mean"


def findings(comparison: Comparison, *, of: str | None = None, judged: bool = False) -> list[Claim]:
    """Claims to check before an online test, each with its outcome; claims about one policy are about `of`.

    If a verdict has `judged` one of them, its checks say which is better, and the comparison does not: two intervals of
    one gain would contradict each other.
    """
    asked = of if of in comparison.names else comparison.best_new
    moved = [] if comparison.candidate(asked).estimates_logging else [_has_moved(comparison, asked)]
    claims = moved if judged else [_is_better(comparison), *moved, *_beats_simple(comparison)]
    claims += [*_seen_by_js(comparison), *_features(comparison), *_equal_settings(comparison)]
    return [*claims, *_enough_weight(comparison), *_metric_picks_truth(comparison)]


def _rule(comparison: Comparison) -> str:
    return BY_VALUE if comparison.main == comparison.value else TESTED


def around(test: Paired, count: int) -> str:
    """Text of a test's interval, with the number of comparisons it is corrected for."""
    return f"{test.low:+.4f} to {test.high:+.4f} (95 %{corrected(count)})"


def _is_better(comparison: Comparison) -> Claim:
    main, rule = comparison.main, _rule(comparison)
    best, second, *_ = (*comparison.order(main), "", "")
    claim = f"{best or 'the best'} is significantly better than the second best in {comparison.said(main)}"
    lead = comparison.leads.get(main)
    if lead is None:
        why = f"it cannot be compared with {second}: the notes say why"
        if not second:
            why = "there is no second policy" if len(comparison.names) < 2 else "the log says too little of the others"
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
    """Claim with the difference, interval and n of its test."""
    return Claim(figure, rule, holds, claim, because, *test.numbers, unit=f"{unit}s")


def _has_moved(comparison: Comparison, best: str) -> Claim:
    js, floor = comparison.interval(best, "JS"), Interval.known(comparison.floor)
    claim = f"{best} differs from the log by more than seed noise"
    if js is None:
        return Claim("JS", BEYOND, None, claim, "no reference was given")
    if floor is None:
        because = f"JS {interval_text(js)}; the noise is unknown without a second mle seed"
    else:
        digits = decimals([js.mean, floor.mean])
        because = f"JS {interval_text(js, digits)}, noise {interval_text(floor, digits)}"
    row = comparison[best].row("JS")
    return Claim("JS", BEYOND, beyond_floor(js, floor), claim, because, js.mean, js.low, js.high, row and row.n)


def _beats_simple(comparison: Comparison) -> list[Claim]:
    """Claim that every new policy is better than the strongest simple baseline."""
    strongest, main = comparison.strongest, comparison.main
    rivals, simple, claim = comparison.rivals, comparison.simple, "every new policy is better than the simple baselines"
    if not rivals or not simple:
        return []
    judged = (*rivals, *simple) if main == comparison.value else ()
    refusals = {name: comparison.values[name].refusal for name in judged}
    unknown = {name: refusal for name, refusal in refusals.items() if refusal}
    tests = {name: test for name in rivals if (test := comparison.test(name, strongest, main)) is not None}
    if strongest is None or not tests:
        why = too_little(unknown) if unknown else unmeasured(main) if strongest is None else "the notes say why"
        return [Claim(main, _rule(comparison), None, claim, unjudged(why), asked=False, judged=False)]
    signs, least = {test.sign for test in tests.values()}, min(tests.values(), key=lambda test: test.difference)
    said = ", ".join(
        f"{name} {test.difference:+.4f}, {around(test, comparison.comparisons(main))}" for name, test in tests.items()
    )
    level = short(comparison.level(strongest, main))
    because = f"over {strongest}, whose {comparison.said(main)} is {level}: {said}"
    if unknown:
        because, claim = f"{because}. Not judged: {too_little(unknown)}", f"{claim}, of those that can be judged"
    holds = False if -1 in signs else True if signs == {1} else None
    return [_claim(main, _rule(comparison), holds, claim, because, least, comparison.unit)]


def _seen_by_js(comparison: Comparison) -> list[Claim]:
    """Claim that JS alone shows which policies resemble the log; only returned if that is false here."""
    missed, base = comparison.unseen_by_js, comparison.baseline
    if not missed or base is None:
        return []
    js = ", ".join(f"{name} has JS {short(comparison.level(name, 'JS'), 2)}" for name in missed)
    noise = "" if comparison.floor is None else f" (noise {short(comparison.floor.mean, 2)})"
    figure = comparison.ranked
    ranks = ", ".join(short(comparison.level(name, figure)) for name in missed)
    because = (
        f"{js}{noise}, but a {comparison.said(figure)} of {ranks} against {short(comparison.level(base, figure))} of "
        f"{base}: JS hardly sees the order of the first few items"
    )
    return [Claim("JS", TESTED, False, "JS alone shows which policies resemble the log", because)]


def _features(comparison: Comparison) -> list[Claim]:
    """Claims that item features help, one per run with features and a matching run without."""
    ranked, found = comparison.ranked, []
    for gain in comparison.feature_gains:
        name, other, (main, likelihood) = gain.policy, gain.against, gain.tests.values()
        signs = {main.sign, likelihood.sign}
        claim, holds = f"{name} gains by its item features ({', '.join(gain.features)})", 1 in signs and -1 not in signs
        if gain.shuffled:
            claim, holds = f"shuffled among the items, these features bring nothing ({name})", 1 not in signs
        words = {comparison.said(ranked): main, "log-likelihood": likelihood}
        said = (f"{word} {test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f})" for word, test in words.items())
        because = f"against {other}, without features: {'; '.join(said)}"
        found.append(_claim(f"{ranked}, logp", TESTED, holds, claim, because, main))
    return found


def _equal_settings(comparison: Comparison) -> list[Claim]:
    """Claim that all runs have equal data, selection rules and distinct seeds; only returned if false."""
    if not comparison.differences:
        return []
    claim = "all runs have the same data and the same rule for choosing epochs, and no seed is on both sides"
    return [Claim("settings", "all are equal", False, claim, ". ".join(comparison.differences))]


def _enough_weight(comparison: Comparison) -> list[Claim]:
    runs = {each.name: each.run for each in comparison.candidates if each.run is not None and each.run.started}
    weights = {name: run.selected_metrics()["weights"] for name, run in runs.items()}
    shares = {name: each["effective_share"] for name, each in weights.items() if "effective_share" in each}
    if not shares:
        return []
    few = [f"{name} ({share:.1%})" for name, share in shares.items() if share < LEAST_EFFECTIVE]
    because = f"below it: {', '.join(few)}" if few else f"the least is {min(shares.values()):.0%}"
    claim = f"every policy learned from at least {LEAST_EFFECTIVE:.0%} of the log"
    least = min(shares.values())
    return [Claim("effective share", f"at least {LEAST_EFFECTIVE:.0%}", not few, claim, because, least)]


def _metric_picks_truth(comparison: Comparison) -> list[Claim]:
    true = {each.name: each.truth.value for each in comparison.evaluations if each.truth is not None}
    order = comparison.order(comparison.main)
    if len(true) < 2 or not order or order[0] not in true:
        return []
    top, best = max(true, key=lambda name: true[name]), order[0]
    values = {name: comparison.interval(name, "true J") for name in dict.fromkeys((top, best))}
    digits = decimals([value.mean for value in values.values() if value])
    because = "; ".join(f"{name}: J {interval_text(value, digits)}" for name, value in values.items())
    claim = f"{comparison.said(comparison.main)} on the log picks the policy that earns most"
    numbers = () if (found := values[best]) is None else (found.mean, found.low, found.high)
    return [Claim("true J", LARGEST, top == best, claim, because, *numbers)]
