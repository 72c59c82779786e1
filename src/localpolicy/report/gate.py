"""A gate as a table and a page: the answer, its numbers, the next step, and every check with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from localpolicy.judge.claims import Claim
from localpolicy.judge.verdict import Gate
from localpolicy.measure.divergence import two_digits
from localpolicy.measure.number_text import NOTHING
from localpolicy.report.contents import JS_SCALE, Contents, KeyNumber, Section
from localpolicy.report.table import Column, Table

MARKS = {"yes": "yes", "no": "NO", "not asked": NOTHING}  # the others as they are
NAMES = {
    "reward per answer": "gain in reward per answer",
    "worth and number of answers": "worth and number of answers, together",
    "gain": "gain in {metric}",
    "value": "estimated gain in reward per {unit}",
    "return": "estimated gain in what a visit earns",
    "divergence": "distance from the log (JS)",
}
MEANINGS = {
    "reward per answer": "How much more would come of items that people had not met, had it chosen them (weights π/μ̂).",
    "worth and number of answers": "The relative change in what an answer is worth, plus that in nDCG@20, which stands "
    "for how many answers there would be.",
    "gain": "How much better it does than what is deployed, in the figure that decides.",
    "value": "From the log's propensities: what it would have earned, less what {against}.",
    "return": "All that a visit earns, since what is shown now changes what comes later.",
    "divergence": f"{JS_SCALE} The further, the riskier.",
}


def gate_tables(verdict: Gate, *, why: bool = False) -> list[Table]:
    """Tables of a verdict: its answer, then its checks; with `why` all checks with reasons and notes."""
    checks = checks_table(verdict.checks, why=why)
    decided = [] if verdict.decided_by == "nothing" else [f"Decided by: {decided_by(verdict)}."]
    left = len(verdict.checks) - len(checks.rows) + len(verdict.notes)
    more = [f"Note: {note}." for note in verdict.notes] if why else [f"{left} more with --why."] if left else []
    return [answer_table(verdict), replace(checks, note=" ".join([*decided, *more]))]


def answer_table(verdict: Gate) -> Table:
    """Table of the answer: reason with its number, what it is based on, caveats and the next step."""
    rows = [*answer_rows(verdict).items(), ("next", verdict.next_step)]
    title = f"{verdict.answer.upper()}: {verdict.evaluation.name} instead of {verdict.replaced}"
    return Table(title, [Column("", numeric=False)] * 2, rows)


def answer_rows(verdict: Gate) -> dict[str, str]:
    """Rows behind an answer by name: why, ground, and caveats if there are any."""
    but = {"but": "; ".join(verdict.caveats)} if verdict.caveats else {}
    return {"why": verdict.reason, "ground": verdict.ground_text, **but}


def checks_table(checks: Sequence[Claim], *, why: bool = False) -> Table:
    """Table of the checks that may refuse, with their numbers; with `why` of all checks with reasons."""
    shown = checks if why else [check for check in checks if check.asked or not check.judged]
    rows = [[check.figure, MARKS.get(check.outcome, check.outcome), *_found(check, why)] for check in shown]
    heads = ["check", "ok", "why"] if why else ["check", "ok", "found", "interval", "n"]
    return Table("", heads, rows, missing="the check has no such number", folds=True)


def _found(check: Claim, why: bool) -> tuple[str, ...]:
    """Cells of a check: its reason with `why`, else its value, interval and n."""
    if why:
        return (check.because,)
    return (*(text or NOTHING for text in check.found), f"{check.n:,}" if check.n else NOTHING)


def decided_by(verdict: Gate) -> str:
    """Display name of the metric or check that decided."""
    return value_text(verdict.deciding) if verdict.decided_by == "value" else verdict.decided_by


def numbered(notes: Iterable[str]) -> dict[str, str]:
    return {f"note {number}": note for number, note in enumerate(notes, start=1)}


def value_text(check: Claim) -> str:
    """Display name of the estimated value, with its unit."""
    return f"value (estimated reward per {check.unit.removesuffix('s')})"


def gate_headline(verdict: Gate) -> Contents:
    """First screen of a verdict's page: the answer, its key numbers and the next step."""
    told = [check for check in verdict.checks if check.asked or check.figure == "divergence"]
    numbers = [_number(check, verdict) for check in told if check.figure in NAMES and check.value is not None]
    return Contents(
        "Should it be deployed?", f"{verdict.headline}.", numbers=numbers, answer=answer_rows(verdict),
        next_step=verdict.next_step,
    )  # fmt: skip


def gate_contents(verdict: Gate) -> Contents:
    section = Section(
        "Every check",
        f"{verdict.evaluation.name} instead of {verdict.against}, on the same positions.",
        checks=verdict.checks,
        facts={
            "decided by": decided_by(verdict),
            **numbered(verdict.notes),
        },
    )
    return replace(gate_headline(verdict), sections=[section])


def _number(check: Claim, verdict: Gate) -> KeyNumber:
    if check.figure == "divergence":
        meaning = MEANINGS[check.figure]
        divergence = verdict.evaluation.divergence
        if divergence is not None and divergence.floor_js is not None:
            floor = two_digits(divergence.floor_js.overall.mean)
            meaning += f" Two estimates of the log differ by {floor}: that much is noise."
        return KeyNumber(f"{check.value:.3f}", NAMES[check.figure], meaning)
    form = "+.1%" if check.figure == "worth and number of answers" else "+.4f"
    against = "the log earned" if verdict.deployed is None else f"{verdict.against} would have earned"
    meaning = MEANINGS[check.figure].format(against=against)
    if check.low is not None and check.high is not None:
        share = f"{verdict.rules.confidence:.0%}"
        meaning += (
            f" {check.low:{form}} to {check.high:{form}} with {share} confidence, over {check.n or 0:,} {check.unit}."
        )
    name = NAMES[check.figure].format(metric=verdict.metric, unit=check.unit.removesuffix("s"))
    return KeyNumber(f"{check.value:{form}}", name, meaning)
