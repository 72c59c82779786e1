"""What a comparison found, in sentences: who leads, whether that is sure, how far it moved."""

from __future__ import annotations

from localpolicy.evaluation.baselines import BASELINES
from localpolicy.evaluation.compare import SURE, Comparison
from localpolicy.report.contents import Finding, PolicyRow, Section
from localpolicy.report.html.tables import FEW
from localpolicy.report.numbers import beyond_floor, fixed, interval_text, known, places, short


def comparison_verdict(comparison: Comparison, section: Section) -> str:
    """Best by the main metric, is the lead sure, how far has it moved; and what it earns, where a world tells."""
    best = _best(section)
    parts = [_lead(comparison, section, best)]
    if _simple(best) and (trained := _trained(section)):  # nobody retrains in order to deploy a simple baseline
        best = max(trained, key=lambda row: _value(row, section))
        parts.append(f"Of the trained policies {best.name} ranks highest, with {short(_value(best, section))}.")
    parts.append(_moved(section, best))
    if best.gain is not None and section.logging_value is not None:
        parts.append(_earns(section, best))
    return " ".join(parts)


def comparison_findings(comparison: Comparison, section: Section) -> list[Finding]:
    """The questions one asks before a test, each with its answer."""
    best = _best(section)
    found = [_is_sure(comparison, section, best), _has_moved(section, best), *_beats_simple(section)]
    found += [_listens(section)] if any(row.weights for row in section.rows) else []
    found += [_metric_picks_truth(section, best)] if len([row for row in section.rows if row.truth]) > 1 else []
    return found


def _value(row: PolicyRow, section: Section) -> float:
    """The main metric; a figure that is missing loses."""
    figure = row.metrics[section.main_metric]
    return figure.mean if known(figure.mean) else float("-inf")


def _best(section: Section) -> PolicyRow:
    return max(section.rows, key=lambda row: _value(row, section))


def _simple(row: PolicyRow) -> bool:
    return row.objective in BASELINES


def _trained(section: Section) -> list[PolicyRow]:
    return [row for row in section.rows if not _simple(row)]


def _lead(comparison: Comparison, section: Section, best: PolicyRow) -> str:
    named = f"{best.name}{', a simple baseline,' if _simple(best) else ''}"
    value, lead = _value(best, section), comparison.leads.get(comparison.main)
    if lead is None:
        return f"{named} has a {section.main_metric} of {short(value)}."
    second = sorted(section.rows, key=lambda row: -_value(row, section))[1]
    digits = places([value])
    sure = "is sure" if lead.holm_p < SURE else "could be chance"
    return (
        f"{named} leads by {section.main_metric}: {fixed(value, digits)} against "
        f"{fixed(_value(second, section), digits)} of {second.name}, a lead that {sure}."
    )


def _moved(section: Section, best: PolicyRow) -> str:
    if best.js is None:
        return "How far it moved from the log is not known: compare it with an mle run."
    js = short(best.js.mean, 2)
    if section.floor is None:
        return f"It moved JS {js} from the log; how much of that is noise, only a second mle seed would tell."
    if not beyond_floor(best.js, section.floor):
        floor = short(section.floor.mean, 2)
        return f"At JS {js} from the log it is not surely further than another seed would be (floor {floor})."
    if section.floor.mean == 0:
        return f"It moved JS {js} from the log; the noise floor is 0."
    times = short(best.js.mean / section.floor.mean, 2)
    return f"It moved JS {js} from the log, {times} times the noise floor."


def _earns(section: Section, best: PolicyRow) -> str:
    assert best.gain is not None and section.logging_value is not None
    share = best.gain.mean / section.logging_value.mean
    text = f"In truth it earns {share:+.0%} over the logging policy"
    top = max((row for row in section.rows if row.gain), key=lambda row: row.gain.mean if row.gain else 0.0)
    if top is best or top.gain is None:
        return f"{text}, the most of all."
    return f"{text}; {top.name} earns most, {top.gain.mean / section.logging_value.mean:+.0%}."


def _is_sure(comparison: Comparison, section: Section, best: PolicyRow) -> Finding:
    lead = comparison.leads.get(comparison.main)
    claim = f"the lead of {best.name} in {section.main_metric} is sure"
    if lead is None:
        return Finding(claim, None, "there is nothing to lead")
    test = lead.test
    return Finding(
        claim,
        lead.holm_p < SURE,
        f"{test.difference:+.4f} over the second, 95 % interval {test.low:+.4f} to {test.high:+.4f}; "
        f"p = {lead.holm_p:.2g}, corrected for {len(comparison.columns)} columns; {test.n:,} positions",
    )


def _has_moved(section: Section, best: PolicyRow) -> Finding:
    claim = f"{best.name} moved further than noise"
    if best.js is None:
        return Finding(claim, None, "no reference was given")
    if section.floor is None:
        return Finding(claim, None, f"JS {interval_text(best.js)}; the floor needs two mle runs of different seeds")
    digits = places([best.js.mean, section.floor.mean])
    js, floor = interval_text(best.js, digits), interval_text(section.floor, digits)
    because = f"JS {js} from the reference, noise floor {floor}"
    return Finding(claim, beyond_floor(best.js, section.floor), because)


def _beats_simple(section: Section) -> list[Finding]:
    simple = [row for row in section.rows if _simple(row)]
    trained = _trained(section)
    if not simple or not trained:
        return []
    strongest = max(simple, key=lambda row: _value(row, section))
    below = [row.name for row in trained if _value(row, section) <= _value(strongest, section)]
    because = f"{strongest.name} has {section.main_metric} {short(_value(strongest, section))}"
    because += f"; not above it: {', '.join(below)}" if below else "; all are above it"
    return [Finding("every trained policy ranks above the simple baselines", not below, because)]


def _listens(section: Section) -> Finding:
    shares = {row.name: row.weights["effective_share"] for row in section.rows if "effective_share" in row.weights}
    few = [f"{name} ({share:.1%})" for name, share in shares.items() if share < FEW]
    because = f"below it: {', '.join(few)}" if few else f"the least is {min(shares.values()):.0%}"
    return Finding(f"weights listen to at least {FEW:.0%} of the log", not few, because)


def _metric_picks_truth(section: Section, best: PolicyRow) -> Finding:
    top = max((row for row in section.rows if row.truth), key=lambda row: row.truth.mean if row.truth else 0.0)
    claim = f"{section.main_metric} on the log picks the policy that earns most"
    digits = places([row.truth.mean for row in (top, best) if row.truth])
    because = f"{top.name}: J {interval_text(top.truth, digits)}; {best.name}: J {interval_text(best.truth, digits)}"
    return Finding(claim, top.name == best.name, because)
