"""A comparison in words: is a new policy better, by how much, how risky is it, what to do now."""

from __future__ import annotations

from localpolicy.judge.comparison import Comparison
from localpolicy.measure.baselines import BASELINES
from localpolicy.measure.divergence import beyond_floor, times_floor
from localpolicy.measure.estimate import Interval
from localpolicy.measure.off_policy.overlap import LEAST_EFFECTIVE
from localpolicy.measure.significance import Paired
from localpolicy.report.contents import CheckedClaim, Headline, KeyNumber, PolicyRow, Section
from localpolicy.report.table import decimals, fixed, interval_text, known, percent, short


def comparison_findings(comparison: Comparison, section: Section) -> list[CheckedClaim]:
    """The questions to ask before an online test, each with its answer."""
    best = best_row(section)
    findings = [_is_sure(comparison, section, best), _has_moved(section, best), *_beats_simple(section)]
    findings += _seen_by_js(comparison, section) + _features(comparison, section) + _alike(comparison)
    findings += [_enough_weight(section)] if any(row.weights for row in section.rows) else []
    findings += [_metric_picks_truth(section, best)] if len([row for row in section.rows if row.truth]) > 1 else []
    return findings


def main_value(row: PolicyRow, section: Section) -> float:
    """The main metric of a row; a missing one counts as the lowest."""
    figure = row.metrics[section.main_metric]
    return figure.mean if known(figure.mean) else float("-inf")


def best_row(section: Section) -> PolicyRow:
    """The row with the largest main metric."""
    return max(section.rows, key=lambda row: main_value(row, section))


def is_simple(row: PolicyRow) -> bool:
    return row.objective in BASELINES


def trained_rows(section: Section) -> list[PolicyRow]:
    """Those that are not simple baselines."""
    return [row for row in section.rows if not is_simple(row)]


def _is_sure(comparison: Comparison, section: Section, best: PolicyRow) -> CheckedClaim:
    lead = comparison.leads.get(comparison.main)
    claim = f"{best.name} is better than the second best in {section.main_metric}, beyond chance"
    if lead is None:
        return CheckedClaim(claim, None, "there is no second policy")
    test = lead.test
    return CheckedClaim(
        claim,
        test.sign > 0,
        f"{test.difference:+.4f} over the second, 95 % interval {test.low:+.4f} to {test.high:+.4f}; "
        f"p = {test.holm_p:.2g}, both corrected for {len(comparison.columns)} columns; {test.n:,} positions",
    )


def _has_moved(section: Section, best: PolicyRow) -> CheckedClaim:
    claim = f"{best.name} differs from the log by more than seed noise"
    if best.js is None:
        return CheckedClaim(claim, None, "no reference was given")
    if section.floor is None:
        return CheckedClaim(claim, None, f"JS {interval_text(best.js)}; the noise is unknown without a second mle seed")
    digits = decimals([best.js.mean, section.floor.mean])
    js, floor = interval_text(best.js, digits), interval_text(section.floor, digits)
    because = f"JS {js}, noise {floor}"
    return CheckedClaim(claim, beyond_floor(best.js, section.floor), because)


def _beats_simple(section: Section) -> list[CheckedClaim]:
    simple = [row for row in section.rows if is_simple(row)]
    trained = trained_rows(section)
    if not simple or not trained:
        return []
    strongest = max(simple, key=lambda row: main_value(row, section))
    below = [row.name for row in trained if main_value(row, section) <= main_value(strongest, section)]
    because = f"{strongest.name} has {section.main_metric} {short(main_value(strongest, section))}"
    because += f"; below or level with it: {', '.join(below)}" if below else "; every trained policy is above it"
    return [CheckedClaim("every trained policy ranks above the simple baselines", not below, because)]


def _seen_by_js(comparison: Comparison, section: Section) -> list[CheckedClaim]:
    """A finding only where JS misleads."""
    missed = [row for row in section.rows if row.unseen_by_js]
    base = next((row for row in section.rows if row.name == section.baseline), None)
    if not missed or base is None:
        return []
    js = ", ".join(f"{row.name} has JS {short(row.js.mean, 2)}" for row in missed if row.js)
    noise = "" if section.floor is None else f" (noise {short(section.floor.mean, 2)})"
    ranks = ", ".join(short(main_value(row, section)) for row in missed)
    because = (
        f"{js}{noise}, but a {section.main_metric} of {ranks} against {short(main_value(base, section))} of "
        f"{base.name}: JS hardly sees the order of the first few items"
    )
    return [CheckedClaim("JS alone shows which policies resemble the log", False, because)]


