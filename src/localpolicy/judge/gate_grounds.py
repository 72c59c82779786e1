"""What the gate's checks rest on: sequences in the order of time, estimates that learned the log, distances from these.

Where the rows are not in the order of time, or the clock ended training, no other check decides: its figures speak of
the file, or of the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple

import numpy as np

from localpolicy.data.store import CONTEXT, NO_ANSWER, Prepared
from localpolicy.data.times import FEWEST_STEPS, seems_sorted
from localpolicy.errors import ConfigError
from localpolicy.judge.claims import Claim, Outcome, check
from localpolicy.judge.rules import CLOSE, GateRules
from localpolicy.measure.divergence import Divergence, two_digits
from localpolicy.measure.estimate import Interval
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.metrics import Question, question_of
from localpolicy.measure.significance import paired
from localpolicy.measure.summary import Scores
from localpolicy.runs.run import Run

MOST_TIED = 0.5  # of the steps within sequences


def without_grounds(checks: Sequence[Claim], data: Prepared, training: Claim | None, question: Question) -> list[Claim]:
    """The same, or what takes away the ground from them, with all of them as facts that refuse nothing."""
    if question.kind == "nothing":
        return [each.as_fact("there is nothing to decide") for each in checks]
    doubt = order_check(data) or (training if question.kind != "value" else None)
    return list(checks) if doubt is None else [doubt, *(each.as_fact(doubt.plain) for each in checks)]


def order_check(data: Prepared) -> Claim | None:
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
    return check("order", "cannot tell", reason, plain="the order of the rows is not that of time")


def training_check(
    evaluation: Evaluation, popularity: np.ndarray, estimates: Mapping[str, Run], rules: GateRules
) -> Claim | None:
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
                f"{name} stopped after epoch {run.manifest['epochs']} of {run.config.train.epochs}, with a "
                f"log-likelihood of {logp.mean():.3f} where {_popular(scores)} has {popularity.mean():.3f}"
            )
    if not said:
        return None
    reason = (
        f"the time was over before the models had learned significantly more of the log than popularity: "
        f"{'; '.join(said)}. What was measured says nothing of what these models can do. Train for longer"
    )
    return check("training", "cannot tell", reason, plain="the time was over before the models had learned the log")


def _popular(scores: Scores) -> str:
    """The popularity that estimates of the log are compared with; the policy of this name is that of answers."""
    return "the popularity of all that was shown" if NO_ANSWER in scores.events else "popularity"


def reference_fit_check(new: Evaluation, popularity: np.ndarray, items: int, rules: GateRules) -> Claim:
    """Every reference predicts the log significantly better than uniform, and not significantly worse than popularity.

    Worse counts from `CLOSE` on. Where propensities were logged and μ̂ reaches their likelihood to within as much, it
    has learned all there is, even if that is uniform.
    """
    scores, poor, unanswered = new.scores, dict[str, str](), NO_ANSWER in new.scores.events
    if not scores.logp_reference:
        return check("reference fit", "not asked", "no reference to measure the distance from")
    popular = _popular(scores)
    for name, logp in scores.logp_reference.items():
        over_uniform = paired(logp, np.full(len(logp), -math.log(items)), scores.sequence, confidence=rules.confidence)
        over_popular = paired(logp, popularity, scores.sequence, confidence=rules.confidence)
        learned = over_uniform.low > 0 and over_popular.high > -CLOSE  # some logs are popularity, and no more
        among = scores.logp_open_reference.get(name, logp)  # as propensities are: of what could be chosen
        if scores.propensity is not None and (known := ~np.isnan(scores.propensity + among)).any():
            true = np.log(scores.propensity[known])
            learned |= paired(among[known], true, scores.sequence[known], confidence=rules.confidence).low > -CLOSE
        if not learned:
            worse = f"significantly worse than {popular}, by more than {CLOSE:g} nats"
            poor[name] = worse if over_uniform.low > 0 else "no better than chance"
    over = " over the whole catalogue" if scores.logp_open_reference else ""  # a table has that among the open ones
    means = ", ".join(f"{name} {logp.mean():.3f}" for name, logp in scores.logp_reference.items())
    answered = " (the policy called popularity is that of what was answered)" if unanswered else ""
    said = (
        f"log-likelihood{over}: {means}, uniform {-math.log(items):.3f}, {popular} {popularity.mean():.3f}{answered}, "
        f"n {len(scores):,}"
    )
    plain = ""
    if poor:
        worse = f"predicts the log {' or '.join(sorted(set(poor.values())))}, so no distance can be measured from it"
        plain = f"a reference {worse}"
        said += f". {', '.join(poor)} {worse}: train it longer, or on more of the log"
    return check("reference fit", "cannot tell" if poor else "yes", said, n=len(scores), plain=plain)


def divergence_checks(divergence: Divergence | None, rules: GateRules) -> list[Claim]:
    """JS within the budget, and within so many times the floor. A budget below the floor is refused."""
    asked = rules.max_js is not None or rules.max_floor_ratio is not None
    if divergence is None:
        reason = "no reference estimates the logging policy: give an mle run with --against"
        plain = "its distance from the log is not known"
        return [check("divergence", "cannot tell" if asked else "not asked", reason, plain=plain)]
    js, budget, most = divergence.js.overall, rules.max_js, rules.max_floor_ratio
    floor = None if divergence.floor_js is None else divergence.floor_js.overall.mean
    noise = "" if floor is None else two_digits(floor)
    beside = f"floor {noise}" if noise else "noise floor not known (give a second reference of another seed)"
    names = ", ".join(reference.name for reference in divergence.references)
    if budget is not None and floor is not None and budget < floor:
        raise ConfigError(
            f"max_js: a budget of {budget:g} is below the noise floor ({noise} between {names}): a retrained "
            "copy of the deployed policy would fail it. Raise the budget."
        )
    _, low, high = astuple(Interval.from_estimate(js, confidence=rules.confidence))
    outcome: Outcome = "not asked"
    if budget is not None:
        outcome = "yes" if high <= budget else "no" if low > budget else "cannot tell"
    reason = (
        f"JS {js.mean:.4f} ({low:.4f} to {high:.4f}, n {js.n:,}) from {names}; {beside}; "
        f"{'no budget set (max_js)' if budget is None else f'budget {budget:g}'}"
    )
    plain = f"it {'moves' if outcome == 'no' else 'may move'} further from the log than the budget allows"
    checks = [check("divergence", outcome, reason, js.mean, low, high, js.n, plain=plain)]
    if most is not None and (ratio := divergence.above_floor) is None:
        reason, plain = f"{beside}, and max_floor_ratio asks for it", "the noise floor is not known"
        checks.append(check("divergence over floor", "cannot tell", reason, plain=plain))
    elif most is not None and ratio is not None:
        reason = f"{ratio:.1f} times the floor; at most {most:g}"
        plain = f"it moves {ratio:.1f} times as far from the log as noise does"
        within: Outcome = "yes" if ratio <= most else "no"
        checks.append(check("divergence over floor", within, reason, ratio, n=js.n, plain=plain))
    return checks


# ---------------------------------------------------------------------- in the order of time?

# Where the rows of a log without times are sorted by something else, its sequences are no histories: a model of
# sequences then predicts how the file was written, and its figures say nothing of people.


def tied_share(data: Prepared) -> float:
    """Of the steps within sequences, those to a row of the very same time, which `prepare` orders by worth and lot.

    What a request brought has the time of its list, and its own order.
    """
    if "time" not in data["train"].arrays:
        return 0.0
    counted = _within(data)
    if CONTEXT in data.events:  # neither a row of context nor the one after it
        context = _column(data, "event") == data.events.index(CONTEXT)
        counted &= ~context & ~np.roll(context, 1)
    ties = np.diff(_column(data, "time"), prepend=-1)[counted] == 0
    return float(ties.mean()) if len(ties) >= FEWEST_STEPS else 0.0


def sorted_by(data: Prepared) -> str | None:
    """The column, by the log's name, that the rows of each sequence are sorted by; None where times order them.

    Kinds of action are left out: a visit that ends with its purchase is in the order of time.
    """
    if "time" in data["train"].arrays:
        return None
    asked = {"item_id": _places(data)[_column(data, "item")]}
    if question_of(data).kind == "liking":
        asked["reward"] = _column(data, "reward")
    for ours, values in asked.items():
        if seems_sorted(*_steps(values, data)):
            columns = data.manifest["settings"].get("columns", {})
            return str(columns.get(ours) or columns.get("event" if ours == "reward" else ours) or ours)
    return None


def _steps(values: np.ndarray, data: Prepared) -> tuple[int, float, float]:
    """Steps between rows of a sequence that differ, the share of them that goes up, and how far they reach."""
    moved = np.diff(values, prepend=values[:1])[_within(data)]
    steps, ups = int((moved != 0).sum()), int((moved > 0).sum())
    places, begins = np.searchsorted(np.sort(values), values) / len(values), _begins(data)
    ends = np.append(begins[1:], len(values)) - 1
    reach = np.abs(places[ends] - places[begins])[ends > begins]
    return steps, ups / max(steps, 1), float(reach.mean()) if len(reach) else 0.0


def _column(data: Prepared, name: str) -> np.ndarray:
    """A column of all rows, each of them once."""
    return np.concatenate([data[split].arrays[name] for split in data.whole_splits])


def _begins(data: Prepared) -> np.ndarray:
    """The first row of each sequence."""
    lengths = np.concatenate([np.diff(data[split].offsets) for split in data.whole_splits])
    return np.asarray((np.cumsum(lengths) - lengths)[lengths > 0])


def _within(data: Prepared) -> np.ndarray:
    """Rows that come after another of their sequence; places of a list are no steps."""
    within = np.ones(len(_column(data, "item")), dtype=bool)
    within[_begins(data)] = False
    return within & (_column(data, "above") == 0) if "above" in data["train"].arrays else within


def _places(data: Prepared) -> np.ndarray:
    """Each item's place among all, by number where ids are numbers."""
    ids = data.catalogue["item_id"].to_numpy(zero_copy_only=False)
    try:
        ids = ids.astype(np.float64)
    except ValueError:
        ids = ids.astype(str)
    return np.unique(ids, return_inverse=True)[1]
