"""A search instead of a grid: each point is proposed from what came of those before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from localpolicy.errors import ConfigError
from localpolicy.study.grid import Axis, Point

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
