"""Objectives: one small file each, and this dict. Adding one = one file + one line here + one row in the docs.

All maximise Σ w(x,a) log π(a|x) with a constant weight w, minus auxiliary losses; docs/objectives.md has the table.
One from outside is a subclass of `Objective`: passed as an object, named as `package.module:Name`, or registered by an
installed package under the entry point group `localpolicy.objectives`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationInfo

from localpolicy import plugins
from localpolicy.errors import ConfigError, nearest
from localpolicy.objectives.importance import IPS, IPSPG
from localpolicy.objectives.lpi import LPI, LPIBandit
from localpolicy.objectives.lpi_weighted import LPIWeighted, LPIWeightedBandit
from localpolicy.objectives.mle import MLE
from localpolicy.objectives.objective import Objective, RecordedObjective
from localpolicy.objectives.observed import LPIObserved, RewardWeighted
from localpolicy.objectives.pg import PG
from localpolicy.objectives.sac import SAC
from localpolicy.objectives.sqn import SQN

DEFAULT = "lpi_cb"
OBJECTIVES: dict[str, type[Objective]] = {
    "mle": MLE,
    "reward_weighted": RewardWeighted,
    "ips": IPS,
    "pg": PG,
    "ips_pg": IPSPG,
    "lpi_observed": LPIObserved,
    "lpi_cb": LPIBandit,
    "lpi_cb_weighted": LPIWeightedBandit,
    "sqn": SQN,
    "sac": SAC,
    "lpi_rl": LPI,
    "lpi_rl_weighted": LPIWeighted,
}
# A setting that one variant of an objective reads and another does not.
_VARIANTS = {"negatives": "q_sampled", "target": "next_value", "logging": "logp_logging", "td_weight": "q_fit"}


def find(name: str) -> type[Objective] | None:
    """Class of the objective of this name: ours, a registered one, or an imported one; None if there is none."""
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    objective = plugins.find("objectives", name)
    return objective if isinstance(objective, type) and issubclass(objective, Objective) else None


def objective_of(given: Any, *, recorded: bool = False) -> Objective:
    """Objective from its name, its settings, or itself. `recorded`: from a run, which may name one unknown here."""
    if isinstance(given, Objective):
        return given
    if isinstance(given, type) and issubclass(given, Objective):
        return given()
    values = {"name": given} if isinstance(given, str) else given
    if not isinstance(values, Mapping):
        raise ConfigError(f"objective: expected a name or a group of settings, got {given!r}.")
    values = _in_todays_words(values, recorded=recorded)
    name = str(values.get("name", DEFAULT))
    cls = None if recorded and values.get("baseline") == "expectile" else find(name)
    if cls is None and recorded:
        return RecordedObjective.called(name).parse(values)
    if cls is None:
        raise ConfigError(
            f"objective.name: no objective '{name}'{nearest(name, OBJECTIVES)} One of your own is named as "
            "package.module:Name."
        )
    _refuse_unused(cls, values)
    objective = cls.parse(values, prefix="objective.")
    _refuse_unread(objective)
    return objective


def _in_todays_words(values: Mapping[str, Any], *, recorded: bool) -> Mapping[str, Any]:
    """Settings in today's names: `exp_weighted` is a point of `lpi_observed`, and the expectile baseline is gone."""
    if values.get("name") == "exp_weighted":
        kept = {key: value for key, value in values.items() if key not in ("name", "temperature")}
        point = {"form": "exponential", "smallest": 0.0, "beta": values.get("temperature", 0.5)}
        return {"name": LPIObserved.name, **point, **kept}
    if recorded and values.get("baseline") != "expectile":
        return {key: value for key, value in values.items() if key != "expectile"}
    return values


def _refuse_unused(cls: type[Objective], values: Mapping[str, Any]) -> None:
    """Raise ConfigError for a setting of other objectives, and name these."""
    for key in values:
        users = [name for name, other in OBJECTIVES.items() if key in other.model_fields]
        if users and key not in cls.model_fields:
            others = ", ".join(users)
            raise ConfigError(f"objective.{key}: {cls.name} does not use it (used by {others}). Leave it out.")


def _refuse_unread(objective: Objective) -> None:
    """Raise ConfigError for a changed setting that this variant does not read."""
    fields = objective.reads().fields
    for key, field in _VARIANTS.items():
        declared = type(objective).model_fields.get(key)
        if declared is not None and field not in fields and getattr(objective, key) != declared.default:
            raise ConfigError(f"objective.{key}: {objective.name} does not use it in this variant. Leave it out.")


def _validated(given: Any, info: ValidationInfo) -> Objective:
    return objective_of(given, recorded=bool(info.context and info.context.get("recorded")))


AnyObjective = Annotated[SerializeAsAny[Objective], BeforeValidator(_validated)]

__all__ = [
    "IPS", "IPSPG", "LPI", "MLE", "OBJECTIVES", "PG", "SAC", "SQN", "AnyObjective", "LPIBandit", "LPIObserved",
    "LPIWeighted", "LPIWeightedBandit", "Objective", "RewardWeighted", "find", "objective_of",
]  # fmt: skip
