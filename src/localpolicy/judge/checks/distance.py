"""How far does it move from the log, and did the estimates of the log, which that is measured from, learn it?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple

import numpy as np

from localpolicy.data.store import NO_ANSWER
from localpolicy.errors import ConfigError
from localpolicy.judge.case import Case
from localpolicy.judge.claims import Claim, Outcome, check
from localpolicy.judge.rules import CLOSE, GateRules
from localpolicy.measure.divergence import Divergence, two_digits
from localpolicy.measure.estimate import Interval
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.position_metrics import Scores
from localpolicy.measure.significance import paired
from localpolicy.runs.run import Run


def divergence_checks(divergence: Divergence | None, rules: GateRules) -> list[Claim]:
    """Claims that JS is within its budget and a multiple of the floor; ConfigError for a budget below the floor."""
    if divergence is None:
        reason = "no reference estimates the logging policy: give an mle run with --against"
        plain = "its distance from the log is not known"
        return [check("divergence", "cannot tell" if rules.bounds_distance else "not asked", reason, plain=plain)]
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


def within_budget(case: Case) -> list[Claim]:
    """Claims that the divergence from the estimates of the log stays within the rules' budgets."""
    return divergence_checks(case.evaluation.divergence, case.rules)


# ---------------------------------------------------------------------- the estimates of the log


def training_check(
    evaluation: Evaluation, popularity: np.ndarray, estimates: Mapping[str, Run], rules: GateRules
) -> Claim | None:
    """ "Cannot tell" if the time limit ended training before an estimate of the log beat popularity, else None.

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
    """Name of the popularity that estimates of the log are compared with: of shown items, or of answered ones."""
    return "the popularity of all that was shown" if NO_ANSWER in scores.events else "popularity"


def reference_fit_check(new: Evaluation, popularity: np.ndarray, items: int, rules: GateRules) -> Claim:
    """Claim that every reference predicts the log better than uniform and not much worse than popularity.

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


def reference_fit(case: Case) -> list[Claim]:
    """Claim that every estimate of the log predicts it well enough; none if the rules turn the check off.

    Where the logged propensities decide, no estimate of the log does: what is deployed may be far from a log that was
    drawn with an exploration floor, or by several policies.
    """
    if not case.rules.reference_fit:
        return []
    claim = reference_fit_check(case.evaluation, case.popular, case.data.n_items, case.rules)
    if case.question.kind != "value" or case.rules.bounds_distance:
        return [claim]
    return [claim.as_fact("the value depends on logged propensities, and no rule bounds the distance")]


def out_of_time(case: Case) -> Claim | None:
    """Claim "cannot tell" if the time limit ended training before the estimates beat popularity, else None."""
    trained = {each.name: each.run for each in case.estimates if each.run is not None and case.rules.reference_fit}
    return training_check(case.evaluation, case.popular, trained, case.rules)
