"""Reader of logs of requests: two tables joined by request, or one row per candidate, become a `RequestLog`.

    requests   request, candidates, scores or probabilities, shown; time, person, policy, temperature, pinned, weight
    outcomes   request, item; event, reward, time

A column of lists as long as the candidates is a column of candidates, and so is what an item table says; all others are
columns of the request. In the flat form, with `item` and `place`, a column that varies within requests is the item's.
Logs of Vowpal Wabbit and of Open Bandit Pipeline are known by their form (`foreign_logs.py`), and so is the folder that
our own service's log was rotated to (`served.py`).
docs/requests.schema.json and docs/outcomes.schema.json are their JSON schemas.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from localpolicy.errors import DataError, nearest, shown
from localpolicy.limits import NO_ANSWER
from localpolicy.ranker.foreign_logs import is_obp, is_vowpal, read_obp, read_vowpal
from localpolicy.ranker.log import Answers, Column, RequestLog, checked
from localpolicy.ranker.served import is_served, served_tables
from localpolicy.ranker.tables import holds_lists, lists, numbers, read_table, seconds, texts, understood

OURS = ("request", "time", "person", "policy", "temperature", "standardise", "pinned", "weight")
LISTS = ("candidates", "scores", "probabilities", "shown")
FLAT = ("item", "score", "probability", "place", "event", "reward")
NAMES = (*OURS, *LISTS, *FLAT)
OF_RECORDS = ("propensities", "would_show")  # columns of a layer's record that state how it drew
ANSWER = "answer"  # event of an answer that names none
log = logging.getLogger(__name__)


def read_requests(
    requests: Any, outcomes: Any = None, *, items: Any = None, columns: Mapping[str, str] | None = None
) -> RequestLog:
    """Read and check a log of requests. `columns` maps our names to theirs; `items` is a table with a row per item."""
    if isinstance(requests, RequestLog):
        return requests
    if is_obp(requests):
        return read_obp(requests)
    if is_vowpal(requests):
        return read_vowpal(requests)
    if is_served(requests):
        if outcomes is not None:
            raise DataError(f"{requests} holds its answers: leave the outcomes out.")
        requests, outcomes = served_tables(requests)
    table, label = read_table(requests, "a log of requests")
    answers, named = (None, "") if outcomes is None else read_table(outcomes, "outcomes")
    there = [*table.column_names, *([] if answers is None else answers.column_names)]
    for ours, theirs in (columns or {}).items():
        if theirs not in there:
            raise DataError(f"no column '{theirs}' for '{ours}' in {label}{nearest(theirs, there)}")
    table = _renamed(table, columns or {}, label)
    if "request" not in table.column_names:
        raise DataError(f"{label} has no column 'request' (columns: {', '.join(table.column_names)}). Map it: "
                        "--columns request=NAME.")  # fmt: skip
    table, left_out = _as_lists(table)
    flat = "candidates" not in table.column_names
    if flat and "item" not in table.column_names:
        raise DataError(f"{label} has neither 'candidates' (a list per request) nor 'item' (a row per candidate); "
                        f"columns: {', '.join(table.column_names)}.")  # fmt: skip
    found = _flat(table, label) if flat else _listed(table, label)
    if answers is not None:
        answers = _renamed(answers, columns or {}, named)
        if left_out and "request" in answers.column_names:  # their answers go with them
            gone = pc.is_in(texts(answers["request"], "'request'"), pa.array(sorted(left_out)))
            answers = answers.filter(pc.invert(gone))
        found = _answered(found, answers, named)
    if items is not None:
        found = _described(found, *read_table(items, "an item table"))
    return checked(found)


def _as_lists(table: pa.Table) -> tuple[pa.Table, set[str]]:
    """Rows of lists from a layer's records, and the requests whose lists have no known law and are left out.

    Pages of one draw are joined.
    """
    names, left_out = set(table.column_names), set[str]()
    if not {"propensities", "page", "shown", "pinned"} <= names:
        return table, left_out
    if "rules" in names:
        kept = table.filter(pc.is_null(table["rules"]))
        if len(table) and not len(kept):
            raise DataError(f"all {len(table):,} lists were drawn with groups, or with pins below others: such lists "
                            "are left out, for one law of a request does not hold them. Draw some lists without "
                            "these rules.")  # fmt: skip
        if gone := len(table) - len(kept):
            log.info("left out %s lists with groups, or with pins below others, and their answers", f"{gone:,}")
        left_out = {*texts(table["request"], "'request'").to_pylist()} - {
            *texts(kept["request"], "'request'").to_pylist()
        }
        table = kept
    ids = texts(table["request"], "'request'")
    lengths, values = lists(table["shown"], "shown", ids)
    parts = np.split(np.array(values.to_pylist(), object), np.cumsum(lengths)[:-1])
    number = numbers(table["page"], "page")
    if len(without := np.flatnonzero(np.isnan(number))):
        raise DataError(f"request {shown(ids[int(without[0])].as_py())} has no page, as a layer's records have. Other "
                        "lists are a log of their own: improve from one of the two.")  # fmt: skip
    pinned = np.nan_to_num(numbers(table["pinned"], "pinned"))
    pages: dict[str, tuple[float, list[Any], float]] = {}
    requests = ids.to_pylist()
    for row in np.argsort(number, kind="stable"):
        request, page = requests[row], number[row]
        last, above, _ = pages.get(request, (0, [], 0))
        if page != last + 1:
            raise DataError(f"request {shown(request)} has page {page:g}, and not just one page {last + 1:g} before "
                            "it. Log each page once, or leave the request out.")  # fmt: skip
        pages[request] = page, [*above, *parts[row]], pinned[row]
    table = table.filter(pa.array(number == 1))
    whole = [pages[request] for request, page in zip(requests, number, strict=True) if page == 1]
    for name, column in (("shown", [one[1] for one in whole]), ("pinned", [one[2] for one in whole])):
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    return table.drop_columns([name for name in ("page", "rules", *OF_RECORDS) if name in names]), left_out


def _renamed(table: pa.Table, columns: Mapping[str, str], label: str) -> pa.Table:
    theirs = {name: ours for ours, name in columns.items()}
    for ours in columns:
        if ours not in NAMES:
            raise DataError(f"columns: '{ours}' is not a column of a log of requests{nearest(ours, NAMES)}")
    found = [theirs.get(name, name) for name in table.column_names]
    if len(set(found)) < len(found):
        raise DataError(f"{label} has two columns of one name: {', '.join(found)}. Rename one.")
    return table.rename_columns(found)


def _of_requests(table: pa.Table, left_out: list[str]) -> dict[str, Any]:
    """Read the fields that a log states once per request; every other column is context."""
    found: dict[str, Any] = {"context": {}}
    for name in table.column_names:
        values = table[name]
        if name == "person":
            found[name] = _persons(values)
        elif name == "time":
            found[name] = seconds(values)
        elif name == "temperature":
            found[name] = numbers(values, name)
        elif name == "standardise":
            found[name] = _standardise(values)
        elif name == "weight":
            found[name] = numbers(pc.fill_null(values, 1), name)
        elif name == "pinned":
            found[name] = np.nan_to_num(numbers(values, name)).astype(np.int64)
        elif name == "policy":
            found[name] = understood(values.cast(pa.string()))
        elif (column := understood(values)) is not None:
            found["context"][name] = column
        else:
            left_out.append(f"{name} ({values.type})")
    return found


def _standardise(values: pa.ChunkedArray) -> bool | None:
    """Whether a log's scores were standardised before the draw; None if the log does not state it."""
    stated = pc.unique(values.drop_null()).to_pylist()
    if len(stated) > 1 or not all(isinstance(one, bool) for one in stated):
        raise DataError(f"'standardise' must be true for every request or false for every one, found {stated[:3]}.")
    return stated[0] if stated else None


