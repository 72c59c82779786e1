"""`off_policy`: what any policy, or any table of probabilities, would have earned on any log of propensities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from localpolicy.data.column_names import columns_meant
from localpolicy.data.config import WindowConfig
from localpolicy.errors import DataError, nearest
from localpolicy.measure.candidates import Candidate, RunLike, as_run, window_of
from localpolicy.measure.decisions import OF_LISTS, Decisions, Estimand, OverlapRules, of_estimand
from localpolicy.measure.divergence import Reference
from localpolicy.measure.estimators import Estimator, by_name
from localpolicy.measure.evaluate import measure, settings_of
from localpolicy.measure.load_candidates import data_for, open_all
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.measure.value import OffPolicy, value_of_questions, value_of_scores
from localpolicy.model.catalogue_mapping import context_length, remap
from localpolicy.model.list_policy import people_of
from localpolicy.runtime.frames import arrow_stream, is_table, plain_table

READ = ("propensity", "reward", "sequence_id", "item_id", "request", "place")  # columns of a table of decisions
CLOSE = 1e-4  # by how much probabilities may miss their sum of 1


def off_policy(
    policy: Any,
    data: Any = None,
    *,
    estimator: str | Estimator | Sequence[str | Estimator] | None = None,
    propensities: RunLike | None = None,
    columns: Mapping[str, str] | None = None,
    reward_model: Any = None,
    largest_reward: float | None = None,
    config: EvaluateConfig | Mapping[str, Any] | None = None,
    rules: OverlapRules | Mapping[str, Any] | None = None,
    beta: float | None = None,
    device: str = "auto",
) -> OffPolicy:
    """Estimate what a policy would have earned on another policy's log: value and interval, or a refusal.

    `data` is a prepared log or its folder (default: the run's own). Then `policy` is a run, a saved baseline, a policy,
    or probabilities: a file or frame of item_id, probability and, where they differ between people, sequence_id.
    `propensities` is a run whose probabilities stand for logged ones, `config` are settings of evaluation.

    Or `data` is a table with a row per decision: propensity, reward, and where known sequence_id (rows of one are not
    independent), request and place (of lists); `columns` says what these are called. Then `policy` is the probability
    of each row's action [n], or of every action [n, V] with the action's number in item_id, or a table of item_id and
    probability. `reward_model` is r̂ of every action, [n, V]: not fitted on these rows.

    `estimator` is one of ips, snips, dm, dr, sndr, clipped_ips and log_smoothing, several, or your own `Estimator`
    (default: all that apply). `largest_reward` must be known beforehand; bounds for any sample size need it. `rules`
    say when an estimate is refused.
    """
    asked = None if estimator is None else [by_name(each) for each in _several(estimator)]
    limits = rules if isinstance(rules, OverlapRules) else OverlapRules.parse(rules or {}, prefix="rules: ")
    if is_table(data) or isinstance(data, Mapping):
        if propensities is not None or config is not None or beta is not None:
            raise DataError("propensities, config and beta are for prepared logs; a table of decisions has its own.")
        logs = decisions_of_table(policy, data, columns=columns, reward_model=reward_model)
        found = value_of_questions(logs, largest_reward=largest_reward, rules=limits, estimators=asked)
        assert found is not None
        return found
    if columns is not None or reward_model is not None:
        raise DataError("columns and reward_model are for a table of decisions; this log is prepared.")
    others = [] if propensities is None else [as_run(propensities)]
    split = settings_of(config).split
    if hasattr(policy, "logits"):
        if data is None:
            raise DataError("say which log the policy is measured on: data, a prepared log or its folder.")
        prepared = data_for([], data)
        opened = open_all(others, prepared, split=split, device=device)[1] if others else []
        fitted = remap(policy, prepared)
        candidate = Candidate("policy", fitted, Reference("policy", policy.origin.objective))
        window = WindowConfig(length=context_length(policy))
    else:
        prepared, (candidate, *opened) = open_all(
            [as_run(_as_lists(policy)), *others], data, split=split, beta=beta, device=device
        )
        window = window_of(candidate)
    given = opened[0].name if opened else None
    measured = measure(
        candidate, prepared, opened, window=window, config=settings_of(config, candidate), propensities=given,
        people=people_of(each.policy for each in (candidate, *opened)), floor=False, rules=limits,
    )  # fmt: skip
    largest = largest_reward or max(prepared.manifest["rewards"].values(), default=None)
    value = value_of_scores(measured.scores, propensities=given, largest_reward=largest, rules=limits, estimators=asked)
    if value is None:
        raise DataError(
            f"{prepared.path} has no propensities in its {split} split, so nothing says how likely the log's actions "
            "were: pass propensities, a run that estimates them (lpi train DATA mle)."
        )
    return replace(value, notes=tuple(note for each in (candidate, *opened) for note in each.notes))


def _several(estimator: str | Estimator | Sequence[str | Estimator]) -> Sequence[str | Estimator]:
    return [estimator] if isinstance(estimator, str | Estimator) else estimator


def _as_lists(policy: Any) -> Any:
    """Table of a policy given as a mapping from items to probabilities; any other policy unchanged."""
    if not isinstance(policy, Mapping):
        return policy
    return pa.table({"item_id": list(policy), "probability": [float(each) for each in policy.values()]})


# ---------------------------------------------------------------------- a table of decisions


def decisions_of_table(
    policy: Any, data: Any, *, columns: Mapping[str, str] | None = None, reward_model: Any = None
) -> dict[Estimand, Decisions]:
    """Decisions of a table for each estimand it supports; the log's own estimand comes first."""
    table = _table(data, columns or {})
    propensity, reward = _numbers(table, "propensity"), _numbers(table, "reward")
    if not ((propensity > 0) & (propensity <= 1)).all():
        row = int(np.argmin((propensity > 0) & (propensity <= 1)))
        raise DataError(f"a propensity must be above 0 and at most 1; row {row} has {propensity[row]:g}.")
    chosen, every = _probabilities(policy, table)
    model = _reward_model(reward_model, table, every)
    sequence = _codes(table["sequence_id"]) if "sequence_id" in table.column_names else np.arange(len(table))
    log = Decisions(chosen / propensity, reward, sequence, *model)
    if not {"request", "place"} <= set(table.column_names):
        return {"decision": log}
    if every is not None:
        raise DataError(
            "of lists, give the probability of each row's item among what was still open at its place [n]: a table of "
            "all items does not say what was open."
        )
    request, place = _codes(table["request"]), _numbers(table, "place")
    order = np.lexsort((place, request))
    above = (place - place.min())[order].astype(np.int64)
    asked = OF_LISTS if (above > 0).any() else ("decision",)
    found = {each: of_estimand(log.at(order), each, above, request[order]) for each in asked}
    if not len(found[asked[0]].weight):
        raise DataError("no list is whole: each lacks a place between its first and its last. Log every place.")
    return found


def _table(data: Any, columns: Mapping[str, str]) -> pa.Table:
    """Table of the columns that are read, under our names."""
    if isinstance(data, Mapping):
        data = pa.table({name: pa.array(np.asarray(values)) for name, values in data.items() if np.ndim(values) == 1})
    table = plain_table(arrow_stream(data))
    if unknown := [name for name in columns if name not in READ]:
        raise DataError(f"columns: no column '{unknown[0]}'{nearest(unknown[0], READ)} is read.")
    if missing := [name for name in columns.values() if name not in table.column_names]:
        raise DataError(f"columns: the table has no '{missing[0]}'{nearest(missing[0], table.column_names)}.")
    left = [name for name in table.column_names if name not in columns.values()]
    called = {**columns_meant(left, [name for name in READ if name not in columns]), **columns}
    for name in ("propensity", "reward"):
        if name not in called:
            found = ", ".join(table.column_names)
            raise DataError(f"no column '{name}' (found: {found}): say which it is with columns={{'{name}': …}}.")
    if not len(table):
        raise DataError("the table of decisions is empty.")
    return table.select(list(called.values())).rename_columns(list(called))


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    try:
        values = np.asarray(table[name].cast(pa.float64()).to_numpy())
    except pa.ArrowInvalid as error:
        raise DataError(f"{name} must be numbers ({error}).") from None
    if not np.isfinite(values).all():
        raise DataError(f"{name} is empty or not finite in row {int((~np.isfinite(values)).argmax())}.")
    return values


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(column.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy(), np.int64)


def _probabilities(policy: Any, table: pa.Table) -> tuple[np.ndarray, np.ndarray | None]:
    """π of each row's action [n], and of every action [n, V] (or [V] for all rows) where that is given."""
    if is_table(policy) or isinstance(policy, Mapping):
        given = plain_table(arrow_stream(_as_lists(policy)))
        if lacks := [name for name in ("item_id", "probability") if name not in given.column_names]:
            raise DataError(f"a table of probabilities needs the columns item_id and probability; it lacks {lacks[0]}.")
        every = _checked(_numbers(given, "probability")[None])[0]
        try:
            found = pc.index_in(_items(table).cast(given["item_id"].type), value_set=given["item_id"].combine_chunks())
        except pa.ArrowInvalid:
            kinds = f"{table['item_id'].type} in the log and {given['item_id'].type} in the table of probabilities"
            raise DataError(f"item_id is {kinds}: they cannot be matched.") from None
        at = np.asarray(found.combine_chunks().fill_null(-1).to_numpy(), np.int64)
        if (at < 0).all():
            raise DataError("the table of probabilities lists none of the log's items: do both use the same ids?")
        return np.where(at >= 0, every[at], 0.0), every
    try:
        every = np.asarray(policy, np.float64)
    except (TypeError, ValueError):
        raise DataError(
            "on a table of decisions a policy is its probabilities: an array of one per row, one of a row per decision "
            "and a column per action, or a table of item_id and probability. A run is measured on a prepared log "
            "(lpi prepare)."
        ) from None
    every = every[..., 0] if every.ndim == 3 and every.shape[2] == 1 else every
    if every.ndim not in (1, 2) or len(every) != len(table):
        raise DataError(f"expected probabilities of {len(table):,} rows, [n] or [n, V]; got the shape {every.shape}.")
    if every.ndim == 1:
        if not ((every >= 0) & (every <= 1 + CLOSE)).all():
            raise DataError("probabilities must lie between 0 and 1.")
        return every, None
    every = _checked(every)
    return every[np.arange(len(every)), _numbered(table, every.shape[1])], every


def _checked(every: np.ndarray) -> np.ndarray:
    off = np.abs(every.sum(1) - 1) > CLOSE
    if not ((every >= 0) & (every <= 1 + CLOSE)).all() or off.any():
        row = int(off.argmax())
        raise DataError(f"probabilities must lie between 0 and 1 and sum to 1; row {row} sums to {every[row].sum():g}.")
    return every


def _items(table: pa.Table) -> pa.ChunkedArray:
    if "item_id" not in table.column_names:
        raise DataError("no column says which action each row took: name it with columns={'item_id': …}.")
    return table["item_id"]


def _numbered(table: pa.Table, actions: int) -> np.ndarray:
    """Index of each row's action, 0 to V - 1."""
    _items(table)
    number = _numbers(table, "item_id")
    if not ((number == np.floor(number)) & (number >= 0) & (number < actions)).all():
        raise DataError(f"with a column per action item_id must be its number, 0 to {actions - 1}.")
    return number.astype(np.int64)


def _reward_model(model: Any, table: pa.Table, every: np.ndarray | None) -> tuple[np.ndarray, np.ndarray] | tuple[()]:
    """r̂ of each row's action, and what π expects by it."""
    if model is None:
        return ()
    values = np.asarray(model, np.float64)
    values = values[..., 0] if values.ndim == 3 and values.shape[2] == 1 else values
    if every is None or values.shape != every.shape:
        wanted = "the policy's probabilities as [n, V] too" if every is None else f"the shape {every.shape}"
        raise DataError(f"a reward model needs {wanted}; its own shape is {values.shape}.")
    taken = values[np.arange(len(values)), _numbered(table, values.shape[1])]
    return taken, (every * values).sum(1)
