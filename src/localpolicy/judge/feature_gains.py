"""What item features bring: a run that reads them against a run of the same recipe that reads none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from localpolicy.measure.candidates import Candidate, family_of
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.significance import Paired, paired_family


class FeatureGain(NamedTuple):
    """Difference between a run with item features and one without, of the same recipe."""

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
