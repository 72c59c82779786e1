"""Which epoch is kept: a weighted sum of validation figures, written as people write it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from localpolicy.data.store import CONTEXT, NO_ANSWER, Prepared
from localpolicy.errors import ConfigError, nearest
from localpolicy.objectives.objective import Objective

_TERM = re.compile(r"(?:([0-9.eE+-]+)\s*\*\s*)?([A-Za-z_][\w.@]*)")


def rule(select: str, data: Prepared, objective: Objective) -> str:
    """The rule that `auto` stands for: the paper's, and held-out likelihood for the logging policy's estimate."""
    if select != "auto":
        return select
    if objective.default_selection != "auto":
        return objective.default_selection
    held_out = data.manifest["splits"]["validation"]["events"]  # a rule must not ask for what is not there
    rewards = {
        name: reward
        for name, reward in data.manifest["rewards"].items()
        if name not in (NO_ANSWER, CONTEXT) and held_out.get(name)
    }
    # Ratings are events too, but nobody asks for the nDCG of a 3: they are judged as in the paper's bandit.
    paid = {name: reward for name, reward in rewards.items() if reward > 0 and _TERM.fullmatch(f"{name}.nDCG@20")}
    return " + ".join(f"{reward:g}*{name}.nDCG@20" for name, reward in paid.items()) if paid else "AR@1"


def selection_score(select: str, figures: Mapping[str, float]) -> float:
    """The value of e.g. `1.0*purchase.nDCG@20 + 0.2*click.nDCG@20`."""
    total = 0.0
    for text in re.split(r"\s+\+\s+", select.strip()):
        term = _TERM.fullmatch(text.strip())
        if term is None:
            raise ConfigError(f"train.select: cannot read '{text}'; write terms such as 0.2*click.nDCG@20 + AR@1.")
        if term[2] not in figures:
            raise ConfigError(f"train.select: no figure '{term[2]}'{nearest(term[2], figures)}")
        total += float(term[1] or 1) * figures[term[2]]
    return total
