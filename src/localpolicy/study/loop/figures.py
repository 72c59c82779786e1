"""The figures of one round of a loop, with intervals over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localpolicy.measure.estimate import Interval
from localpolicy.study.seeds import over_seeds

SHARES = {"effective share": "effective_share", "clipped share": "clipped_share"}  # of an epoch's weights

Figures = Mapping[str, Interval]  # of one round, by name


def over_all_seeds(entries: Sequence[dict[str, Any]]) -> Figures:
    """The figures of one round from the entries of all seeds."""

    def over(name: str) -> Interval:
        return over_seeds([entry[name]["mean"] for entry in entries], [entry[name]["se"] for entry in entries])

    def plain(values: Sequence[float]) -> Interval:
        return over_seeds(values, [0.0] * len(values))

    figures = {
        "J(π)": over("truth"),
        "gain": over("gain"),
        "step": over("step"),
        "JS from the round before": over("js_before"),
        "JS from the first μ": over("js_first"),
        "KL from the first μ": over("kl_first"),
        "entropy": plain([entry["entropy"] for entry in entries]),
        "coverage": plain([entry["coverage"] for entry in entries]),
    }
    for name, key in SHARES.items():
        if all(key in entry.get("weights", {}) for entry in entries):  # a closed form weighs nothing
            figures[name] = plain([entry["weights"][key] for entry in entries])
    return figures
