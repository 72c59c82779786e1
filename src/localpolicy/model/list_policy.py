"""A deployed recommender given as a file of what it shows: lists, scores or probabilities per history.

One row per listed item, CSV or Parquet:

    item_id       as the log writes it; or another of its usual names, as in `data.column_names`
    sequence_id   whose list it is (or user_id, session, …); without it, one list for everyone
    after         actions of that sequence before the list was made (default 0: it holds for all of it). Until the
                  next list of the sequence, the latest one holds
    probability, score or rank   order of the list (default: the rows' order)

People without a list are counted, and policies that are compared with such lists are measured on the people who have
one: `people_of`.

A probability is taken as it is; scores become probabilities by softmax over the list, ranks by 1 / log2(rank + 1), the
discount of nDCG. The remaining probability goes to unlisted items by their popularity, always behind every listed one,
so that ranks are those of the file, whatever the rest of the distribution. Likelihood and divergence of ranks depend on
these choices, and the notes of the policy say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from torch import Tensor

from localpolicy.catalogue.sparse import SparseLogits
from localpolicy.data.column_names import columns_meant, plain
from localpolicy.data.item_table import ids_as, known_ids
from localpolicy.data.store import Prepared
from localpolicy.errors import DataError
from localpolicy.logits import Logits
from localpolicy.model.baselines import popularity
from localpolicy.model.deployable import Origin
from localpolicy.types import Batch

ORDERS = ("probability", "score", "rank")
READ = ("sequence_id", "item_id", "after", *ORDERS)
ORDER_NAMES = {  # other names of these columns
    "probability": ("prob", "propensity"),
    "score": ("scores", "prediction", "predicted", "relevance", "logit"),
    "rank": ("ranking", "position", "place"),
}
EVERYONE = -1  # the sequence of a list for everyone
BACKGROUND = 0.1  # largest probability of all unlisted items together
WHOLE = 1e-4  # tolerance for the sum of a list's probabilities against 1
NOTHING_LEFT = 1e-30  # background of a list that sums to 1: in place of 0, whose logarithm has no products


@dataclass(frozen=True)
class ListPolicy:
    """Lists of one split's sequences, sorted by (sequence, after)."""

    path: Path
    share: Tensor  # [V] popularity, for unlisted items
    background: float  # ε, the probability of unlisted items
    key: np.ndarray  # [L] sequence * (longest + 1) + after of each list
    longest: int
    bounds: np.ndarray  # [L + 1] offsets of each list's items
    item: np.ndarray  # [E] items of all lists
    weight: np.ndarray  # [E] their probabilities, each list's summing to 1 at most
    order: str  # column that ordered them
    origin: Origin
    items: pa.Table
    split: str
    people: np.ndarray  # sequences of the split that have a list
    notes: tuple[str, ...] = ()

    def logits(self, batch: Batch) -> Logits:
        """log[(1 - ε) weight] for listed items, log[ε popularity] for the rest."""
        token = batch.scored.cpu().numpy()
        row, history = batch.row.cpu().numpy()[token], batch.history.cpu().numpy()[token]
        list_number = self.lists_of(batch.owners.cpu().numpy()[row], history)
        size = np.where(list_number >= 0, np.diff(self.bounds)[list_number], 0)
        position = np.repeat(np.arange(len(token)), size)
        offset = np.arange(len(position)) - np.repeat(np.cumsum(size) - size, size)
        at = self.bounds[:-1][list_number[position]] + offset
        device = batch.row.device
        value = torch.from_numpy(np.log((1 - self.background) * self.weight[at])).to(self.share)
        base = torch.log(self.background * self.share)
        return SparseLogits(
            base.to(device), len(token), torch.from_numpy(position).to(device),
            torch.from_numpy(self.item[at]).to(device), value.to(device),
        )  # fmt: skip

    def lists_of(self, sequence: np.ndarray, history: np.ndarray) -> np.ndarray:
        """Number of the latest list made for each (sequence, history), or -1."""
        own = (sequence.astype(np.int64) + 1) * (self.longest + 1)
        latest = np.searchsorted(self.key, own + np.minimum(history, self.longest), side="right") - 1
        mine = (latest >= 0) & (self.key[np.maximum(latest, 0)] >= own)
        for_everyone = (
            np.searchsorted(self.key, np.minimum(history, self.longest), side="right") - 1
        )  # EVERYONE's come first
        return np.where(mine, latest, np.where(for_everyone >= 0, for_everyone, -1))


