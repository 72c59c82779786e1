"""What must hold before anything can be judged: sequences in the order of time, and estimates that learned the log.

Where one does not hold no other check decides: its figures speak of the file, or of the training's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from localpolicy.data.store import Prepared
from localpolicy.judge.gate_checks import Check
from localpolicy.judge.gate_rules import GateRules
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.question import Question, question_of
from localpolicy.measure.row_order import sorted_by, tied_share
from localpolicy.measure.significance import paired
from localpolicy.runs.run import Run

MOST_TIED = 0.5  # of the steps within sequences


def without_grounds(checks: Sequence[Check], data: Prepared, training: Check | None, question: Question) -> list[Check]:
    """The same, or what takes away the ground from them, with all of them as facts that refuse nothing."""
    doubt = (
        None if question.kind == "nothing" else order_check(data) or (training if question.kind != "value" else None)
    )
    if doubt is None:
        return list(checks)
    idle = [
        replace(check, outcome="not asked", reason=f"not asked, since {doubt.plain}: {check.reason}", instead=None)
        for check in checks
    ]
    return [doubt, *idle]


def order_check(data: Prepared) -> Check | None:
    """In rows that no time orders, but something else, what models learn is how the file was written."""
    column, tied = sorted_by(data), tied_share(data)
    if column is not None:
        why = f"the log has no times and its rows are sorted by {column}"
        remedy = "Prepare the log with its times (--columns timestamp=NAME)"
    elif tied > MOST_TIED and question_of(data).kind == "rewards":  # of other logs the order within a tie is by lot
        why = (
            f"{tied:.0%} of the rows that follow another carry its very time, as where times are days: of these, "
            "purchases and the like are put last"
        )
        remedy = "Prepare the log with finer times"
    else:
        return None
    reason = f"{why}. A model of sequences predicts that order, and its figures say nothing of people. {remedy}"
    return Check("order", "cannot tell", reason, plain="the order of the rows is not that of time")


def training_check(
    evaluation: Evaluation, popularity: np.ndarray, estimates: Mapping[str, Run], rules: GateRules
) -> Check | None:
    """Where the clock ended training before the estimates had learned the log, verdicts would speak of the clock alone.

    Before, an untrained model was refused for popularity, and popularity was to be deployed. The value of a baseline is
    estimated without them, and stands.
    """
    scores, said = evaluation.scores, []
    for name, logp in scores.logp_reference.items():
        run = estimates.get(name)
        if run is None or not run.out_of_time:
            continue
        over = paired(logp, popularity, scores.sequence, confidence=rules.confidence)
        if over.low <= 0:
            said.append(
                f"{name} stopped in epoch {run.manifest['epochs'] + 1} of {run.config.train.epochs}, with a "
                f"log-likelihood of {logp.mean():.3f} where popularity has {popularity.mean():.3f}"
            )
    if not said:
        return None
    reason = (
        f"the time was over before the models had learned significantly more of the log than popularity: "
        f"{'; '.join(said)}. What was measured says nothing of what these models can do. Train for longer"
    )
    return Check("training", "cannot tell", reason, plain="the time was over before the models had learned the log")
