"""What μ̂ and π would show after the same histories, side by side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from localpolicy.data.store import Prepared
from localpolicy.judge.comparison import Comparison
from localpolicy.model.policy import Policy
from localpolicy.report.contents import SampleLists
from localpolicy.study.titles import Titles

SAMPLES, LISTED = 3, 5  # histories shown, and items of each list

Names = Mapping[str, str]  # what a policy is called on the page, where that is not its run's name


def sample_lists(comparison: Comparison, names: Names, titles: Titles) -> list[SampleLists]:
    """What μ̂ and the best other policy would show after a few held-out histories."""
    order = sorted(
        zip(comparison.evaluations, comparison.candidates, strict=True),
        key=lambda pair: -pair[0].estimate(comparison.main).mean,
    )
    estimates = {reference.name for reference in comparison.references}
    others = [candidate for _, candidate in order if candidate.name not in estimates]
    policies = {
        names.get(candidate.name, candidate.name): candidate.policy
        for candidate in [*comparison.references[:1], *[other for other in others if other.run is not None][:1]]
        if isinstance(candidate.policy, Policy)
    }
    split = comparison.evaluations[0].settings["split"]
    return [_sample(policies, comparison.data, split, index, titles) for index in _long_enough(comparison.data, split)]


def _long_enough(data: Prepared, split: str) -> list[int]:
    """A few sequences with something to read, spread over the split."""
    lengths = np.diff(data[split].offsets)
    long = np.flatnonzero(lengths >= min(LISTED + 1, lengths.max(initial=0)))
    return [int(index) for index in long[np.linspace(0, len(long) - 1, min(SAMPLES, len(long))).astype(int)]]


def _sample(policies: Mapping[str, Policy], data: Prepared, split: str, index: int, titles: Titles) -> SampleLists:
    sequence = data[split][index]
    ids = data.catalogue["item_id"].take(pa.array(sequence["item"][:-1])).to_pylist()
    events = [data.events[code] for code in sequence["event"][:-1]]
    lists = {}
    for name, policy in policies.items():
        listed = policy.recommend([ids], min(LISTED, data.n_items), events=[events])
        shares = listed.log_probability[0].exp().tolist()
        lists[name] = [(_called(item, titles), share) for item, share in zip(listed.items[0], shares, strict=True)]
    history = [f"{_called(item, titles)} ({event})" for item, event in zip(ids, events, strict=True)]
    return SampleLists(history, lists)


def _called(item: object, titles: Titles) -> str:
    """Its title, where one is known, else its id."""
    return titles.get(str(item), str(item))
