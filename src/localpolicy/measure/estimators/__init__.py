"""Every estimator of a policy's value, one file each, found by its name: `ESTIMATORS` is the only list of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from localpolicy.errors import ConfigError, nearest
from localpolicy.measure.decisions import Decisions
from localpolicy.measure.estimators.base import INTERVAL as INTERVAL
from localpolicy.measure.estimators.base import Estimator as Estimator
from localpolicy.measure.estimators.base import ValueEstimate as ValueEstimate
from localpolicy.measure.estimators.base import logged as logged
from localpolicy.measure.estimators.dm import DM
from localpolicy.measure.estimators.dr import DR, SNDR
from localpolicy.measure.estimators.ips import IPS, ClippedIPS
from localpolicy.measure.estimators.log_smoothing import LogSmoothing
from localpolicy.measure.estimators.snips import SNIPS
from localpolicy.measure.intervals import Contributions as Contributions
from localpolicy.measure.intervals import skewed as skewed

ESTIMATORS: dict[str, Estimator] = {  # in the order in which tables list them
    each.name: each for each in (IPS(), SNIPS(), DM(), DR(), SNDR(), ClippedIPS(), LogSmoothing())
}
CHOOSING = tuple(name for name, each in ESTIMATORS.items() if each.chooses)  # `train.estimator`
JUDGING = tuple(name for name, each in ESTIMATORS.items() if each.judges)  # `estimator` of rules


def by_name(name: str | Estimator, among: tuple[str, ...] | None = None, *, key: str = "") -> Estimator:
    """Estimator of this name (`snips`, or `SNIPS` as in tables); an estimator is returned as it is.

    `among` says which will do, and `key` is the setting that an error names.
    """
    if isinstance(name, Estimator):
        return name
    known = among or tuple(ESTIMATORS)
    called = name.lower().replace(" ", "_")
    if called not in known:
        why = "" if called not in ESTIMATORS else f" {ESTIMATORS[called].title} has no interval that is valid here."
        raise ConfigError(f"{key and f'{key}: '}no estimator '{name}'{nearest(called, known)}.{why}")
    return ESTIMATORS[called]


Judging = Annotated[str, AfterValidator(lambda name: by_name(name, JUDGING).name)]  # a setting


def contributions(log: Decisions, estimator: str) -> Contributions:
    """Contributions of every decision (or list) to the estimator of this name, and each reward's leverage."""
    return by_name(estimator).contributions(log)