def check_lists(path: Path | str) -> None:
    """Raise DataError if a file cannot hold lists, before anything is trained for a comparison with them."""
    if not Path(path).is_file():
        raise DataError(f"{path} does not exist: expected a CSV or Parquet file of lists, one row per listed item.")
    _named(_read(Path(path)), Path(path))


def read_list_policy(path: Path | str, data: Prepared, split: str) -> ListPolicy:
    """Read a file of lists for the sequences of one split."""
    path = Path(path)
    table, called, notes = _named(_read(path), path)
    item = _index(table["item_id"], data.catalogue["item_id"], path, called["item_id"])
    sequence = np.full(len(table), EVERYONE)
    ours = np.ones(len(table), dtype=bool)
    if "sequence_id" in table.column_names:
        sequence = _index(table["sequence_id"], data.sequence_ids(split), path, called["sequence_id"])
        ours = sequence >= 0
    after = np.zeros(len(table), np.int64)
    if "after" in table.column_names:
        after = _numbers(table, "after", path).astype(np.int64)
    order = next((name for name in ORDERS if name in table.column_names), "row order")
    if order == "score" and "rank" in table.column_names and _disagree(table, sequence, after, path):
        order = "rank"
        notes.append(f"{path.name}: score and rank order some lists differently, and the rank is taken")
    value = np.arange(len(table), dtype=np.float64) if order == "row order" else _numbers(table, order, path)
    if order == "probability" and not ((value >= 0) & (value <= 1)).all():
        raise DataError(f"{path}: probabilities must lie between 0 and 1.")
    unknown = ours & (item < 0)
    if unknown.any():
        notes.append(f"{unknown.sum():,} listed items of {path.name} are not in the log's catalogue and were left out")
    kept = ours & (item >= 0) & ((value > 0) if order == "probability" else True)
    if not kept.any():
        raise DataError(f"{path}: no list is of a sequence of the {split} split and holds a known item.")
    falling = -value if order in ("probability", "score") else value
    at = np.flatnonzero(kept)
    at = at[np.lexsort((np.arange(len(at)), falling[at], after[at], sequence[at]))]
    longest = int(after[at].max())
    key = (sequence[at].astype(np.int64) + 1) * (longest + 1) + after[at]
    pairs = np.stack([key, item[at]])
    first_time = np.zeros(len(at), dtype=bool)
    first_time[np.unique(pairs, axis=1, return_index=True)[1]] = True  # an item listed twice counts where it came first
    if sequence[at].max() == EVERYONE and "after" not in table.column_names and not first_time.all():
        raise DataError(
            f"{path}: {int((~first_time).sum()):,} items are listed more than once, and no column says whose list a "
            f"row belongs to. Call it sequence_id (or user_id, session); found {', '.join(called.values())}."
        )
    at, key = at[first_time], key[first_time]
    people = np.unique(sequence[at]) if sequence[at].min() != EVERYONE else np.arange(len(data[split]))
    if len(people) < len(data[split]):
        notes.append(
            f"{path.name} has lists for {len(people):,} of the {len(data[split]):,} sequences of the {split} split: "
            "everything here is measured on these alone"
        )
    lists, start, size = np.unique(key, return_index=True, return_counts=True)
    weight = _weights(order, value[at], np.repeat(start, size), np.repeat(np.arange(len(lists)), size), path)
    share = popularity(data)
    least = float(weight.min())
    background = min(BACKGROUND, 0.5 * least / (least + float(share.max())))
    if order == "probability" and np.add.reduceat(weight, start).min() > 1 - WHOLE:
        background = NOTHING_LEFT
    return ListPolicy(
        path, share, background, lists, longest, np.append(start, len(at)), item[at].astype(np.int64), weight, order,
        Origin("recorded", data.kind, data.events, None), data.catalogue, split, people, tuple(notes),
    )  # fmt: skip


def people_of(policies: Iterable[object]) -> np.ndarray | None:
    """Sequences for which every one of these policies that is a file of lists has a list; None: all."""
    lists = [policy.people for policy in policies if isinstance(policy, ListPolicy)]
    if not lists:
        return None
    people: np.ndarray = reduce(np.intersect1d, lists)
    if not len(people):
        raise DataError("the files of lists have no sequence in common: write lists for the same people.")
    return people


