"""How far a policy is from μ̂, next to how far one μ̂ is from another: a figure without its floor says nothing.

All figures are exact over the catalogue, in nats: JS in [0, log 2], KL(π‖μ̂) >= 0, averaged over held-out contexts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from localpolicy.catalogue.statistics import pairs_of
from localpolicy.measure.estimate import Estimate, Interval, as_json, mean_estimate, mean_of_estimates, quantiles
from localpolicy.measure.position_metrics import Scores, segments

MOST_JS = math.log(2)  # of two policies that have no item in common


@dataclass(frozen=True)
class Spread:
    """Mean divergence over contexts, with its quantiles and the mean for each reference."""

    overall: Estimate
    quantiles: dict[str, float]
    by_name: dict[str, Estimate]  # by reference, or by pair of references

    def to_dict(self) -> dict[str, Any]:
        content = {**self.overall._asdict(), "quantiles": self.quantiles, "by_reference": self.by_name}
        return {name: as_json(value) for name, value in content.items()}


@dataclass(frozen=True)
class Reference:
    """Identity of an estimate μ̂ that divergence is measured from: name, objective, seed, epoch."""

    name: str
    objective: str
    seed: int | None = None
    epoch: int | None = None
    selected_by: str | None = None
    family: str = ""  # one for all runs that differ in their seed alone

    @property
    def kind(self) -> tuple[str, str]:
        """Objective and configuration without the seed: two references of one kind differ by noise alone."""
        return self.objective, self.family


@dataclass(frozen=True)
class Divergence:
    """JS and KL of a policy from its references, with the noise floor between these."""

    references: list[Reference]
    js: Spread
    kl: Spread
    floor_js: Spread | None  # None with fewer than two references: the noise is then not known
    floor_kl: Spread | None
    segments: dict[str, Estimate] = field(default_factory=dict)  # JS by segment

    @property
    def above_floor(self) -> float | None:
        """JS as a multiple of the noise floor."""
        return times_floor(self.js.overall, None if self.floor_js is None else self.floor_js.overall)

    def to_dict(self) -> dict[str, Any]:
        floor = None if self.floor_js is None else {"js": self.floor_js, "kl": self.floor_kl, "ratio": self.above_floor}
        whole = {"js": self.js, "kl": self.kl, "floor": floor, "reference": self.references, "segments": self.segments}
        return {name: as_json(value) for name, value in whole.items()}


def noise_floor(pairs: Iterable[Estimate]) -> Estimate | None:
    """Mean of JS(μ̂, μ̂') over pairs of estimates that differ in their seed alone; None without a pair.

    The mean, as a policy's own JS is the mean over its references.
    """
    known = list(pairs)
    return mean_of_estimates(known) if known else None


def times_floor(js: Estimate | Interval | None, floor: Estimate | Interval | None) -> float | None:
    """JS(π, μ̂) / JS(μ̂, μ̂'): about 1 if the policy is no further from μ̂ than another seed would be."""
    return None if js is None or floor is None or not floor.mean > 0 else js.mean / floor.mean


def beyond_floor(js: Interval | None, floor: Interval | None) -> bool | None:
    """Whether the interval of JS lies above that of the noise floor; None if one of them is not known.

    Both are estimates from the same few sequences. Of two policies as far as noise goes one has the larger mean, so a
    larger mean alone says nothing.
    """
    if js is None or floor is None or math.isnan(js.low) or math.isnan(floor.high):
        return None
    return js.low > floor.high


def two_digits(value: float) -> str:
    """0.26, 0.000062: a divergence in a sentence, to two significant digits."""
    return np.format_float_positional(value, precision=2, unique=False, fractional=False, trim="k")


def over_references(values: Mapping[str, np.ndarray], names: Iterable[str]) -> np.ndarray:
    """Mean of the values over these references (or pairs of them) at each position: [n]."""
    return np.asarray(np.mean([values[name] for name in names], axis=0))


def spread(values: Mapping[str, np.ndarray], names: Sequence[str], sequence: np.ndarray) -> Spread:
    """Mean divergence over names and positions, with quantiles over positions and the mean by name."""
    together = over_references(values, names)
    alone = {name: mean_estimate(values[name], sequence) for name in names}
    return Spread(mean_estimate(together, sequence), quantiles(together), alone)


def floor_between(values: Mapping[str, np.ndarray], pairs: Sequence[str], sequence: np.ndarray) -> Spread | None:
    """Noise floor from pairs of estimates that differ in their seed alone; None without a pair."""
    if not pairs:
        return None
    between = spread(values, pairs, sequence)
    overall = noise_floor(between.by_name.values())
    assert overall is not None
    return replace(between, overall=overall)


def divergence(
    scores: Scores,
    references: Sequence[Reference],
    *,
    counts: np.ndarray | None = None,
    known: np.ndarray | None = None,
) -> Divergence | None:
    """Divergence from these references, as `score` measured it (their names are the keys of `scores.js`).

    `counts` and `known` [V] make the segments by popularity and of cold items: see `segments`.
    """
    if not references:
        return None
    names = [reference.name for reference in references]
    # Noise is what differs between seeds: two references trained in different ways are not comparable.
    kinds = dict.fromkeys(reference.kind for reference in references)
    alike = [pairs_of([each.name for each in references if each.kind == kind]) for kind in kinds]
    pairs = [pair for together in alike for pair in together if pair in scores.js]
    together = over_references(scores.js, names)
    return Divergence(
        references=list(references),
        js=spread(scores.js, names, scores.sequence),
        kl=spread(scores.kl, names, scores.sequence),
        floor_js=floor_between(scores.js, pairs, scores.sequence),
        floor_kl=floor_between(scores.kl, pairs, scores.sequence),
        segments={
            name: mean_estimate(together[here], scores.sequence[here])
            for name, here in segments(scores, counts, known).items()
        },
    )
