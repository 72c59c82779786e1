"""Objectives: one small file each, and this dict. Adding one = one file + one line here + one row in the docs.

All maximise Σ w(x,a) log π(a|x) with a constant weight w, minus auxiliary losses; docs/objectives.md has the table.
"""

from __future__ import annotations

from localpolicy.errors import ConfigError, nearest
from localpolicy.objectives.config import ObjectiveConfig
from localpolicy.objectives.critic import td_reads
from localpolicy.objectives.importance import ips, ips_pg, reads_propensities
from localpolicy.objectives.lpi import lpi_cb, lpi_rl, reads_bandit, reads_process
from localpolicy.objectives.mle import mle
from localpolicy.objectives.objective import Objective
from localpolicy.objectives.pg import pg
from localpolicy.objectives.reward_weighted import reward_weighted
from localpolicy.objectives.sac import sac
from localpolicy.objectives.sqn import sqn

_RETURNS = frozenset({"return_to_go"})
_RATIO = frozenset({"clip", "propensities", "logging"})
_CRITIC = frozenset({"td_weight"})
_TD = frozenset({"td_weight", "gamma", "target", "logging"})
_LPI = frozenset({"beta", "cap", "baseline", "advantage", "td_weight", "logging"})

OBJECTIVES: dict[str, Objective] = {
    "mle": Objective(mle, uses_reward=False),
    "reward_weighted": Objective(reward_weighted, non_negative=True),
    "ips": Objective(ips, reads_propensities, _RATIO, non_negative=True),
    "pg": Objective(pg, lambda config: _RETURNS, frozenset({"gamma"}), non_negative=True),
    "ips_pg": Objective(
        ips_pg, lambda config: _RETURNS | reads_propensities(config), _RATIO | {"gamma"}, non_negative=True
    ),
    "lpi_cb": Objective(lpi_cb, reads_bandit, _LPI, critic="reward", advantages=("direct", "observed")),
    "sqn": Objective(sqn, td_reads, _TD, critic="q"),
    "sac": Objective(
        sac, lambda config: td_reads(config) | {"q"}, _TD | {"warmup"}, critic="q", non_negative=True
    ),
    "lpi_rl": Objective(
        lpi_rl, reads_process, _LPI | _TD | {"negatives"}, critic="q", advantages=("td", "monte_carlo", "sampled")
    ),
}  # fmt: skip


def _unread(config: ObjectiveConfig, found: Objective) -> set[str]:
    """Settings this objective has, but not in this variant."""
    filled = (
        config
        if config.advantage or not found.advantages
        else config.model_copy(update={"advantage": found.advantages[0]})
    )
    reads = found.reads(filled)
    needed = {"negatives": "q_sampled", "target": "next_value", "logging": "logp_logging", "td_weight": "q_fit"}
    return {name for name, field in needed.items() if name in found.settings and field not in reads}


def objective(config: ObjectiveConfig) -> tuple[Objective, ObjectiveConfig]:
    """The objective that `config` names, and the config with its default advantage filled in."""
    if config.name not in OBJECTIVES:
        raise ConfigError(f"objective.name: no objective '{config.name}'{nearest(config.name, OBJECTIVES)}")
    found = OBJECTIVES[config.name]
    unused = (config.model_fields_set - found.settings - {"name"}) | _unread(config, found)
    # A setting that is spelled out but left at its default does no harm: a resolved config spells out all of them.
    defaults = {name: field.default for name, field in ObjectiveConfig.model_fields.items()}
    unused = {name for name in unused if getattr(config, name) != defaults[name]}
    if unused:
        name = sorted(unused)[0]
        users = ", ".join(other for other, one in OBJECTIVES.items() if name in one.settings)
        where = " in this variant" if name in found.settings else ""
        raise ConfigError(f"objective.{name}: {config.name} does not use it{where} (used by {users}). Leave it out.")
    if found.advantages:
        if config.advantage is not None and config.advantage not in found.advantages:
            raise ConfigError(
                f"objective.advantage: {config.name} knows {', '.join(found.advantages)}, got '{config.advantage}'."
            )
        if config.advantage is None:
            config = config.model_copy(update={"advantage": found.advantages[0]})
    if config.advantage == "sampled" and config.baseline != "expected":
        raise ConfigError("objective.baseline: the sampled advantage is its own baseline. Leave baseline out.")
    return found, config
