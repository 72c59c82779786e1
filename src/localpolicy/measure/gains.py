"""Gains read together: in one figure against losses in another, and of item features against runs without them.

One number hides it: a policy that ranks purchases higher may rank clicks lower, and a sum of both says which only of
whoever chose the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from localpolicy.measure.candidates import Candidate, family_of
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.significance import Paired, Valued, paired_family


@dataclass(frozen=True)
class Exchange:
    """Gains and losses of one policy against the base, metric by metric."""

    name: str
    gains: dict[str, Paired]  # by figure; the tests of all policies and figures are read together
    beaten_by: list[str]  # policies whose means are no smaller in any figure, and larger in one; none: on the frontier


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


# ---------------------------------------------------------------------- what item features bring


class FeatureGain(NamedTuple):
    """Difference between a run that reads item features and one of the same recipe that reads none."""

    policy: str
    against: str
    features: list[str]
    shuffled: bool  # permuted among the items: a control, which should bring nothing
    tests: dict[str, Paired]  # by metric; all such tests are one family


def feature_gains(
    candidates: Sequence[Candidate], evaluations: Sequence[Evaluation], metrics: Sequence[str]
) -> list[FeatureGain]:
    """Test each run with item features, given or shuffled, against one without: of its seed if there is one."""
    runs = {each.name: each.run.config for each in candidates if each.run and each.run.started and not each.beta}
    recipe = {name: family_of(config, whatever_features=True) for name, config in runs.items()}
    bare = [name for name, config in runs.items() if not config.model.features]
    rivals: dict[str, str] = {}
    for name, config in runs.items():
        equal = [other for other in bare if recipe[other] == recipe[name]]
        if config.model.features and equal:
            rivals[name] = min(equal, key=lambda other: runs[other].train.seed != config.train.seed)
    of = {each.name: each for each in evaluations}
    tests = paired_family(
        {
            (name, metric): (of[name].values(metric)[0], *of[other].values(metric))
            for name, other in rivals.items()
            for metric in metrics
        }
    )
    return [
        FeatureGain(
            name, other, list(model.features), model.shuffle_features is not None,
            {metric: tests[name, metric] for metric in metrics},
        )
        for name, other in rivals.items()
        for model in [runs[name].model]
    ]  # fmt: skip
