"""Settings of `sweep`. Importing them needs no torch, so that --help is fast.

A sweep's points are the cartesian product of `key=v1,v2,…`, or a search proposes each from what came before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from localpolicy.errors import ConfigError
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.objectives.objective import Objective
from localpolicy.runs.config import Config, setting_fields, setting_key
from localpolicy.settings import Settings, repeated

T = TypeVar("T")
TRIALS = 20  # of a search, by default


def _listed(over: Any) -> Any:
    """Axes in command-line form: {"beta": [0.1, 0.3]} becomes ["beta=0.1,0.3"]."""
    pairs = over.items() if isinstance(over, Mapping) else None
    return over if pairs is None else [f"{key}={','.join(map(str, values))}" for key, values in pairs]


def _parts(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


Listed = Annotated[tuple[T, ...], BeforeValidator(_parts)]  # `0,1,2` is a list too
Processes = Annotated[int | None, Field(ge=1, description="processes that train in parallel (default: one per core)")]


class SweepConfig(Settings):
    over: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        description="a setting and its values; a search also takes low..high",
        json_schema_extra=repeated("--over", "KEY=V1,V2"),
    )
    seeds: int = Field(1, ge=1, description="seeds per point; the point with the best mean is chosen")
    max_js: float | None = Field(None, gt=0, description="choose the best point whose JS is at most this")
    against: tuple[Path, ...] = Field(
        (), description="a run to measure the divergence from; two runs of different seeds give the noise floor",
        json_schema_extra=repeated("--against"),
    )  # fmt: skip
    search: Literal["grid", "optuna"] = Field("grid", description="how to search")
    trials: int | None = Field(None, ge=1, description=f"number of points that a search tries (default: {TRIALS})")
    processes: Processes = None
    exclude_seen: bool = Field(False, description=EvaluateConfig.model_fields["exclude_seen"].description)

    @model_validator(mode="after")
    def _only_a_search_has_trials(self) -> Self:
        if self.trials is not None and self.search != "optuna":
            raise ValueError("--trials is for --search optuna; a grid has as many points as it lists.")
        return self


# ---------------------------------------------------------------------- points of a sweep


WINDOWS = ("data.length", "data.last", "train.min_history")  # what decides which positions are scored
RANGE = ".."  # low..high, for a search


@dataclass(frozen=True)
class Axis:
    """One setting of a sweep with its values, or with a range from `low` to `high` to search."""

    key: str  # as objective.beta
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False  # only whole numbers between them


@dataclass(frozen=True)
class Point:
    """Point of a grid: one value for every axis, such as ('objective.beta', '0.3')."""

    settings: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Short name of the point: `beta=0.3 td_weight=1`."""
        return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.settings)

    def apply(self, config: Config) -> Config:
        """The config with the values of this point."""
        return config.with_changes([f"{key}={value}" for key, value in self.settings])


NO_POINT = Point()  # of a policy that has nothing to choose


def axes(over: Sequence[str], objective: type[Objective] | None = None) -> list[Axis]:
    """Parse axes such as `beta=0.1,0.3` or `train.learning_rate=1e-4..1e-2`; raise ConfigError on a repeated key."""
    parsed = [_axis(text, objective) for text in over]
    for key, times in Counter(axis.key for axis in parsed).items():
        if times > 1:
            raise ConfigError(f"--over {key} is given twice: list all its values in one option.")
    return parsed


def grid(axes: Sequence[Axis]) -> list[Point]:
    """All combinations of the axes' values, the last axis fastest."""
    for axis in axes:
        if not axis.values:
            text = f"--over {axis.key}={axis.low:g}..{axis.high:g} is a range"
            raise ConfigError(f"{text}: list values, or search it with --search optuna.")
    return [
        Point(tuple(zip((axis.key for axis in axes), values, strict=True)))
        for values in product(*(axis.values for axis in axes))
    ]


def corners(axes: Sequence[Axis]) -> list[Point]:
    """Points that hold every value of every axis at least once."""
    ends = [axis.values or (f"{axis.low:g}", f"{axis.high:g}") for axis in axes]
    most = max((len(values) for values in ends), default=1)
    return [
        Point(tuple((axis.key, values[number % len(values)]) for axis, values in zip(axes, ends, strict=True)))
        for number in range(most)
    ]


def _axis(text: str, objective: type[Objective] | None) -> Axis:
    key, equals, listed = text.partition("=")
    if not equals or not key.strip() or not listed.strip():
        raise ConfigError(f"--over: expected key=v1,v2 (or key=low..high), got '{text}'.")
    key = whole_key(key.strip(), objective)
    if RANGE in listed:
        low, high = map(_number, listed.split(RANGE, 1))
        if isinstance(low, str) or isinstance(high, str) or not -math.inf < low < high < math.inf:
            said = "low..high, two finite numbers, the smaller first"
            raise ConfigError(f"--over {key}: expected {said}; got '{listed}'.")
        return Axis(key, low=low, high=high, whole=setting_fields(objective)[key] is int)
    values: dict[float | str, str] = {}  # 0.1 and 0.10 are one point
    for part in listed.split(","):
        values.setdefault(_number(part.strip()), part.strip())
    if "" in values:
        raise ConfigError(f"--over {key}: an empty value in '{listed}'.")
    return Axis(key, tuple(values.values()))


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def whole_key(name: str, objective: type[Objective] | None = None) -> str:
    """Full key of a setting: `beta` -> `objective.beta`, if one group alone has it; the seed cannot be swept."""
    key = setting_key(name, objective, source="--over")
    if key in WINDOWS:
        raise ConfigError(
            f"--over {key}: policies that are scored on other windows of the log cannot be compared. Set it once with "
            "--set, and sweep again into another folder for another value."
        )
    if key in ("train.seed", "objective.name"):
        raise ConfigError(f"--over {key}: use --seeds or --objective for it.")
    return key
