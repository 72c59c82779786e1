"""What a log's columns and events mean, guessed from names and values: shown to the user, never taken in silence.

Every column of the log gets a line: used as what, or ignored and why. A column that looks like a time or a reward is
used, or asked about. Where there is no time the order of the file stands for it; that is said, with a test of whether
the rows are sorted by something that is not time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localpolicy.data.column_names import by_its_end, columns_meant, plain
from localpolicy.data.guess.event_words import guess_rewards, number
from localpolicy.data.guess.log import LogColumns, column_names, list_columns, opened, title_column
from localpolicy.data.guess.reading import Reading, Use
from localpolicy.data.guess.reward import refuse_empty_rewards, settle_event, settle_one_event, settle_reward
from localpolicy.data.guess.shown import settle_lists, settle_propensity, settle_showings
from localpolicy.data.guess.when import say_order, settle_time
from localpolicy.data.guess.who import settle_sequence, settle_split
from localpolicy.data.guess.words import meaning
from localpolicy.data.reading import ROW
from localpolicy.data.times import Notation
from localpolicy.errors import DataError

NEEDED = ("sequence_id", "item_id")
OPEN_BANDIT = {"item_id", "position", "click", "propensity_score"}
PUBLISHED = {"all", "men", "women", *(f"{a}_{b}" for a in ("random", "bts") for b in ("all", "men", "women"))}
IDS = ("id", "no", "nr", "number", "nummer", "code", "key")  # how names of ids end
MOST_SHOWN = 20  # columns that an error names


@dataclass(frozen=True)
class Guess:
    """How a log is read, as `lpi prepare` would be told."""

    source: str  # the reader
    columns: Mapping[str, str]  # our column -> the log's
    rewards: str | None  # as --rewards; None: the reader's own, or the log's column
    event: str | None = None  # of every row
    rename: Mapping[str, str] = field(default_factory=dict)  # the log's event -> ours
    unsure: tuple[str, ...] = ()  # what the user should look at
    uses: tuple[Use, ...] = ()  # every column of the log
    sequences: int = 0  # about so many
    items: int = 0  # likewise; 0: the reader knows
    kind: str | None = None  # what the log holds, where its events do not tell
    skip_bad_rows: bool = False
    split: str | None = None  # the log's column that says which split a row is in
    meaning: tuple[str, ...] = ()  # what a sequence, an item and the reward are, in words of this log
    held_out: int | None = None  # sequences for validation and for the test each; None: a tenth
    decisions: int = 0  # about so many with propensities: rows, or lists
    full_lists: bool = False  # whether each list holds nearly all items, and no propensities are stated
    preparing: Mapping[str, Any] = field(default_factory=dict)  # settings of `prepare` that the user gave beside these

    def settings(self) -> dict[str, Any]:
        """For `prepare`."""
        settings = {
            "columns": dict(self.columns), "rewards": self.rewards, "event": self.event, "rename": dict(self.rename),
            "kind": self.kind, "skip_bad_rows": self.skip_bad_rows, "validation": self.held_out, "test": self.held_out,
            "split": self.split,
        }  # fmt: skip
        return {**{name: value for name, value in settings.items() if value}, **self.preparing}


class UnknownColumns(DataError):
    """Columns whose names say nothing: the user must."""

    def __init__(self, path: Path, missing: Sequence[str], names: Sequence[str], lists: Sequence[str] = ()) -> None:
        self.missing, self.names = list(missing), list(names)
        listed = ", ".join(names[:MOST_SHOWN]) + (
            f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        )
        headless = sum(number(name) is not None for name in names) > len(names) / 2
        remedy = (
            "These are numbers: has the file no header? Write the columns' names into its first line"
            if headless
            else f"Say which it is: --columns {','.join(f'{name}=NAME' for name in missing)}"
        )
        if lists and "item_id" in missing:
            remedy = f"Is it in {' or '.join(lists)}, which holds lists? Write one row for each item then"
        super().__init__(f"{path}: no column looks like {' or '.join(missing)} (its columns: {listed}). {remedy}")


def guess(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    rewards: str | None = None,
    rename: Mapping[str, str] | None = None,
    skip_bad_rows: bool = False,
    dates: Notation | None = None,
) -> Guess:
    """Read the names, and the values; what the user says holds.

    `dates` says whether dates with the year last begin with day or month.
    """
    rename, given = dict(rename or {}), dict(columns or {})
    names, why = column_names(path), "as you said"
    if not given and set(names) >= OPEN_BANDIT and path.name.partition(".")[0] not in PUBLISHED:
        given = {"sequence_id": ROW, "event": "click", "propensity": "propensity_score"}  # each row is a decision alone
        rename, rewards = rename or {"0": "none", "1": "click"}, rewards or "none=0,click=1"
        why = "its name, as in the Open Bandit data"
    elif not given and set(names) >= OPEN_BANDIT:
        return Guess("openbandit", {}, rewards, uses=tuple(Use(name, "openbandit", "as published") for name in names))
    taken = {part for theirs in given.values() for part in theirs.split("+")}  # a+b: the two together
    meant = {**columns_meant([name for name in names if name not in taken]), **given}
    without_names = _by_ends(meant, names)
    titled = meant.get("item_id") == title_column(names) and {"sequence_id", "item_id"}.isdisjoint(given)
    missing = [name for name in NEEDED if name not in meant]
    if missing:
        raise UnknownColumns(path, missing, names, list_columns(path))
    parts = [part for theirs in meant.values() for part in theirs.split("+")]
    unknown = next((part for part in parts if part not in (*names, ROW)), None)
    if unknown is not None:
        raise DataError(f"{path} has no column '{unknown}': its columns are {', '.join(names)}.")
    with opened(path, skip_malformed=skip_bad_rows) as (engine, table):
        reading = Reading(path, LogColumns(engine, table), meant, given, rewards, rename, why)
        reading.unsure += without_names
        reading.skip_bad_rows, reading.dates = skip_bad_rows, dates
        if not reading.log.count():
            raise DataError(f"{path} holds no rows, only the names of columns.")
        if titled and reading.log.several(meant["sequence_id"], meant["item_id"]) == 0:  # an item's id, and its title
            raise UnknownColumns(path, ["sequence_id"], names)
        return replace(_guessed(reading), skip_bad_rows=skip_bad_rows)


def _guessed(reading: Reading) -> Guess:
    """Roles one after another: a later one leaves alone what an earlier one took."""
    settle_sequence(reading)
    settle_split(reading)
    settle_time(reading)
    settle_propensity(reading)
    settle_event(reading)
    settle_reward(reading)
    if "event" not in reading.meant:
        settle_one_event(reading)
    else:
        settle_showings(reading)
    if "event" in reading.meant and reading.rewards is None and "reward" not in reading.meant:
        counts: Counter[str] = Counter()
        for value, count in reading.log.values(reading.meant["event"]).items():
            counts[reading.rename.get(value, value)] += count
        reading.rewards, unsure = guess_rewards(counts, reading.path)
        reading.unsure += unsure
    if not reading.skip_bad_rows:
        refuse_empty_rewards(reading)
    settle_lists(reading)
    if "timestamp" not in reading.meant:
        say_order(reading)
    ours = {name: theirs for name, theirs in reading.meant.items() if name != theirs}
    renamed = {theirs: name for theirs, name in reading.rename.items() if theirs != name}
    return Guess(
        "events", ours, reading.rewards, reading.event, renamed, tuple(reading.unsure), tuple(reading.uses()),
        reading.sequences(), reading.log.distinct(reading.meant["item_id"]), reading.kind, split=reading.split,
        meaning=meaning(reading), decisions=reading.decisions(), full_lists=reading.full_lists(),
    )  # fmt: skip


def _by_ends(meant: dict[str, str], names: Sequence[str]) -> list[str]:
    """Who and what, where no name is known: by its end, an only id that is left, a request, or a decision alone."""
    said = []
    for ours, what in (("item_id", "item"), ("sequence_id", "person or visit")):
        free = "request" if ours == "sequence_id" else ""  # a request may stand for a visit, never for an item
        used = {part for name, theirs in meant.items() if name != free for part in theirs.split("+")}
        left = [name for name in names if name not in used and plain(name).endswith(IDS)]
        if ours in meant:
            continue
        free_names = [name for name in names if name not in used]
        named, title = by_its_end(free_names, ours), title_column(free_names) if ours == "item_id" else None
        if named is not None:
            meant[ours] = named
            said.append(f"{named} is taken for the {what}, by its name's end; to change that: --columns {ours}=NAME")
        elif title is not None and len(left) == ("sequence_id" not in meant):  # the only id is the sequence's
            meant[ours] = title
            said.append(f"{title} is taken for the item, since no id says it; to change that: --columns {ours}=NAME")
        elif len(left) == 1:
            meant[ours] = left[0]
            said.append(f"{left[0]} is taken for the {what}, since it is the only id left")
        elif ours == "sequence_id" and "request" in meant:
            meant[ours] = meant["request"]
            said.append(f"no column says who it was: each {meant['request']} is a sequence of its own")
        elif ours == "sequence_id" and "propensity" in meant:
            meant[ours] = ROW
            said.append("no column says who it was: each row is a decision of its own, without a history")
    return said
