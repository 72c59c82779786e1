"""What a log's columns and events mean, guessed from names and values: shown to the user, never taken in silence.

Every column of the log gets a line: used as what, or ignored and why. A column that looks like a time or a reward is
used, or asked about. Where there is no time the order of the file stands for it; that is said, with a test of whether
the rows are sorted by something that is not time.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localpolicy.data.engines.duckdb import DuckDB
from localpolicy.data.names import RATINGS, REWARDING, columns_meant, plain
from localpolicy.data.reading import COLUMNS, ROW, alias, joined
from localpolicy.data.sources import SourceTable, delimiter_of, file_format, first_line, parquet_schema, split_line
from localpolicy.errors import DataError

NEEDED = ("sequence_id", "item_id")
# Words in the name of an event -> its likely reward; the first that fits. English first, then other languages.
LIKELY_REWARDS = (
    (("unlike", "dislike", "remove", "none", "impression", "show", "skip", "noclick", "einblendung", "показ", "曝光",
      "表示"), 0.0),
    (("cart", "basket", "einkaufswagen", "warenkorb", "panier", "carrito", "carrello", "carrinho", "корзин", "カート",
      "加购", "购物车"), 0.5),
    (("purchase", "buy", "bought", "transaction", "order", "checkout", "sale", "pay", "conversion", "kauf", "bestell",
      "achat", "achet", "commande", "compra", "acquist", "покуп", "заказ", "購入", "購買", "购买", "下单",
      "支付"), 1.0),
    (("wish", "fav", "like", "share", "save", "follow", "subscribe", "merkliste", "gefallt", "收藏",
      "お気に入り"), 0.5),
    (("click", "view", "play", "listen", "watch", "read", "visit", "open", "detail", "pv", "klick", "ansicht", "aufruf",
      "vue", "clic", "consult", "vista", "visualiz", "просмотр", "клик", "閲覧", "クリック", "浏览", "点击"), 0.2),
)  # fmt: skip
OPEN_BANDIT = {"item_id", "position", "click", "propensity_score"}
PUBLISHED = {"all", "men", "women", *(f"{a}_{b}" for a in ("random", "bts") for b in ("all", "men", "women"))}
MOST_CODES = 5  # events that are so few numbers, from 0 on, may be codes and no ratings
FEW_WORDS = 8  # values of a column that may be events, where no other is
MOST_EVENTS = 50  # a column with more values is no event: numbers are then a reward
ONE_EVENT = "click"  # of every row, in a log that has neither events nor rewards
SCORES = ("score", "rank", "ranking", "logit")  # what a ranker said, not what people did
REWARDED = "interaction"  # of every row, in a log that states rewards alone
ANSWERS = {"0": "none", "1": "click", "0.0": "none", "1.0": "click", "false": "none", "true": "click",
           "False": "none", "True": "click"}  # fmt: skip
EPOCHS = {"s": (3e8, 4.2e9), "ms": (3e11, 4.2e12), "us": (3e14, 4.2e15), "ns": (3e17, 4.2e18)}  # 1979 to 2103
TIMELIKE = ("time", "date", "timestamp", "at", "ts", "ms", "when", "day")  # words of a name
SHOWN = 20  # columns that an error names
SORTED = 0.95  # share of steps up, from which rows are sorted by it: chance alone makes half
FEWEST_STEPS = 50  # … of so many


@dataclass(frozen=True)
class Use:
    """What becomes of one column of the log."""

    column: str
    role: str  # our column, or nothing
    why: str


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
    sorted_by: str | None = None  # without times: the column that the rows of a sequence are sorted by
    sequences: int = 0  # about so many
    held_out: int | None = None  # sequences for validation and for the test each; None: a tenth

    def settings(self) -> dict[str, Any]:
        """For `prepare`."""
        settings = {
            "columns": dict(self.columns), "rewards": self.rewards, "event": self.event, "rename": dict(self.rename),
            "validation": self.held_out, "test": self.held_out,
        }  # fmt: skip
        return {name: value for name, value in settings.items() if value}


class UnknownColumns(DataError):
    """Columns whose names say nothing: the user must."""

    def __init__(self, path: Path, missing: Sequence[str], names: Sequence[str]) -> None:
        self.missing, self.names = list(missing), list(names)
        listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        headless = sum(_number(name) is not None for name in names) > len(names) / 2
        remedy = (
            "These are numbers: has the file no header? Write the columns' names into its first line"
            if headless
            else f"Say which it is: --columns {','.join(f'{name}=NAME' for name in missing)}"
        )
        super().__init__(f"{path}: no column looks like {' or '.join(missing)} (its columns: {listed}). {remedy}")


def guess(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    rewards: str | None = None,
    rename: Mapping[str, str] | None = None,
) -> Guess:
    """Read the names, and the values; what the user says holds."""
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
    missing = [name for name in NEEDED if name not in meant]
    if missing:
        raise UnknownColumns(path, missing, names)
    parts = [part for theirs in meant.values() for part in theirs.split("+")]
    unknown = next((part for part in parts if part not in (*names, ROW)), None)
    if unknown is not None:
        raise DataError(f"{path} has no column '{unknown}': its columns are {', '.join(names)}.")
    with opened(path) as (engine, table):
        return _Reading(path, engine, table, meant, given, rewards, rename, why).guess()


class _Reading:
    """One log while it is guessed at: roles are settled one after another, each with a reason."""

    def __init__(
        self,
        path: Path,
        engine: DuckDB,
        table: SourceTable,
        meant: dict[str, str],
        given: Mapping[str, str],
        rewards: str | None,
        rename: dict[str, str],
        why: str,
    ) -> None:
        self.path, self.engine, self.table = path, engine, table
        self.meant, self.given, self.rewards, self.rename = meant, given, rewards, rename
        self.why = {part: why for theirs in given.values() for part in theirs.split("+")}
        self.event: str | None = None
        self.unsure: list[str] = []

    def guess(self) -> Guess:
        self._time()
        self._propensity()
        self._event()
        self._reward()
        if "event" not in self.meant:
            self._one_event()
        elif self.rewards is None and "reward" not in self.meant:
            counts: Counter[str] = Counter()
            for value, count in self._values(self.meant["event"]).items():
                counts[self.rename.get(value, value)] += count
            self.rewards, unsure = guess_rewards(counts, self.path)
            self.unsure += unsure
        order = None if "timestamp" in self.meant else self._order()
        ours = {name: theirs for name, theirs in self.meant.items() if name != theirs}
        return Guess(
            "events", ours, self.rewards, self.event, self.rename, tuple(self.unsure), tuple(self._uses()), order,
            self._sequences(),
        )  # fmt: skip

    # ------------------------------------------------------------------ the roles

    def _time(self) -> None:
        """A column of times that its name did not tell: by words of its name, or by values in the range of epochs."""
        if "timestamp" in self.meant:
            theirs = self.meant["timestamp"]
            unit = self._epoch(theirs)
            self.why.setdefault(theirs, f"its name{f'; numbers of epoch {unit}' if unit else ''}")
            return
        for name in self._left():
            words = set(name.lower().replace("-", "_").split("_"))
            timelike = bool(words & set(TIMELIKE)) or "time" in name.lower() or plain(name).endswith("date")
            unit = self._epoch(name)
            if unit is not None and (timelike or (unit != "s" and not plain(name).endswith("id"))):
                self.meant["timestamp"], self.why[name] = name, f"its numbers are epoch times ({unit})"
                return
            if timelike and self._share(name, "TRY_CAST({} AS TIMESTAMP) IS NOT NULL") > 0.95:
                self.meant["timestamp"], self.why[name] = name, "its values are times"
                return

    def _propensity(self) -> None:
        """Probabilities lie above 0 and up to 1; what does not is something else."""
        theirs = self.meant.get("propensity")
        if theirs is None or theirs in self.why:
            return
        if self._share(theirs, "TRY_CAST({0} AS DOUBLE) > 0 AND TRY_CAST({0} AS DOUBLE) <= 1") == 1.0:
            self.why[theirs] = "its name; numbers from 0 to 1: how likely it was shown"
        else:
            del self.meant["propensity"]
            self.why[theirs] = "ignored: no probabilities (some lie outside 0 to 1)"

    def _event(self) -> None:
        """A column of events must hold few values; numbers that vary are a reward instead."""
        theirs = self.meant.get("event")
        if theirs is None or "+" in theirs:
            return
        if "event" in self.given or self.rewards is not None:
            return
        distinct = self._distinct(theirs)
        if self._numeric(theirs) and distinct > MOST_EVENTS:
            del self.meant["event"]
            if "reward" not in self.meant:
                self.meant["reward"] = theirs
                self.why[theirs] = f"{distinct:,} different numbers: a reward, no kinds of event"

    def _reward(self) -> None:
        """A number that varies and is named like one; beside events of several kinds it is only asked about."""
        if "reward" in self.meant or self.rewards is not None:
            return
        answers = [name for name in self._left() if self._answers(name) and _likely_reward(name)]
        if len(answers) > 1 and "event" not in self.meant:
            self._several_answers(sorted(answers, key=lambda name: _likely_reward(name) or 0.0))
            return
        likely = [name for name in self._left() if self._rewarding(name)]
        if not likely:
            return
        kinds = "event" in self.meant and ("+" in self.meant["event"] or self._distinct(self.meant["event"]) > 1)
        if kinds:
            self.why |= {name: "numbers that vary: a reward? then say --columns reward=" + name for name in likely}
            self.unsure.append(
                f"{' and '.join(likely)} could be a reward, and the events are taken instead: say --columns "
                f"reward={likely[0]} if it is what counts"
            )
            return
        first = likely[0]
        if self._answers(first):
            self.meant["event"] = first
            self.rename |= {value: ANSWERS[value] for value in self._values(first)}
            self.rewards, self.why[first] = "none=0,click=1", "0 and 1: what was shown without and with an answer"
        elif plain(first) in RATINGS and self._distinct(first) <= MOST_EVENTS:
            self.meant["event"], self.why[first] = first, "numbers that people gave: ratings"
        else:
            self.meant["reward"], self.why[first] = first, "numbers that vary, named like a reward"
            if "event" in self.meant:
                del self.meant["event"]
        if len(likely) > 1:
            self.why |= {name: f"{first} is taken for the reward; if it is this: --columns reward={name}"
                         for name in likely[1:]}  # fmt: skip
            self.unsure.append(f"{first} is taken for the reward, not {' or '.join(likely[1:])}")

    def _several_answers(self, names: list[str]) -> None:
        """is_click and is_buy, 0 or 1 each: the event of a row is the dearest that came of it."""
        together = "+".join(names)
        self.meant["event"] = together
        called = [plain(name).removeprefix("is").removeprefix("has") for name in names]
        self.why |= {name: "0 and 1: whether it came of what was shown; the dearest one counts" for name in names}
        for value in self._values(together):
            came = [word for word, part in zip(called, value.split("+"), strict=True) if ANSWERS.get(part) == "click"]
            self.rename.setdefault(value, came[-1] if came else "none")
        worth = {word: _likely_reward(word) for word in called}
        self.rewards = ",".join(["none=0", *(f"{word}={reward:g}" for word, reward in worth.items())])

    def _one_event(self) -> None:
        """Every row is the same event: with a reward of its own, or all worth the same."""
        if "reward" in self.meant:
            self.event, self.rewards = REWARDED, None
            return
        self.event = ONE_EVENT
        self.rewards = self.rewards or f"{ONE_EVENT}=1"
        for name in self._left():
            if plain(name) not in SCORES and 2 <= self._distinct(name) <= FEW_WORDS:
                listed = ", ".join(self._values(name))
                self.why[name] = f"few values ({listed}): is it what people did? Then say --columns event={name}"
                self.unsure.append(f"{name} holds {listed}: if that is what people did, say --columns event={name}")
        self.unsure.append(
            f"there is neither an event nor a reward column: every row is a '{ONE_EVENT}', no event is worth more than "
            "another, and there is nothing to improve but the likelihood"
        )

    def _order(self) -> str | None:
        """Say that the file's order is taken for time, and what the rows of a sequence are sorted by, if anything."""
        said = "there is no time column: the order of the file is taken for time"
        for ours in ("item_id", "reward", "event"):
            theirs = self.meant.get(ours)
            if theirs is None or "+" in theirs or self.meant["sequence_id"] == ROW or not self._is_sorted(theirs):
                continue
            self.unsure.append(
                f"{said}, and the rows of a sequence seem sorted by {theirs}: that is no order of time. Do not trust "
                "sequence models here; find the times, or shuffle the rows and take every sequence for a set"
            )
            return theirs
        self.unsure.append(f"{said}. If it is not, sequence models learn the file's order and nothing else")
        return None

    def _sequences(self) -> int:
        theirs = self.meant["sequence_id"]
        counted = "*" if theirs == ROW else f"DISTINCT {self._joined(theirs)}"
        return int(self.engine.rows(f"SELECT COUNT({counted}) FROM log")[0][0])

    # ------------------------------------------------------------------ looking at the values

    def _left(self) -> list[str]:
        used = {part for theirs in self.meant.values() for part in theirs.split("+")}
        return [name for name in self.table.names if name not in used]

    def _share(self, name: str, condition: str) -> float:
        """Of the rows that have a value."""
        value = alias(self.table, name)
        query = f"SELECT AVG(CASE WHEN {condition.format(value)} THEN 1.0 ELSE 0.0 END) FROM log"
        return float(self.engine.rows(f"{query} WHERE {value} IS NOT NULL")[0][0] or 0.0)

    def _number(self, name: str) -> str:
        return f"TRY_CAST({alias(self.table, name)} AS DOUBLE)"

    def _numeric(self, name: str) -> bool:
        return self._share(name, "TRY_CAST({} AS DOUBLE) IS NOT NULL") > 0.95

    def _distinct(self, name: str) -> int:
        return int(self.engine.rows(f"SELECT COUNT(DISTINCT {alias(self.table, name)}) FROM log")[0][0])

    def _epoch(self, name: str) -> str | None:
        """The unit in which its numbers are times since 1970, by their median; None where they are not."""
        if "+" in name or not self._numeric(name):
            return None
        middle = self.engine.rows(f"SELECT MEDIAN({self._number(name)}) FROM log")[0][0]
        return next((unit for unit, (low, high) in EPOCHS.items() if middle and low <= middle < high), None)

    def _rewarding(self, name: str) -> bool:
        called = plain(name)
        is_id = called.endswith(("id", "code", "key")) or "genre" in called
        if is_id or not any(word in called for word in REWARDING) or self._distinct(name) < 2:
            return False
        return self._numeric(name) or self._answers(name)

    def _answers(self, name: str) -> bool:
        return self._distinct(name) == 2 and set(self._values(name)) <= set(ANSWERS)

    def _is_sorted(self, theirs: str) -> bool:
        """Whether nearly every step within a sequence goes up, or nearly every one down."""
        sequence, item = self.meant["sequence_id"].split("+")[0], alias(self.table, theirs)
        value = self._number(theirs) if self._numeric(theirs) else f"CAST({item} AS VARCHAR)"
        numbered = f"SELECT row_number() OVER () AS n, {alias(self.table, sequence)} AS s, {value} AS v FROM log"
        steps = f"SELECT v, LAG(v) OVER (PARTITION BY s ORDER BY n) AS before FROM ({numbered})"
        query = f"SELECT COUNT(*), AVG(CASE WHEN v > before THEN 1.0 ELSE 0.0 END) FROM ({steps}) WHERE v <> before"
        count, up = self.engine.rows(query)[0]
        return count >= FEWEST_STEPS and not 1 - SORTED < up < SORTED

    def _values(self, column: str) -> dict[str, int]:
        """The values of a column (a+b: the two together), the most frequent first."""
        value = self._joined(column)
        query = f"SELECT {value}, COUNT(*) FROM log WHERE {value} IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 1"
        return {str(value): int(count) for value, count in self.engine.rows(query)}

    def _joined(self, column: str) -> str:
        return f"CAST({joined([alias(self.table, name) for name in column.split('+')])} AS VARCHAR)"

    def _uses(self) -> Iterator[Use]:
        roles = {part: ours for ours, theirs in self.meant.items() for part in theirs.split("+")}
        for name in self.table.names:
            if name in roles:
                yield Use(name, roles[name], self.why.get(name, "its name"))
            elif name in COLUMNS:  # prepare reads our own names without being told
                yield Use(name, name, "its name")
            else:
                yield Use(name, "", self.why.get(name, f"ignored: {self._ignored(name)}"))

    def _ignored(self, name: str) -> str:
        if plain(name) in SCORES:
            return f"a ranker's score, as in lists of a recommender; if people gave it: --columns event={name}"
        if self._distinct(name) <= 1:
            return "the same value everywhere"
        roles = columns_meant([name])
        if roles:
            ours = next(iter(roles))
            return f"{self.meant.get(ours, 'another column')} is taken for the {ours}"
        return "nothing here needs it"


