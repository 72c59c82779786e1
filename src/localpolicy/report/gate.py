"""A gate as a table and a page: the answer, its numbers, the next step, and every check with its reason."""

from __future__ import annotations

import shlex
from dataclasses import replace

from localpolicy.judge.claims import Claim, Gate
from localpolicy.report.contents import JS_SCALE, Contents, KeyNumber, Section
from localpolicy.report.table import NOTHING, Table

MARKS = {"yes": "yes", "no": "NO", "cannot tell": "cannot tell", "not asked": NOTHING}
NEXT = {
    "deploy": "Show it to a small share of the users first, and measure.",
    "do not deploy": "Keep what is deployed. The checks say what fell short.",
    "cannot tell": "Collect more of the log, or test online.",
    "nothing to decide": "Keep what is deployed. Say what each event is worth (rewards), and ask again.",
}
GROUNDS = {  # what to do where nothing can be judged, by the check that says so
    "order": "Prepare the log with its times, and ask again.",
    "training": "Train for longer (more minutes), and ask again.",
}
REMEDY = {  # by the check that said no
    "other events": "Or accept some loss there (rule max_event_loss), or take a larger β, which moves less.",
    "segments": "Or accept some loss there (rule max_segment_loss), or take a larger β, which moves less.",
    "divergence": "Or take a larger β, which moves less.",
}
INSTEAD = "Serve '{}' ({} saves it), or find out what it knows that the policy does not."
NAMES = {
    "reward per answer": "gain in reward per answer",
    "gain": "gain in {metric}",
    "value": "estimated gain in reward per decision",
    "divergence": "distance from the log (JS)",
}
MEANINGS = {
    "reward per answer": "How much more would come of items that people had not met, had it chosen them (weights π/μ̂).",
    "gain": "How much better it does than what is deployed, in the figure that decides.",
    "value": "From the log's propensities: what it would have earned, less what the log earned.",
    "divergence": f"{JS_SCALE} The further, the riskier.",
}


def gate_table(verdict: Gate) -> Table:
    """Every check, under the answer."""
    rows = [[check.figure, MARKS[check.outcome], check.because] for check in verdict.checks]
    title = f"{verdict.answer.upper()}: {verdict.evaluation.name} instead of {verdict.against}"
    note = " ".join([verdict.sentence, *(f"Note: {note}." for note in verdict.notes)])
    return Table(title, ["check", "ok", "why"], rows, note)


def gate_headline(verdict: Gate) -> Contents:
    """The first screen of a page: the answer, the numbers behind it, and what to do."""
    told = [check for check in verdict.checks if check.asked or check.figure == "divergence"]
    numbers = [_number(check, verdict) for check in told if check.figure in NAMES and check.value is not None]
    instead = next((check.instead for check in verdict.checks if check.instead), None)
    step = NEXT[verdict.answer]
    if verdict.answer == "cannot tell" and any(check.needed is not None for check in verdict.checks):
        step += " The checks say how much would tell."
    if instead is not None:
        name = instead.replace(" ", "-").lower()
        saves = f"lpi train {shlex.quote(str(verdict.data or 'DATA'))} --objective {name} --out {name}"
        step = INSTEAD.format(instead, saves)
    step = GROUNDS.get(verdict.checks[0].figure, step)
    failed = {check.figure for check in verdict.checks if check.outcome == "no"}
    if instead is None and len(failed) == 1:
        step = " ".join([step, *(REMEDY[name] for name in failed if name in REMEDY)])
    return Contents("Should it be deployed?", verdict.sentence, numbers=numbers, next_step=step)


def gate_claims(verdict: Gate) -> list[Claim]:
    """Every check that was asked for."""
    return [check for check in verdict.checks if check.asked]


def gate_contents(verdict: Gate) -> Contents:
    """A page of the gate alone."""
    section = Section(
        "Every check",
        f"{verdict.evaluation.name} instead of {verdict.against}, on the same positions.",
        claims=gate_claims(verdict),
        facts={f"note {number}": note for number, note in enumerate(verdict.notes, start=1)},
    )
    return replace(gate_headline(verdict), sections=[section])


def _number(check: Claim, verdict: Gate) -> KeyNumber:
    value = f"{check.value:.3f}" if check.figure == "divergence" else f"{check.value:+.4f}"
    meaning = MEANINGS[check.figure]
    divergence = verdict.evaluation.divergence
    if check.figure == "divergence" and divergence is not None and divergence.floor_js is not None:
        meaning += f" Two estimates of the log differ by {divergence.floor_js.overall.mean:.3f}: that much is noise."
    if check.figure != "divergence" and check.low is not None and check.high is not None:
        share = f"{verdict.rules.confidence:.0%}"
        meaning += (
            f" {check.low:+.4f} to {check.high:+.4f} with {share} confidence, over {check.n or 0:,} {check.unit}."
        )
    return KeyNumber(value, NAMES[check.figure].format(metric=verdict.metric), meaning)
