"""What a policy gains in one figure and loses in another: differences from a base, and which policies no other beats.

One number hides it: a policy that ranks purchases higher may rank clicks lower, and a sum of both says which only of
whoever chose the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localpolicy.measure.estimate import as_json
from localpolicy.measure.significance import Paired, Valued, paired_family


@dataclass(frozen=True)
class Exchange:
    """Gains and losses of one policy against the base, metric by metric."""

    name: str
    gains: dict[str, Paired]  # by figure; the tests of all policies and figures are read together
    beaten_by: list[str]  # policies whose means are no smaller in any figure, and larger in one; none: on the frontier

    def to_dict(self) -> dict[str, Any]:
        """Content of the JSON output."""
        return {key: as_json(value) for key, value in vars(self).items()}


def exchanges(pairs: Iterable[tuple[Valued, Valued]], figures: Sequence[str]) -> list[Exchange]:
    """Paired tests of each policy against its base in every metric, as `Exchange` objects."""
    every = list(pairs)
    tests = paired_family(
        {
            (place, name): (policy.values(name)[0], *base.values(name))
            for place, (policy, base) in enumerate(every)
            for name in figures
        }
    )
    return exchanged(
        [(policy.name, {name: tests[place, name] for name in figures}) for place, (policy, _) in enumerate(every)]
    )


def exchanged(gains: Sequence[tuple[str, Mapping[str, Paired]]]) -> list[Exchange]:
    """`Exchange` of each policy from its tested gains; finds those that others beat in every metric."""
    means = [tuple(test.difference for test in each.values()) for _, each in gains]
    return [
        Exchange(name, dict(each), [gains[other][0] for other in beaten_by(means, place)])
        for place, (name, each) in enumerate(gains)
    ]


def beaten_by(points: Sequence[Sequence[float]], place: int) -> list[int]:
    """Indices of the points no smaller than point `place` in any coordinate and larger in one."""
    here = points[place]
    return [
        other
        for other, there in enumerate(points)
        if all(a >= b for a, b in zip(there, here, strict=True)) and tuple(there) != tuple(here)
    ]