def column_names(path: Path) -> tuple[str, ...]:
    """The columns of a CSV or Parquet file."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}: expected a CSV or Parquet file, one row per event.")
    if file_format(path) == "parquet":
        return tuple(parquet_schema(path).names)
    line = first_line(path)
    return split_line(line, delimiter_of(line))


def guess_rewards(values: Mapping[str, int], path: Path) -> tuple[str, tuple[str, ...]]:
    """A reward map, and what to say of events whose names say nothing."""
    numbers = [_number(value) for value in values]
    if all(number is not None for number in numbers):
        known = [number for number in numbers if number is not None]
        top = max(known)
        codes = min(known) == 0 and len(known) <= MOST_CODES
        said = (
            f"the events {', '.join(values)} are read as ratings. If they are codes, name them, such as --rename "
            "0=view,1=cart,2=purchase"
        )
        return f">={0.8 * top:g}=1,>={0.6 * top:g}=0.5,*=0", (said,) if codes else ()
    if len(values) > MOST_EVENTS:
        raise DataError(
            f"{path}: the event column has {len(values)} different values: it is not one. Say which column it is "
            "(--columns event=NAME), or what each event is worth (--rewards)."
        )
    likely = {value: _likely_reward(value) for value in values}
    listed = ",".join(f"{value}={0.2 if reward is None else reward:g}" for value, reward in likely.items())
    unsure = [value for value, reward in likely.items() if reward is None]
    note = f"what {', '.join(unsure)} is worth is a guess (0.2): say it with --rewards"
    if len(unsure) == len(likely) > 1:
        note = (
            f"what {', '.join(unsure)} are worth is not known: all are taken for the same, so nothing can be decided. "
            f"Say it with --rewards {unsure[0]}=1,{unsure[1]}=0"
        )
    return listed, (note,) if unsure else ()


def _likely_reward(event: str) -> float | None:
    called = plain(event)
    return next((reward for words, reward in LIKELY_REWARDS if any(plain(word) in called for word in words)), None)


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


@contextmanager
def opened(path: Path) -> Iterator[tuple[DuckDB, SourceTable]]:
    """A CSV or Parquet file as the view `log`, cut into columns as `prepare` does it."""
    names, kind = column_names(path), file_format(path)
    delimiter = delimiter_of(first_line(path)) if kind == "csv" else ""
    table = SourceTable(files=(path,), format=kind, columns={}, names=names, delimiter=delimiter)
    with tempfile.TemporaryDirectory() as scratch:
        engine = DuckDB(Path(scratch))
        try:
            engine.read("log", table, rows=False)
            yield engine, table
        finally:
            engine.close()
