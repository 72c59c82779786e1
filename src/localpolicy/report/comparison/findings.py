"""What a comparison found, in sentences: which policy leads, is that beyond chance, how far did it move."""

from __future__ import annotations

from localpolicy.judge.comparison import Comparison
from localpolicy.measure.baselines import BASELINES
from localpolicy.measure.divergence import beyond_floor
from localpolicy.measure.off_policy.overlap import LEAST_EFFECTIVE
from localpolicy.report.contents import CheckedClaim, PolicyRow, Section
from localpolicy.report.numbers import decimals, interval_text, known, short


def comparison_findings(comparison: Comparison, section: Section) -> list[CheckedClaim]:
    """The questions to ask before an online test, each with its answer."""
    best = best_row(section)
    findings = [_is_sure(comparison, section, best), _has_moved(section, best), *_beats_simple(section)]
    findings += _seen_by_js(comparison, section) + _alike(comparison)
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
