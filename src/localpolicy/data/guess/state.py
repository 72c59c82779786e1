"""State of a guess: the role of each column so far, and the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from localpolicy.data.column_names import columns_meant, plain
from localpolicy.data.guess.log_columns import LogColumns
from localpolicy.data.log_schema import COLUMNS, ROW
from localpolicy.data.times import Notation
from localpolicy.limits import NO_ANSWER

MOST_SHARES = 5  # items that are named with their shares
MOST_OF_ALL = 0.9  # share of the items in a list from which hardly another list was possible
SCORES = ("score", "rank", "ranking", "logit")  # names of a ranker's scores
PLACES = ("position", "slot", "pos", "rank", "place")  # names of places in a list


@dataclass(frozen=True)
class Use:
    """Use of one column of the log: its role, and the reason."""

    column: str
    role: str  # our column; empty if ignored
    why: str


class GuessState:
    """Roles of a log's columns that the guess has settled so far, each with a reason."""

    def __init__(
        self,
        path: Path,
        log: LogColumns,
        meant: dict[str, str],
        given: Mapping[str, str],
        rewards: str | None,
        rename: dict[str, str],
        why: str,
    ) -> None:
        self.path, self.log = path, log
        self.meant, self.given, self.rewards, self.rename = meant, given, rewards, rename
        self.why = {part: why for theirs in given.values() for part in theirs.split("+")}
        self.event: str | None = None
        self.kind: str | None = None
        self.skip_bad_rows = False
        self.split: str | None = None
        self.alternatives: frozenset[str] = frozenset()  # columns of one alternative each
        self.dates: Notation | None = None
        self.unsure: list[str] = []

    def sequences(self) -> int:
        """Return the number of sequences in the log."""
        theirs = self.meant["sequence_id"]
        return self.log.count() if theirs == ROW else self.log.distinct(theirs)

    def decisions(self) -> int:
        """Return the number of rows (or lists) with propensities; 0 if the log has none."""
        if "propensity" not in self.meant:
            return 0
        return self.log.distinct(self.meant["request"]) if "request" in self.meant else self.log.count()

    def full_lists(self) -> bool:
        """Whether lists without propensities hold nearly all items, so that nothing was left out of them."""
        if "propensity" in self.meant or not {"request", "place"} <= self.meant.keys():
            return False
        lists, item = self.log.distinct(self.meant["request"]), self.meant["item_id"]
        items = self.log.distinct(item)
        least = min(MOST_OF_ALL * items, items - 0.5)  # or lists that leave out less than half an item on average
        return self.log.distinct(f"{self.meant['request']}+{item}") > least * lists

    def shares(self) -> str:
        """Return the shares of the most frequent items, if no row has a past and all are worth the same; else ''.

        A row that is a decision of its own, with a propensity or in a list, may be judged without a past.
        """
        who, item = self.meant["sequence_id"], self.meant["item_id"]
        lone = who != ROW and {"propensity", "request", "reward"}.isdisjoint(self.meant)
        if not lone or NO_ANSWER in self.rename.values() or self.log.distinct(who) < self.log.count():
            return ""
        if "event" in self.meant and len(self.log.values(self.meant["event"])) > 1:
            return ""
        counts, rows = self.log.values(item), self.log.count()
        first = [f"{name} {count / rows:.1%}" for name, count in list(counts.items())[:MOST_SHARES]]
        return ", ".join(first) + (f" and {len(counts) - MOST_SHARES:,} more" if len(counts) > MOST_SHARES else "")

    def left(self) -> list[str]:
        """Return the names of the columns that have no role yet."""
        used = {part for theirs in self.meant.values() for part in theirs.split("+")}
        return [
            name for name in self.log.names if name not in used and name != self.split and name not in self.alternatives
        ]

    def uses(self) -> Iterator[Use]:
        """Yield the use of every column."""
        roles = {part: ours for ours, theirs in self.meant.items() for part in theirs.split("+")}
        if self.meant["sequence_id"] == self.meant.get("request"):  # each sequence is one list
            roles[self.meant["sequence_id"]] = "sequence_id"
        for name in self.log.names:
            if name == self.split:
                yield Use(name, "split", self.why[name])
            elif name in roles:
                yield Use(name, roles[name], self.why.get(name, "its name"))
            elif name in COLUMNS and name not in self.why:  # `prepare` reads our own names without a setting
                yield Use(name, name, "its name")
            else:
                yield Use(name, "", self.why.get(name, f"ignored: {self._ignored(name)}"))

    def _ignored(self, name: str) -> str:
        if plain(name) in SCORES:
            return f"a ranker's score, as in lists of a recommender; if people gave it: --columns event={name}"
        if self.log.distinct(name) <= 1:
            return "the same value everywhere"
        roles = columns_meant([name])
        if roles:
            ours = next(iter(roles))
            taken = self.meant.get(ours, "another column")
            return f"the column {ours} is taken" if taken == ours else f"{taken} is taken for the {ours}"
        return "nothing here needs it"