def _persons(values: pa.ChunkedArray) -> np.ndarray:
    """Integer code of each request's person; a request without a person gets a code of its own."""
    known = pc.is_valid(values).to_numpy(zero_copy_only=False)
    codes = np.arange(len(values), dtype=np.int64) + len(values)
    codes[known] = pc.dictionary_encode(texts(values.drop_null(), "person")).indices.to_numpy(zero_copy_only=False)
    return codes


def _items(named: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    packed = pc.dictionary_encode(named)
    return np.asarray(packed.indices.to_numpy(zero_copy_only=False), np.int64), np.array(packed.dictionary.to_pylist())


def _tell(left_out: list[str], label: str) -> None:
    if left_out:
        log.info("left out of %s: %s", label, ", ".join(left_out))


def _listed(table: pa.Table, label: str) -> RequestLog:
    """Read a log with one row per request."""
    ids = texts(table["request"], "'request'")
    lengths, candidates = lists(table["candidates"], "candidates", ids)
    start = np.concatenate([[0], np.cumsum(lengths)])
    per_candidate: dict[str, Any] = {}
    if pa.types.is_struct(candidates.type):
        parts = {field.name: candidates.field(number) for number, field in enumerate(candidates.type)}
        if "item" not in parts:
            raise DataError(f"candidates of {label} must name their item, found {', '.join(parts)}.")
        candidates = parts.pop("item")
        per_candidate = {"scores": parts.pop("score", None), "probabilities": parts.pop("probability", None)}
        per_candidate = {name: values for name, values in per_candidate.items() if values is not None} | parts
    if "shown" not in table.column_names:
        raise DataError(
            f"{label} has no column 'shown', the items of each list in order. Map it: --columns shown=NAME."
        )
    left_out: list[str] = []
    rest = [name for name in table.column_names if name not in ("request", "candidates", "shown")]
    for name in list(rest):
        if name in LISTS or holds_lists(table[name]):
            theirs, values = lists(table[name], name, ids)
            wrong = np.flatnonzero(theirs != lengths)
            if len(wrong):
                raise DataError(
                    f"request {shown(ids[int(wrong[0])].as_py())} has {lengths[wrong[0]]} candidates and "
                    f"{theirs[wrong[0]]} {name}. Log one for each candidate, in the same order."
                )
            per_candidate[name] = values
            rest.remove(name)
    item, items = _items(texts(candidates, "a candidate"))
    shown_lengths, shown_items = lists(table["shown"], "shown", ids)
    place = _places(ids, start, item, items, shown_lengths, texts(shown_items, "a shown item"))
    scores: dict[str, Any] = {ours: numbers(per_candidate.pop(name), name) if name in per_candidate else None
              for ours, name in (("score", "scores"), ("probability", "probabilities"))}  # fmt: skip
    columns = {name: column for name, values in per_candidate.items() if (column := understood(values)) is not None}
    left_out += [name for name in per_candidate if name not in columns]
    of_requests = _of_requests(table.select(rest), left_out)
    _tell(left_out, label)
    nothing = Answers(np.empty(0, np.int64), np.empty(0, np.int64), (), np.empty(0))
    return RequestLog(ids=np.array(ids.to_pylist()), start=start, item=item, items=items, place=place, answers=nothing,
                      columns=columns, label=label, **scores, **of_requests)  # fmt: skip


def _places(
    ids: pa.Array, start: np.ndarray, item: np.ndarray, items: np.ndarray, lengths: np.ndarray, named: pa.Array
) -> np.ndarray:
    """Return the place of every candidate, from 1; 0 if it was not shown."""
    code = pc.index_in(named, pa.array(items)).to_numpy(zero_copy_only=False)
    request = np.repeat(np.arange(len(lengths)), lengths)
    row = _rows(start, item, len(items), request, np.nan_to_num(code.astype(np.float64), nan=-1).astype(np.int64))
    strange = np.flatnonzero(row < 0)
    if len(strange):
        which = strange[0]
        raise DataError(f"request {shown(ids[int(request[which])].as_py())} shows {shown(named[int(which)].as_py())}, "
                        "which is none of its candidates. Log every item that could have been shown.")  # fmt: skip
    unique, counts = np.unique(row, return_counts=True)
    if len(unique) < len(row):
        twice = int(np.searchsorted(start, unique[counts > 1][0], "right") - 1)
        raise DataError(f"request {shown(ids[twice].as_py())} shows an item twice. A list holds each once.")
    place = np.zeros(len(item), np.int64)
    place[row] = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
    return place


def _rows(start: np.ndarray, item: np.ndarray, size: int, request: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Return the candidate's row of each (request, item) pair; -1 if there is none."""
    pairs = np.repeat(np.arange(len(start) - 1), np.diff(start)) * size + item
    order = np.argsort(pairs, kind="stable")
    asked = request * size + code
    at = np.minimum(np.searchsorted(pairs, asked, sorter=order), len(pairs) - 1)
    found: np.ndarray = np.where((code >= 0) & (request >= 0) & (pairs[order[at]] == asked), order[at], -1)
    return found


def _flat(table: pa.Table, label: str) -> RequestLog:
    """Read a log with one row per request and candidate."""
    if "place" not in table.column_names:
        raise DataError(f"{label} has no column 'place': where each shown candidate stood, from 1, empty for others.")
    packed = pc.dictionary_encode(texts(table["request"], "'request'"))
    request = packed.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(request, kind="stable")
    table, request = table.take(pa.array(order)), request[order]
    start = np.searchsorted(request, np.arange(len(packed.dictionary) + 1))
    item, items = _items(texts(table["item"], "'item'"))
    place = np.nan_to_num(numbers(table["place"], "place")).astype(np.int64)
    score, probability = (numbers(table[name], name) if name in table.column_names else None
                          for name in ("score", "probability"))  # fmt: skip
    answers = _answers(table, np.arange(len(item)), np.flatnonzero(place > 0), label)
    columns: dict[str, Column] = {}
    first = table.take(pa.array(start[:-1]))
    constant = ["request"]
    for name in table.column_names:
        if name in (*FLAT, "request"):
            continue
        codes = pc.dictionary_encode(table[name].combine_chunks(), null_encoding="encode").indices.to_numpy()
        if name in OURS or (np.maximum.reduceat(codes, start[:-1]) == np.minimum.reduceat(codes, start[:-1])).all():
            constant.append(name)
        elif (column := understood(table[name])) is not None:
            columns[name] = column
    left_out: list[str] = []
    of_requests = _of_requests(first.select(constant[1:]), left_out)
    _tell(left_out, label)
    return RequestLog(ids=np.array(packed.dictionary.to_pylist()), start=start, item=item, items=items, place=place,
                      answers=answers, score=score, probability=probability, columns=columns, label=label,
                      **of_requests)  # fmt: skip


def _answers(table: pa.Table, row: np.ndarray, considered: np.ndarray, label: str) -> Answers:
    """Read answers (an event, a reward, or both) from the `considered` rows; `row` names each row's candidate."""
    count = len(table)
    reward = numbers(table["reward"], "reward") if "reward" in table.column_names else np.full(count, np.nan)
    names: tuple[str, ...]
    named = understood(table["event"].cast(pa.string())) if "event" in table.column_names else None
    if named is None or named.names is None:
        codes, names = np.zeros(count, np.int32), (ANSWER,)
        stated = np.nan_to_num(reward) != 0
    else:
        codes, names = named.values, named.names
        none = np.array([name in ("", NO_ANSWER) for name in names], bool)
        stated = (codes >= 0) & ~(none[codes] if len(none) else False)
        codes = np.where(stated, codes, 0)
        if "reward" in table.column_names:
            stated = stated | (np.nan_to_num(reward) != 0)
    silent = stated & np.isnan(reward)
    if silent.any() and not silent[stated].all():
        log.warning(
            "%s: %s of %s answers state no reward, where others do, and count as 1 each. State it, or leave them out",
            label, f"{silent.sum():,}", f"{stated.sum():,}",
        )  # fmt: skip
    reward = np.where(np.isnan(reward), 1.0, reward)
    keep = np.intersect1d(np.flatnonzero(stated), considered)
    used = np.unique(codes[keep])
    again = np.searchsorted(used, codes[keep])
    return Answers(row[keep], again, tuple(names[one] for one in used), reward[keep])


def _answered(found: RequestLog, table: pa.Table, label: str) -> RequestLog:
    """Add the answers of a second table to the log."""
    for name in ("request", "item"):
        if name not in table.column_names:
            raise DataError(f"{label} has no column '{name}' (columns: {', '.join(table.column_names)}). Map it: "
                            f"--columns {name}=NAME.")  # fmt: skip
    ids, named = texts(table["request"], "'request'"), texts(table["item"], "'item'")
    request = pc.fill_null(pc.index_in(ids, pa.array(found.ids)), -1).to_numpy(zero_copy_only=False)
    code = pc.fill_null(pc.index_in(named, pa.array(found.items)), -1).to_numpy(zero_copy_only=False)
    row = _rows(found.start, found.item, len(found.items), request.astype(np.int64), code.astype(np.int64))
    lost = np.flatnonzero(row < 0)
    if len(lost):
        where = int(lost[0])
        what = "is not in the log of requests" if request[where] < 0 else "has no such candidate"
        raise DataError(f"{label}: an answer names request {shown(ids[where].as_py())} and item "
                        f"{shown(named[where].as_py())}, but the request {what} ({len(lost):,} such answers). Log the "
                        "request, or leave its answers out.")  # fmt: skip
    if not {"event", "reward"} & set(table.column_names):
        table = table.append_column("reward", pa.array(np.ones(len(table))))
    new = _answers(table, row, np.arange(len(row)), label)
    if len(found.answers.row):
        raise DataError("answers come twice: in the log of requests and as outcomes. Leave one of them out.")
    return replace(found, answers=new)


def _described(found: RequestLog, table: pa.Table, label: str) -> RequestLog:
    """Add the columns of an item table to the log."""
    key = next((name for name in ("item", "item_id") if name in table.column_names), None)
    if key is None:
        raise DataError(f"{label} has no column 'item' (columns: {', '.join(table.column_names)}).")
    ids = texts(table[key], f"'{key}'")
    if len(pc.unique(ids)) < len(ids):
        raise DataError(f"{label} describes an item twice.")
    at = pc.index_in(pa.array(found.items), ids)
    columns = dict(found.columns)
    for name in table.column_names:
        if name == key:
            continue
        if name in columns or name in found.context:
            raise DataError(f"'{name}' is a column of the log and of {label}. Rename one.")
        column = understood(table[name].take(at))
        if column is None:
            log.info("left out of %s: %s (%s)", label, name, table[name].type)
        else:
            columns[name] = column.at(found.item)
    return replace(found, columns=columns)
