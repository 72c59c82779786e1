"""Guess of what a log's columns and events mean, from names and values: shown to the user, never made silently.

Every column of the log gets a line: used as what, or ignored and why. A column that looks like a time or a reward is
used, or asked about. Without a time the order of the file stands for it, with a note, and a test of whether
the rows are sorted by something that is not time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localpolicy.data.column_names import by_its_end, columns_meant, plain
from localpolicy.data.guess.choices import case_and_item, chosen_among_columns
from localpolicy.data.guess.event_words import guess_rewards, number
from localpolicy.data.guess.impressions import settle_lists, settle_propensity, settle_showings
from localpolicy.data.guess.log_columns import LogColumns, column_names, list_columns, opened, title_column
from localpolicy.data.guess.reward import refuse_empty_rewards, settle_event, settle_one_event, settle_reward
from localpolicy.data.guess.state import GuessState, Use
from localpolicy.data.guess.when import say_order, settle_time
from localpolicy.data.guess.who import settle_sequence, settle_split
from localpolicy.data.guess.words import meaning
from localpolicy.data.log_schema import ROW
from localpolicy.data.times import Notation
from localpolicy.errors import DataError

NEEDED = ("sequence_id", "item_id")
OPEN_BANDIT = {"item_id", "position", "click", "propensity_score"}
PUBLISHED = {"all", "men", "women", *(f"{a}_{b}" for a in ("random", "bts") for b in ("all", "men", "women"))}
IDS = ("id", "no", "nr", "number", "nummer", "code", "key")  # how names of ids end
MOST_SHOWN = 20  # columns that an error names


@dataclass(frozen=True)
class Guess:
    """Guessed settings of `lpi prepare` for a log, with notes for the user."""

    source: str  # the reader
    columns: Mapping[str, str]  # our column -> the log's
    rewards: str | None  # as --rewards; None: the reader's own, or the log's column
    event: str | None = None  # the event of every row
    rename: Mapping[str, str] = field(default_factory=dict)  # the log's event -> ours
    unsure: tuple[str, ...] = ()  # notes that the user should check
    uses: tuple[Use, ...] = ()  # the use of every column of the log
    sequences: int = 0  # approximate number
    items: int = 0  # approximate number; 0: the reader knows
    kind: str | None = None  # interactions or impressions, if the events do not decide
    skip_bad_rows: bool = False
    split: str | None = None  # the log's column that says which split a row is in
    meaning: tuple[str, ...] = ()  # what a sequence, an item and the reward are, in the log's words
    held_out: int | None = None  # sequences for validation and for the test each; None: a tenth
    decisions: int = 0  # approximate number of decisions with propensities: rows, or lists
    shares: str = ""  # of the items, where each sequence is one row and all rows are worth the same: all that is known
    full_lists: bool = False  # whether each list holds nearly all items, and no propensities are stated
    preparing: Mapping[str, Any] = field(default_factory=dict)  # other settings of `prepare` that the user gave

    def settings(self) -> dict[str, Any]:
        """Return the settings for `prepare`."""
        settings = {
            "columns": dict(self.columns), "rewards": self.rewards, "event": self.event, "rename": dict(self.rename),
            "kind": self.kind, "skip_bad_rows": self.skip_bad_rows, "validation": self.held_out, "test": self.held_out,
            "split": self.split,
        }  # fmt: skip
        return {**{name: value for name, value in settings.items() if value}, **self.preparing}


class UnknownColumns(DataError):
    """The log has no column that looks like a required one: the user must name it."""

    def __init__(
        self, path: Path, missing: Sequence[str], names: Sequence[str], lists: Sequence[str] = (),
        *, event: str | None = None,
    ) -> None:  # fmt: skip
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
        if len(names) == 1 and len(names[0].split()) > 1:
            remedy = (
                "Each line is read as one column: do spaces part its fields? Write commas between them, and the "
                "columns' names into the first line"
            )
        if event is not None and missing == ["item_id"]:
            remedy += (
                f". Rows seem to state what was done ({event}), and not with which item: if these steps or pages are "
                f"what is shown, they are the items: --columns item_id={event}"
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
    """Guess how a log is read, from its columns' names and values; what the user states is kept.

    `dates` says whether dates with the year last begin with day or month.
    """
    rename, given = dict(rename or {}), dict(columns or {})
    names, why = column_names(path), "as you said"
    if not given and set(names) >= OPEN_BANDIT and path.name.partition(".")[0] not in PUBLISHED:
        given = {
            "sequence_id": ROW,
            "event": "click",
            "propensity": "propensity_score",
        }  # each row is a decision of its own
        rename, rewards = rename or {"0": "none", "1": "click"}, rewards or "none=0,click=1"
        why = "its name, as in the Open Bandit data"
    elif not given and set(names) >= OPEN_BANDIT:
        return Guess("openbandit", {}, rewards, uses=tuple(Use(name, "openbandit", "as published") for name in names))
    taken = {part for theirs in given.values() for part in theirs.split("+")}  # a+b: the two together
    meant = {**columns_meant([name for name in names if name not in taken]), **given}
    alternatives: frozenset[str] = frozenset()
    without_names = []
    if "item_id" not in meant and by_its_end(names, "item_id") is None:
        notes, alternatives = _by_choices(path, meant, skip_malformed=skip_bad_rows)
        without_names += notes
    without_names += _by_ends(meant, [name for name in names if name not in alternatives])
    titled = meant.get("item_id") == title_column(names) and {"sequence_id", "item_id"}.isdisjoint(given)
    missing = [name for name in NEEDED if name not in meant]
    if missing:
        raise UnknownColumns(path, missing, names, list_columns(path), event=meant.get("event"))
    parts = [part for theirs in meant.values() for part in theirs.split("+")]
    unknown = next((part for part in parts if part not in (*names, ROW)), None)
    if unknown is not None:
        raise DataError(f"{path} has no column '{unknown}': its columns are {', '.join(names)}.")
    with opened(path, skip_malformed=skip_bad_rows) as (engine, table):
        state = GuessState(path, LogColumns(engine, table), meant, given, rewards, rename, why)
        state.unsure += without_names
        state.alternatives = alternatives
        state.why |= {name: "ignored: it is of one alternative, and not of the row" for name in alternatives}
        state.skip_bad_rows, state.dates = skip_bad_rows, dates
        if not state.log.count():
            raise DataError(f"{path} holds no rows, only the names of columns.")
        if titled and state.log.several(meant["sequence_id"], meant["item_id"]) == 0:  # an item's id, and its title
            raise UnknownColumns(path, ["sequence_id"], names)
        return replace(_guessed(state), skip_bad_rows=skip_bad_rows)


def _guessed(state: GuessState) -> Guess:
    """Settle the columns' roles one after another; a later role leaves alone what an earlier one took."""
    settle_sequence(state)
    settle_split(state)
    settle_time(state)
    settle_propensity(state)
    settle_event(state)
    settle_reward(state)
    if "event" not in state.meant:
        settle_one_event(state)
    else:
        settle_showings(state)
    if "event" in state.meant and state.rewards is None and "reward" not in state.meant:
        counts: Counter[str] = Counter()
        for value, count in state.log.values(state.meant["event"]).items():
            counts[state.rename.get(value, value)] += count
        state.rewards, unsure = guess_rewards(counts, state.path)
        state.unsure += unsure
    if not state.skip_bad_rows:
        refuse_empty_rewards(state)
    settle_lists(state)
    if "timestamp" not in state.meant:
        say_order(state)
    ours = {name: theirs for name, theirs in state.meant.items() if name != theirs}
    renamed = {theirs: name for theirs, name in state.rename.items() if theirs != name}
    return Guess(
        "events", ours, state.rewards, state.event, renamed, tuple(state.unsure), tuple(state.uses()),
        state.sequences(), state.log.distinct(state.meant["item_id"]), state.kind, split=state.split,
        meaning=meaning(state), decisions=state.decisions(), full_lists=state.full_lists(), shares=state.shares(),
    )  # fmt: skip


