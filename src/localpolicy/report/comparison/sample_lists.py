"""What μ̂ and π would show after the same histories, side by side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from localpolicy.data.store import Prepared
from localpolicy.evaluation.comparison import Comparison
from localpolicy.model.policy import Policy
from localpolicy.report.contents import SampleLists

SAMPLES, LISTED = 3, 5  # histories shown, and items of each list

Names = Mapping[str, str]  # what a policy is called on the page, where that is not its run's name


def sample_lists(comparison: Comparison, names: Names) -> list[SampleLists]:
    """What μ̂ and the best other policy would show after a few held-out histories."""
    order = sorted(
        zip(comparison.evaluations, comparison.candidates, strict=True),
        key=lambda pair: -pair[0].estimate(comparison.main).mean,
    )
    estimates = {one.name for one in comparison.references}
    others = [one for _, one in order if one.name not in estimates]
    policies = {
        names.get(one.name, one.name): one.policy
        for one in [*comparison.references[:1], *[one for one in others if one.run is not None][:1]]
        if isinstance(one.policy, Policy)
    }
    split = comparison.evaluations[0].settings["split"]
    return [_sample(policies, comparison.data, split, index) for index in _long_enough(comparison.data, split)]


def _long_enough(data: Prepared, split: str) -> list[int]:
    """A few sequences with something to read, spread over the split."""
    lengths = np.diff(data[split].offsets)
    found = np.flatnonzero(lengths >= min(LISTED + 1, lengths.max(initial=0)))
    return [int(found[place]) for place in np.linspace(0, len(found) - 1, min(SAMPLES, len(found))).astype(int)]


def _sample(policies: Mapping[str, Policy], data: Prepared, split: str, index: int) -> SampleLists:
    sequence = data[split][index]
    ids = data.catalogue["item_id"].take(pa.array(sequence["item"][:-1])).to_pylist()
    events = [data.events[code] for code in sequence["event"][:-1]]
    lists = {}
    for name, policy in policies.items():
        found = policy.recommend([ids], min(LISTED, data.n_items), events=[events])
        shares = found.log_probability[0].exp().tolist()
        lists[name] = [(str(item), share) for item, share in zip(found.items[0], shares, strict=True)]
    return SampleLists([f"{item} ({answer})" for item, answer in zip(ids, events, strict=True)], lists)