def _named(table: pa.Table, path: Path) -> tuple[pa.Table, dict[str, str], list[str]]:
    """The table under our names, the file's names by ours, and a note on the unread columns."""
    names = table.column_names
    called = {name: name for name in READ if name in names}
    left = [name for name in names if name not in called]
    called |= columns_meant(left, [name for name in ("sequence_id", "item_id") if name not in called])
    for ours, words in ORDER_NAMES.items():
        meant = next((name for name in left if plain(name) in words and name not in called.values()), None)
        if ours not in called and meant is not None:
            called[ours] = meant
    if "item_id" not in called:
        raise DataError(
            f"{path}: no column item_id. Expected one row per listed item: item_id, and where known sequence_id, after "
            f"and one of {', '.join(ORDERS)}; found {', '.join(names)}."
        )
    unread = [name for name in names if name not in called.values()]
    logged = [*columns_meant(unread, ("event", "timestamp")).values()]
    if ordered := [name for name in ORDERS if name in called]:
        logged = [name for name in logged if plain(name).startswith("event")]  # a list may have a time
    if logged:
        lacks = "" if ordered else f", and none of {', '.join(ORDERS)}"
        raise DataError(
            f"{path} looks like a log, not like lists: it has {' and '.join(logged)}{lacks}. Expected one row per "
            "listed item: whose list (sequence_id, user_id), item_id, and rank or score. Leave the other columns "
            "out if these are lists. A log is prepared by lpi prepare, or judged by lpi go."
        )
    notes = [f"{path.name}: the columns {', '.join(unread)} are not read"] if unread else []
    return pa.table({ours: table[theirs] for ours, theirs in called.items()}), called, notes


def _disagree(table: pa.Table, sequence: np.ndarray, after: np.ndarray, path: Path) -> bool:
    """Whether a higher score stands at a later rank of the same list."""
    score, rank = _numbers(table, "score", path), _numbers(table, "rank", path)
    at = np.lexsort((rank, after, sequence))
    same = (sequence[at][1:] == sequence[at][:-1]) & (after[at][1:] == after[at][:-1])
    return bool((same & (np.diff(score[at]) > 0)).any())


def _weights(order: str, value: np.ndarray, start: np.ndarray, number: np.ndarray, path: Path) -> np.ndarray:
    """Probabilities of the listed items; each list sums to 1, or to what a file of probabilities says."""
    if order == "probability":
        if (total := np.bincount(number, weights=value)).max() > 1 + 1e-4:
            raise DataError(f"{path}: the probabilities of one list sum to {total.max():.4f}, which is more than 1.")
        return value
    rank = np.arange(len(value)) - start
    raw = np.exp(value - value[start]) if order == "score" else 1 / np.log2(rank + 2)  # a list begins with its largest
    raw = np.maximum(raw, 1e-12)  # a listed item stays before every unlisted one
    return np.asarray(raw / np.bincount(number, weights=raw)[number])


def _read(path: Path) -> pa.Table:
    try:
        if path.name.endswith(".parquet"):
            return pq.read_table(path)
        names = pa.csv.open_csv(path).schema.names
        ids = {"sequence_id", "item_id", *columns_meant(names, ("sequence_id", "item_id")).values()}
        texts = pa.csv.ConvertOptions(column_types={name: pa.string() for name in names if name in ids})
        return pa.csv.read_csv(path, convert_options=texts)  # else 007 would be 7
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read as a table ({error}): expected CSV or Parquet of lists.") from None


def _index(column: pa.ChunkedArray, known: pa.ChunkedArray | pa.Array, path: Path, name: str) -> np.ndarray:
    """Position of each value among the known ones, or -1."""
    known = known.combine_chunks() if isinstance(known, pa.ChunkedArray) else known
    try:
        values = ids_as(known_ids(column), known.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(f"{path}: {name} is {column.type}, and the log writes it as {known.type}.") from None
    return np.asarray(pc.fill_null(pc.index_in(values, value_set=known), -1).to_numpy(), np.int64)


def _numbers(table: pa.Table, name: str, path: Path) -> np.ndarray:
    try:
        numbers = np.asarray(table[name].cast(pa.float64()).to_numpy())
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: {name} must be numbers ({error}).") from None
    if not np.isfinite(numbers).all():
        raise DataError(f"{path}: {name} is empty or not finite in row {int((~np.isfinite(numbers)).argmax()) + 1}.")
    return numbers