def _features(comparison: Comparison, section: Section) -> list[CheckedClaim]:
    """Whether what is known of the items helps, where runs with and without it are there."""
    called = {each.name: row.name for each, row in zip(comparison.evaluations, section.rows, strict=True)}
    found = []
    for gain in comparison.feature_gains:
        name, other, (main, likelihood) = called[gain.policy], called[gain.against], gain.tests.values()
        signs = {main.sign, likelihood.sign}
        claim, holds = f"{name} gains by its item features ({', '.join(gain.features)})", 1 in signs and -1 not in signs
        if gain.shuffled:
            claim, holds = f"shuffled among the items, these features bring nothing ({name})", 1 not in signs
        words = {section.main_metric: main, "log-likelihood": likelihood}
        said = (f"{word} {test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f})" for word, test in words.items())
        found.append(CheckedClaim(claim, holds, f"against {other}, without features: {'; '.join(said)}"))
    return found


def _alike(comparison: Comparison) -> list[CheckedClaim]:
    """A finding only where the policies differ in more than what is compared."""
    claim = "all runs have the same data and the same rule for choosing epochs, and no seed is on both sides"
    return [CheckedClaim(claim, False, ". ".join(comparison.notes))] if comparison.notes else []


def _enough_weight(section: Section) -> CheckedClaim:
    shares = {row.name: row.weights["effective_share"] for row in section.rows if "effective_share" in row.weights}
    few = [f"{name} ({share:.1%})" for name, share in shares.items() if share < LEAST_EFFECTIVE]
    because = f"below it: {', '.join(few)}" if few else f"the least is {min(shares.values()):.0%}"
    return CheckedClaim(f"every policy learned from at least {LEAST_EFFECTIVE:.0%} of the log", not few, because)


def _metric_picks_truth(section: Section, best: PolicyRow) -> CheckedClaim:
    top = max((row for row in section.rows if row.truth), key=lambda row: row.truth.mean if row.truth else 0.0)
    claim = f"{section.main_metric} on the log picks the policy that earns most"
    digits = decimals([row.truth.mean for row in (top, best) if row.truth])
    because = f"{top.name}: J {interval_text(top.truth, digits)}; {best.name}: J {interval_text(best.truth, digits)}"
    return CheckedClaim(claim, top.name == best.name, because)


# ---------------------------------------------------------------------- the answer


def comparison_headline(comparison: Comparison, section: Section) -> Headline:
    """In words for the person who decides, not for the one who trains."""
    base = next((row for row in section.rows if row.name == section.baseline), None)
    imitators = [candidate.estimates_logging for candidate in comparison.candidates]
    rivals = [row for row, imitates in zip(section.rows, imitators, strict=True) if not (imitates or is_simple(row))]
    baselines = [row for row in section.rows if is_simple(row)]
    simple = max(baselines, key=lambda row: main_value(row, section), default=None)
    if base is None or not rivals:
        return _nothing_to_compare(section)
    best = max(rivals, key=lambda row: main_value(row, section))
    gain = best.differences.get(section.main_metric)
    numbers = [_gain_number(section, best, base, gain), _js_number(section, best), _last_number(section, best, base)]
    if simple is not None and main_value(simple, section) > main_value(best, section):
        return Headline(_simple_wins(section, simple, best), numbers, _after_simple(simple))
    if gain is None:
        sentence = f"Whether {best.name} is better than {base.name}, which imitates the log, cannot be said."
        return Headline(sentence, numbers, "The findings say why, and how to make the two comparable.")
    if gain.sign == 0:
        sentence = f"No new policy is better than {base.name}, which imitates the log, beyond chance."
        step = "Keep what is deployed. Train on more data, or with another objective or β, and compare again."
        return Headline(sentence, numbers, step)
    if gain.sign < 0:
        sentence = f"Every new policy is worse than {base.name}, which imitates the log: do not deploy one."
        step = "Check rewards and training (the curves below), or choose a larger β, which stays closer to the log."
        return Headline(sentence, numbers, step)
    sentence = f"{best.name} is better than {base.name}, which imitates the log: {_change(section, best, base, gain)}."
    return Headline(f"{sentence} {_risk(section, best)}", numbers, _after_gain(section, best, base))


def _nothing_to_compare(section: Section) -> Headline:
    best = max(section.rows, key=lambda row: main_value(row, section))
    sentence = f"{best.name} ranks highest, with a {section.main_metric} of {short(main_value(best, section))}."
    step = "Add a run to compare: lpi train trains one, and an mle run stands for the policy that wrote the log."
    if section.baseline:
        step = "Train a policy that should be better than the log (lpi_rl, lpi_cb), and compare it with these."
    return Headline(sentence, [_js_number(section, best)], step)