def _by_choices(path: Path, meant: dict[str, str], *, skip_malformed: bool) -> tuple[list[str], frozenset[str]]:
    """Find an item without a known name as what was chosen; return notes, and columns of one alternative each."""
    with opened(path, skip_malformed=skip_malformed) as (engine, table):
        log = LogColumns(engine, table)
        wide, long = chosen_among_columns(log), case_and_item(log)
    if wide is not None and wide[0] not in meant.values():
        meant["item_id"], alternatives = wide
        note = "it names one of the alternatives that have columns of their own, and only what was chosen is read"
        return [
            f"{meant['item_id']} is taken for the item: {note}; to change that: --columns item_id=NAME"
        ], alternatives
    if long is not None and long[1] not in meant.values():
        case, meant["item_id"] = long
        note = f"each {case} shows it once at most, and one was chosen"
        return [
            f"{meant['item_id']} is taken for the item: {note}; to change that: --columns item_id=NAME"
        ], frozenset()
    return [], frozenset()


def _by_ends(meant: dict[str, str], names: Sequence[str]) -> list[str]:
    """Add the columns of item and person to `meant` if no usual name gave them, by less sure signs; return notes."""
    notes = []
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
            notes.append(f"{named} is taken for the {what}, by its name's end; to change that: --columns {ours}=NAME")
        elif title is not None and len(left) == ("sequence_id" not in meant):  # the only id is the sequence's
            meant[ours] = title
            notes.append(f"{title} is taken for the item, since no id says it; to change that: --columns {ours}=NAME")
        elif len(left) == 1:
            meant[ours] = left[0]
            notes.append(f"{left[0]} is taken for the {what}, since it is the only id left")
        elif ours == "sequence_id" and "request" in meant:
            meant[ours] = meant["request"]
            notes.append(f"no column says who it was: each {meant['request']} is a sequence of its own")
        elif ours == "sequence_id" and "propensity" in meant:
            meant[ours] = ROW
            notes.append("no column says who it was: each row is a decision of its own, without a history")
    return notes
