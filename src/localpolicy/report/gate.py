"""A gate as a table and a page: the answer, its numbers, the next step, and every check with its reason."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace

from localpolicy.judge.claims import Claim, Gate
from localpolicy.judge.gate import ONE_RUN, TWO_SEEDS
from localpolicy.measure.divergence import two_digits
from localpolicy.report.contents import JS_SCALE, Contents, KeyNumber, Section
from localpolicy.report.table import NOTHING, Table

MARKS = {"yes": "yes", "no": "NO", "not asked": NOTHING}  # the others as they are
NEXT = {
    "deploy": "Show it to a small share of the users first, and measure.",
    "do not deploy": "Keep what is deployed. The checks say what fell short.",
    "nothing to decide": "Keep what is deployed.",
}
WORTH = (
    "Keep what is deployed until the log says what each event is worth: log what came of it (a purchase, a rating), "
    "prepare the log with that (lpi prepare ... --rewards purchase=1,view=0.2), and train again. If ranks alone are "
    "what you want, serve the model that ranks highest."
)
ONLINE = "Test online."
PROPENSITIES = "Log with what probability each item was shown (propensities), or test online."
MORE = "Collect more of the log (the answer says how much would tell), or test online."
OPEN = {  # what to do where a check cannot tell, and more of the log would not help
    "order": "Prepare the log with its times, and ask again.",
    "training": "Train for longer (more minutes), and ask again.",
    "value": "Keep what is deployed, or take a larger β, which stays nearer to the log, and ask again.",
    "reward per answer": PROPENSITIES,
    "worth and number of answers": PROPENSITIES,
    "baselines": "Test both online.",
    "divergence": "Hold out more sequences, or raise the budget (rule max_js).",
    "divergence over floor": "Give a second mle run of another seed with --against, and ask again.",
    "reference fit": "Train the estimates of the log for longer, and ask again.",
}
STAYS = (
    "Keep what is deployed. The new policy is an estimate of the log, so a test online would test a copy of what wrote "
    "it: collect more of the log, and train again."
)
REMEDY = {  # by the check that said no
    "other events": "Or accept some loss there (rule max_event_loss), or take a larger β, which moves less.",
    "segments": "Or accept some loss there (rule max_segment_loss), or take a larger β, which moves less.",
    "divergence": "Or take a larger β, which moves less.",
}
INSTEAD = "Serve '{}' ({} saves it), or find out what it knows that the policy does not."
NAMES = {
    "reward per answer": "gain in reward per answer",
    "worth and number of answers": "worth and number of answers, together",
    "gain": "gain in {metric}",
    "value": "estimated gain in reward per {unit}",
    "divergence": "distance from the log (JS)",
}
MEANINGS = {
    "reward per answer": "How much more would come of items that people had not met, had it chosen them (weights π/μ̂).",
    "worth and number of answers": "The relative change in what an answer is worth, plus that in nDCG@20, which stands "
    "for how many answers there would be.",
    "gain": "How much better it does than what is deployed, in the figure that decides.",
    "value": "From the log's propensities: what it would have earned, less what {against}.",
    "divergence": f"{JS_SCALE} The further, the riskier.",
}


def gate_table(verdict: Gate) -> Table:
    """Every check, under the answer."""
    rows = [[check.figure, MARKS.get(check.outcome, check.outcome), check.because] for check in verdict.checks]
    title = f"{verdict.answer.upper()}: {verdict.evaluation.name} instead of {verdict.against}"
    decided = [] if verdict.answer == "nothing to decide" else [f"Decided by: {decided_by(verdict)}."]
    said = [verdict.sentence, *decided, f"Next: {next_step(verdict)}", *(f"Note: {note}." for note in verdict.notes)]
    return Table(title, ["check", "ok", "why"], rows, " ".join(said))


def decided_by(verdict: Gate) -> str:
    """What made the answer, as people say it."""
    return value_said(verdict.deciding) if verdict.decided_by == "value" else verdict.decided_by


def numbered(notes: Iterable[str]) -> dict[str, str]:
    """Notes as facts of a page."""
    return {f"note {number}": note for number, note in enumerate(notes, start=1)}


def value_said(check: Claim) -> str:
    """The estimated value as people say it."""
    return f"value (estimated reward per {check.unit.removesuffix('s')})"


def next_step(verdict: Gate) -> str:
    """What to do now: it follows the check that said no, or the first two that could not tell."""
    if (instead := verdict.deciding.instead) is not None:
        name = instead.replace(" ", "-").lower()
        saves = f"lpi train {shlex.quote(str(verdict.data or 'DATA'))} --objective {name} --out {name}"
        return INSTEAD.format(instead, saves)
    if verdict.answer == "cannot tell":
        unsure = [check for check in verdict.checks if check.outcome == "cannot tell" and check.plain]
        if verdict.stays and unsure[0].figure not in ("order", "training"):
            return STAYS
        steps = [OPEN.get(check.figure, ONLINE) if check.needed is None else MORE for check in unsure]
        return " ".join(list(dict.fromkeys(steps))[:2])
    if verdict.answer == "nothing to decide" and verdict.question not in (ONE_RUN, TWO_SEEDS):
        return WORTH
    failed = {check.figure for check in verdict.checks if check.outcome == "no"}
    remedies = [REMEDY[name] for name in failed if name in REMEDY] if len(failed) == 1 else []
    return " ".join([NEXT[verdict.answer], *remedies])


def gate_headline(verdict: Gate) -> Contents:
    """The first screen of a page: the answer, the numbers behind it, and what to do."""
    told = [check for check in verdict.checks if check.asked or check.figure == "divergence"]
    numbers = [_number(check, verdict) for check in told if check.figure in NAMES and check.value is not None]
    return Contents("Should it be deployed?", verdict.sentence, numbers=numbers, next_step=next_step(verdict))


def gate_contents(verdict: Gate) -> Contents:
    """A page of the gate alone."""
    section = Section(
        "Every check",
        f"{verdict.evaluation.name} instead of {verdict.against}, on the same positions.",
        claims=verdict.checks,
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
