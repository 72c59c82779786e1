"""Another run as μ̂: its checks, its catalogue, and the actions that it cannot know.

A run that knows only some of the data's items gives the others probability 0 (see `model.catalogue_mapping`). Actions
on them are no evidence about μ̂: importance-weighted objectives give them the weight 0, and the others, where μ̂ enters
only through Σ_a μ̂(a|x) Q(x,a), keep them, for the sum needs no μ̂ of the action taken. Their number is recorded.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from localpolicy.data.store import CONTEXT, Prepared
from localpolicy.errors import RunError
from localpolicy.limits import FALLBACK
from localpolicy.model.catalogue_mapping import RemappedLoggingPolicy, match_items
from localpolicy.model.deployable import Origin
from localpolicy.model.policy import Policy
from localpolicy.objectives.objective import Objective
from localpolicy.runs.run import Run
from localpolicy.training.checks import BLOCK

SHORTEST_DIGEST = 8  # hex digits that name a policy


def served(run: Run, data: Prepared) -> bool:
    """Whether the log names this run alone as the policy that chose: then it is μ, whatever trained it."""
    versions = [name for name in data.manifest.get("policies", []) if name.split()[0] != FALLBACK]
    if data.kind != "impressions" or len(versions) != 1:
        return False
    (version,) = versions
    by_digest = len(version) >= SHORTEST_DIGEST and run.digest.startswith(version)
    return bool(by_digest or version == run.folder.resolve().name)


def origin_of(objective: Objective, data: Prepared, *, heads: Collection[str]) -> Origin:
    """Origin of a policy: its objective and log, and which of its heads estimates μ, if any."""
    reads = objective.reads()
    copies = reads.teacher and reads.beta is None and served(Run(reads.logging), data)
    beside = "logging" if "logging" in heads else None
    estimates = "policy" if objective.estimates_logging or copies else beside
    return Origin(objective.name, data.kind, data.events, estimates)


def over_catalogue(policy: Policy, data: Prepared, name: str, *, absent: float) -> Policy:
    """Policy mapped to the data's items in their order; `absent` is its logit of unknown items."""
    if policy.items["item_id"].equals(data.catalogue["item_id"]):
        return policy
    strangers = int((match_items(policy.items, data.catalogue) < 0).sum())
    if strangers:
        raise RunError(
            f"objective.logging: {name} knows {strangers} of its {policy.n_items} items that {data.path} lacks. It may "
            "lack items of the data, not the other way round: append to the data it was trained on (lpi prepare "
            "--append), or train an mle run on this data."
        )
    return RemappedLoggingPolicy(policy, data.catalogue, absent=absent)


def logging_facts(given: Policy | None, data: Prepared, objective: Objective) -> dict[str, Any] | None:
    """Manifest entry of a given μ̂: its identity, and the number of training actions it cannot have taken."""
    if given is None:
        return None
    folder = objective.reads().logging
    facts = {"run": folder, "policy_sha256": Run(folder).manifest["policy_sha256"]}
    if not isinstance(given, RemappedLoggingPolicy):
        return facts
    unseen, total = _unseen_actions(data, given.older_index.cpu().numpy() < 0)
    if objective.weighs_by_ratio and unseen == total:
        raise RunError(
            f"objective.logging: {folder} knows none of the items taken in {data.path}: no ratio π/μ̂ exists."
        )
    return {
        **facts,
        "unseen_items": int((given.older_index < 0).sum()),
        "unseen_actions": unseen,
        "actions": total,
        "unseen_actions_weigh": "nothing" if objective.weighs_by_ratio else "as others",
    }


def _unseen_actions(data: Prepared, unseen: np.ndarray) -> tuple[int, int]:
    """Numbers of training actions on unseen items, and of all training actions."""
    item, event = (data["train"].arrays[name] for name in ("item", "event"))
    context = data.events.index(CONTEXT) if CONTEXT in data.events else -1
    unseen_actions = total = 0
    for start in range(0, len(item), BLOCK):
        chosen = event[start : start + BLOCK] != context
        unseen_actions += int((unseen[item[start : start + BLOCK]] & chosen).sum())
        total += int(chosen.sum())
    return unseen_actions, total
