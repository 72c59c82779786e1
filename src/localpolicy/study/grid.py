"""Points of a sweep: the cartesian product of `key=v1,v2,…`, or a search that proposes each from what came before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from localpolicy.errors import ConfigError
from localpolicy.objectives.objective import Objective
from localpolicy.runs.config import Config, setting_fields, setting_key

WINDOWS = ("data.length", "data.last", "train.min_history")  # what decides which positions are scored
RANGE = ".."  # low..high, for a search


@dataclass(frozen=True)
class Axis:
    """One setting and the values it takes; with `low` and `high` any value between them (searched, not listed)."""

    key: str  # as objective.beta
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False  # only whole numbers between them

    @property
    def listed(self) -> bool:
        """Whether its values are named one by one."""
        return bool(self.values)


@dataclass(frozen=True)
class Point:
    """One choice of every axis: ('objective.beta', '0.3'), …"""

    settings: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """beta=0.3 td_weight=1; fit for a folder with `-` for the blanks."""
        return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.settings)

    def apply(self, config: Config) -> Config:
        """The config at this point."""
        return config.with_changes([f"{key}={value}" for key, value in self.settings])


def axes(over: Sequence[str], objective: type[Objective] | None = None) -> list[Axis]:
    """Axes from `beta=0.1,0.3`, `train.learning_rate=1e-4..1e-2`."""
    parsed = [_axis(text, objective) for text in over]
    keys = [axis.key for axis in parsed]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"--over {key} is given twice: list all its values in one option.")
    return parsed


def grid(axes: Sequence[Axis]) -> list[Point]:
    """Every combination, the last axis fastest."""
    for axis in axes:
        if not axis.listed:
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
        low, _, high = listed.partition(RANGE)
        try:
            axis = Axis(key, low=float(low), high=float(high), whole=setting_fields(objective)[key] is int)
        except ValueError:
            raise ConfigError(f"--over {key}: expected numbers low..high, got '{listed}'.") from None
        if not -math.inf < axis.low < axis.high < math.inf:
            raise ConfigError(f"--over {key}: expected two finite numbers, the smaller first; got '{listed}'.")
        return axis
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
    """`beta` -> `objective.beta`, where one group alone has such a key; the seed is no axis."""
    key = setting_key(name, objective, said="--over")
    if key in WINDOWS:
        raise ConfigError(
            f"--over {key}: policies that are scored on other windows of the log cannot be compared. Set it once with "
            "--set, and sweep again into another folder for another value."
        )
    if key in ("train.seed", "objective.name"):
        raise ConfigError(f"--over {key}: use --seeds or --objective for it.")
    return key


Trial = Callable[[Point], float]


def optuna_search(axes: Sequence[Axis], trials: int, trial: Trial) -> None:
    """`trial` so many points, one after another (TPE). The same results give the same proposals: it can go on."""
    try:
        import optuna
    except ModuleNotFoundError:
        raise ConfigError("--search optuna needs it: pip install 'localpolicy[sweep]'.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def propose(proposed: Any) -> float:
        point = Point(tuple((axis.key, _value(proposed, axis)) for axis in axes))
        score = trial(point)
        if score == -math.inf:
            raise optuna.TrialPruned  # could not be trained: the search goes elsewhere
        return score

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(propose, n_trials=trials)


def _value(proposed: Any, axis: Axis) -> str:
    if axis.listed:
        return str(proposed.suggest_categorical(axis.key, list(axis.values)))
    if axis.whole:
        return str(proposed.suggest_int(axis.key, int(axis.low), int(axis.high), log=axis.low > 0))
    # Rates and prices are searched by their size.
    return f"{proposed.suggest_float(axis.key, axis.low, axis.high, log=axis.low > 0):.3g}"