def _change(section: Section, best: PolicyRow, base: PolicyRow, gain: Paired) -> str:
    new, old = main_value(best, section), main_value(base, section)
    if abs(new - old - gain.difference) > 1e-9:  # the gain is another pair of weights', which one figure kept
        return f"{section.main_metric} {gain.difference:+.4f} with epochs chosen alike, more than chance explains"
    digits = decimals([new])
    share = f" ({(new - old) / old:+.0%})" if old > 0 and known(old) else ""
    return f"{section.main_metric} {fixed(old, digits)} → {fixed(new, digits)}{share}, more than chance explains"


def _risk(section: Section, best: PolicyRow) -> str:
    further = beyond_floor(best.js, section.floor)
    if best.js is None or further is None:
        return "How far it moves from the log is not known yet."
    if not further:
        return "It stays as close to the log as a retrained copy would."
    times = times_floor(best.js, section.floor)
    if times is None:
        return "It moves away from the log."
    return f"It moves {short(times, 2)} times as far from the log as a retrained copy would."


def _simple_wins(section: Section, simple: PolicyRow, best: PolicyRow) -> str:
    return (
        f"No trained policy ranks above {simple.name}, a simple baseline: {section.main_metric} "
        f"{short(main_value(best, section))} of {best.name} against {short(main_value(simple, section))}."
    )


def _after_simple(simple: PolicyRow) -> str:
    return (
        f"Deploy none of the trained policies yet. Use {simple.name}, or improve the training (more epochs, a wider or "
        "tied model), until a trained policy is above it."
    )


def _after_gain(section: Section, best: PolicyRow, base: PolicyRow) -> str:
    step = f"Ask the gate (lpi gate {best.name} --against {base.name}), then test it online on a small share of users."
    if section.floor is None:
        step += " Train a second mle seed first, and give it with --against: without it the noise is unknown."
    if best.weights.get("effective_share", 1.0) < LEAST_EFFECTIVE:
        step += f" Its weights rest on less than {LEAST_EFFECTIVE:.0%} of the log: try a larger β."
    return step


def _gain_number(section: Section, best: PolicyRow, base: PolicyRow, gain: Paired | None) -> KeyNumber:
    name = f"{section.main_metric}: {best.name} minus {base.name}"
    if gain is None:
        return KeyNumber("?", name, "No gain is shown: the two were not made alike.")
    verdict = "beyond chance" if gain.sign else "may be chance"
    meaning = (
        "How high the item that people took stands in the list; 1 is always first. The difference is "
        f"{gain.low:+.4f} to {gain.high:+.4f} with 95 % confidence: {verdict}."
    )
    return KeyNumber(f"{gain.difference:+.4f}", name, meaning)


def _js_number(section: Section, best: PolicyRow) -> KeyNumber:
    name = f"distance of {best.name} from the log (JS)"
    if best.js is None:
        return KeyNumber("?", name, "It is not known: compare it with an mle run.")
    noise = (
        "Only a second mle seed would tell how much of it is noise."
        if section.floor is None
        else f"Two mle runs of different seeds differ by {short(section.floor.mean, 2)}: that much is noise."
    )
    return KeyNumber(short(best.js.mean, 2), name, f"0: it shows the same as before; 0.69: nothing in common. {noise}")


def _last_number(section: Section, best: PolicyRow, base: PolicyRow) -> KeyNumber:
    """The true reward, if a simulated world knows it; else how much of the catalogue it shows."""
    if best.gain is not None and section.logging_value is not None and section.logging_value.mean:
        share = best.gain.mean / section.logging_value.mean
        top = max((row for row in section.rows if row.gain), key=lambda row: row.gain.mean if row.gain else 0.0)
        most = "the most of all." if top is best or top.gain is None else (
            f"{top.name} earns most: {top.gain.mean / section.logging_value.mean:+.0%}."
        )  # fmt: skip
        return KeyNumber(f"{share:+.0%}", f"true reward of {best.name} over the log's policy", _truth(best.gain, most))
    meaning = (
        f"{base.name} reaches {percent(base.coverage)}. Far less means that everybody is shown the same few items."
    )
    name = f"of the catalogue is in some list of {section.lists} of {best.name}"
    return KeyNumber(percent(best.coverage), name, meaning)


def _truth(gain: Interval, most: str) -> str:
    caution = "" if gain.low > 0 or gain.high < 0 else " (its interval holds 0)"
    return f"The simulated world knows it{caution}; {most}"
