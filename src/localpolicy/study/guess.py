"""What a log's columns and events mean, guessed from names and values: shown to the user, never taken in silence.

Every column of the log gets a line: used as what, or ignored and why. A column that looks like a time or a reward is
used, or asked about. Where there is no time the order of the file stands for it; that is said, with a test of whether
the rows are sorted by something that is not time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localpolicy.data.names import RATINGS, REWARDING, columns_meant, plain
from localpolicy.data.reading import COLUMNS, ROW
from localpolicy.data.times import YEAR_LAST
from localpolicy.errors import DataError
from localpolicy.limits import NO_ANSWER
from localpolicy.study.event_words import MOST_EVENTS, guess_rewards, likely_reward, number, says_nothing_came, worth
from localpolicy.study.log_columns import ANSWERS, LogColumns, column_names, opened

NEEDED = ("sequence_id", "item_id")
OPEN_BANDIT = {"item_id", "position", "click", "propensity_score"}
PUBLISHED = {"all", "men", "women", *(f"{a}_{b}" for a in ("random", "bts") for b in ("all", "men", "women"))}
FEW_WORDS = 8  # values of a column that may be events, where no other is
ONE_EVENT = "click"  # of every row, in a log that has neither events nor rewards
SCORES = ("score", "rank", "ranking", "logit")  # what a ranker said, not what people did
IDS = ("id", "no", "nr", "number", "nummer", "code", "key")  # how names of ids end
FEW_STARS = 21  # different numbers that people may give: 0 to 10 in halves
PLACES = ("position", "slot", "pos", "rank", "place")  # where something stood, not what people did
REWARDED = "interaction"  # of every row, in a log that states rewards alone
TIMELIKE = ("time", "date", "timestamp", "at", "ts", "ms", "when", "day")  # words of a name
MOST_SHOWN = 20  # columns that an error names


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
    sequences: int = 0  # about so many
    kind: str | None = None  # what the log holds, where its events do not tell
    skip_bad_rows: bool = False
    held_out: int | None = None  # sequences for validation and for the test each; None: a tenth

    def settings(self) -> dict[str, Any]:
        """For `prepare`."""
        settings = {
            "columns": dict(self.columns), "rewards": self.rewards, "event": self.event, "rename": dict(self.rename),
            "kind": self.kind, "skip_bad_rows": self.skip_bad_rows, "validation": self.held_out, "test": self.held_out,
        }  # fmt: skip
        return {name: value for name, value in settings.items() if value}


class UnknownColumns(DataError):
    """Columns whose names say nothing: the user must."""

    def __init__(self, path: Path, missing: Sequence[str], names: Sequence[str]) -> None:
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
        super().__init__(f"{path}: no column looks like {' or '.join(missing)} (its columns: {listed}). {remedy}")


def guess(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    rewards: str | None = None,
    rename: Mapping[str, str] | None = None,
    skip_bad_rows: bool = False,
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
    without_names = _by_ends(meant, names)
    missing = [name for name in NEEDED if name not in meant]
    if missing:
        raise UnknownColumns(path, missing, names)
    parts = [part for theirs in meant.values() for part in theirs.split("+")]
    unknown = next((part for part in parts if part not in (*names, ROW)), None)
    if unknown is not None:
        raise DataError(f"{path} has no column '{unknown}': its columns are {', '.join(names)}.")
    with opened(path, skip_malformed=skip_bad_rows) as (engine, table):
        reading = _Reading(path, LogColumns(engine, table), meant, given, rewards, rename, why)
        reading.unsure += without_names
        return replace(reading.guess(), skip_bad_rows=skip_bad_rows)


def _by_ends(meant: dict[str, str], names: Sequence[str]) -> list[str]:
    """Who and what, where no name is known: an only column of ids that is left; a request; a decision of its own."""
    said = []
    for ours, what in (("item_id", "item"), ("sequence_id", "person or visit")):
        used = {part for name, theirs in meant.items() if name != "request" for part in theirs.split("+")}
        left = [name for name in names if name not in used and plain(name).endswith(IDS)]
        if ours in meant:
            continue
        if len(left) == 1:
            meant[ours] = left[0]
            said.append(f"{left[0]} is taken for the {what}, since it is the only id left")
        elif ours == "sequence_id" and "request" in meant:
            meant[ours] = meant["request"]
            said.append(f"no column says who it was: each {meant['request']} is a sequence of its own")
        elif ours == "sequence_id" and "propensity" in meant:
            meant[ours] = ROW
            said.append("no column says who it was: each row is a decision of its own, without a history")
    return said


class _Reading:
    """One log while it is guessed at: roles are settled one after another, each with a reason."""

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
        self.unsure: list[str] = []

    def guess(self) -> Guess:
        self._time()
        self._propensity()
        self._event()
        self._reward()
        if "event" not in self.meant:
            self._one_event()
        else:
            self._nothing_came()
        if "event" in self.meant and self.rewards is None and "reward" not in self.meant:
            counts: Counter[str] = Counter()
            for value, count in self.log.values(self.meant["event"]).items():
                counts[self.rename.get(value, value)] += count
            self.rewards, unsure = guess_rewards(counts, self.path)
            self.unsure += unsure
        self._lists()
        if "timestamp" not in self.meant:
            self._order()
        ours = {name: theirs for name, theirs in self.meant.items() if name != theirs}
        return Guess(
            "events", ours, self.rewards, self.event, self.rename, tuple(self.unsure), tuple(self._uses()),
            self._sequences(), self.kind,
        )  # fmt: skip

    # ------------------------------------------------------------------ the roles

    def _time(self) -> None:
        """A column of times that its name did not tell: by words of its name, or by values in the range of epochs."""
        if "timestamp" in self.meant:
            theirs = self.meant["timestamp"]
            unit = self.log.epoch(theirs)
            self.why.setdefault(theirs, f"its name{f'; numbers of epoch {unit}' if unit else ''}")
            self._refuse_clock(theirs)
            self._say_day_or_month(theirs)
            return
        for name in self._left():
            words = set(name.lower().replace("-", "_").split("_"))
            timelike = bool(words & set(TIMELIKE)) or "time" in name.lower() or plain(name).endswith("date")
            unit = self.log.epoch(name)
            if unit is not None and (timelike or (unit != "s" and not plain(name).endswith("id"))):
                self.meant["timestamp"], self.why[name] = name, f"its numbers are epoch times ({unit})"
                return
            pattern = YEAR_LAST.replace("{", "{{").replace("}", "}}")
            texts = f"TRY_CAST({{0}} AS TIMESTAMP) IS NOT NULL OR regexp_matches(CAST({{0}} AS VARCHAR), '{pattern}')"
            if timelike and self.log.share(name, texts) > 0.95:
                self.meant["timestamp"], self.why[name] = name, "its values are times"
                self._say_day_or_month(name)
                return

    def _refuse_clock(self, name: str) -> None:
        """The hours of a day without the day tell no order."""
        clock = "regexp_full_match(CAST({} AS VARCHAR), '[0-9]{{1,2}}:[0-9]{{2}}(:[0-9]{{2}}([.][0-9]+)?)?')"
        if "+" in name or self.log.share(name, clock) < 1:
            return
        day = columns_meant(self._left(), ["timestamp"]).get("timestamp", "the day")
        raise DataError(
            f"{self.path}: {name} holds the time of day alone. Join {day} and {name} into one column, such as "
            "2024-01-31 23:59:59, or name another column: --columns timestamp=NAME"
        )

    def _say_day_or_month(self, name: str) -> None:
        """Dates with the year last are read by the rule of `prepare`; which one it is, is said."""
        if "+" in name:
            return
        notation, example = self.log.times(name)
        if notation in ("day first", "month first"):
            self.unsure.append(f"{name} holds times such as {example}, read with the {notation}")

    def _propensity(self) -> None:
        """Probabilities lie above 0 and up to 1; what does not is something else."""
        theirs = self.meant.get("propensity")
        if theirs is None or theirs in self.why:
            return
        if self.log.share(theirs, "TRY_CAST({0} AS DOUBLE) > 0 AND TRY_CAST({0} AS DOUBLE) <= 1") == 1.0:
            self.why[theirs] = "its name; numbers from 0 to 1: how likely it was shown"
        else:
            del self.meant["propensity"]
            self.why[theirs] = "ignored: no probabilities (some lie outside 0 to 1)"

    def _event(self) -> None:
        """A column of events must hold few values; numbers that vary are a reward instead."""
        theirs = self.meant.get("event")
        if theirs is None or "+" in theirs:
            return
        empty = self.log.count() - self.log.count(self.log.sql(theirs))
        if empty:
            raise DataError(
                f"{self.path}: {theirs}, the event, is empty in {empty:,} of {self.log.count():,} rows. Where an item "
                f"was shown and nothing came of it, write '{NO_ANSWER}' there; else leave these rows out. Or say which "
                "column the event is: --columns event=NAME"
            )
        if "event" in self.given or self.rewards is not None:
            return
        distinct = self.log.distinct(theirs)
        if self.log.numeric(theirs) and distinct > MOST_EVENTS:
            del self.meant["event"]
            if "reward" not in self.meant:
                self.meant["reward"] = theirs
                self.why[theirs] = f"{distinct:,} different numbers: a reward, no kinds of event"

    def _reward(self) -> None:
        """A number that varies and is named like one; beside events of several kinds it is only asked about."""
        stated = self.meant.get("reward")
        if stated is not None and "reward" not in self.given and self.rewards is not None:
            del self.meant["reward"]
            self.why[stated] = "ignored: the rewards that you gave say what events are worth"
        if stated is not None or self.rewards is not None:
            return
        answers = [name for name in self._left() if self.log.answers(name) and likely_reward(name)]
        if len(answers) > 1 and "event" not in self.meant:
            self._several_answers(sorted(answers, key=lambda name: likely_reward(name) or 0.0))
            return
        likely = [name for name in self._left() if name in answers or self._rewarding(name)]
        if not likely and "event" not in self.meant:
            likely = [name for name in self._left() if plain(name) == "score" and self._few_stars(name)]
        if not likely:
            return
        kinds = "event" in self.meant and ("+" in self.meant["event"] or self.log.distinct(self.meant["event"]) > 1)
        if kinds:
            self.why |= {name: "numbers that vary: a reward? then say --columns reward=" + name for name in likely}
            self.unsure.append(
                f"{' and '.join(likely)} could be a reward, and the events are taken instead: say --columns "
                f"reward={likely[0]} if it is what counts"
            )
            return
        first = likely[0]
        if self.log.answers(first):
            self.meant["event"] = first
            self.rename |= {value: ANSWERS[value] for value in self.log.values(first)}
            self.rewards, self.why[first] = "none=0,click=1", "0 and 1: what was shown without and with an answer"
        elif plain(first) in (*RATINGS, "score") and self.log.distinct(first) <= MOST_EVENTS:
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
        for value in self.log.values(together):
            came = [word for word, part in zip(called, value.split("+"), strict=True) if ANSWERS.get(part) == "click"]
            self.rename.setdefault(value, came[-1] if came else "none")
        worth = {word: likely_reward(word) for word in called}
        self.rewards = ",".join(["none=0", *(f"{word}={reward:g}" for word, reward in worth.items())])

    def _nothing_came(self) -> None:
        """Rows that say "shown" are no action: nothing came of them. Beside rows of what came they are left out."""
        event = self.meant["event"]
        if "+" in event:
            return
        values = self.log.values(event)
        shown = {value: NO_ANSWER for value in values if value not in self.rename and says_nothing_came(value)}
        if self.rewards is not None:  # what is worth something is no such row
            shown = {value: none for value, none in shown.items() if not worth(self.rewards, value)}
        if not shown or len(shown) == len(values):
            return
        self.rename |= shown
        words = " and ".join(shown)
        who = self.meant.get("request", self.meant["sequence_id"])
        pair = f"{who}+{self.meant['item_id']}"
        decided = "propensity" in self.meant and not self._answers_lack(self.meant["propensity"], event, shown)
        if who != ROW and not decided and self.log.shown_before(pair, event, shown):
            self.kind = "interactions"
            self.meant.pop("propensity", None)
            self.unsure.append(
                f"a row that says {words} stands before the row that says what came of it: these rows are left out, "
                "and what people did is read. To judge by what was shown, write one row for each shown item, with what "
                f"came of it (or '{NO_ANSWER}')"
            )
        elif set(shown) != {NO_ANSWER}:
            self.unsure.append(
                f"{words} is read as '{NO_ANSWER}': the item was shown, and nothing came of it. If it is something "
                f"that people did, say what it is worth: --rewards {next(iter(shown))}=0.1,…"
            )

    def _answers_lack(self, propensity: str, event: str, shown: Mapping[str, str]) -> bool:
        """Whether the rows of answers state no propensities: then the rows that were shown do."""
        words = ", ".join("'" + word.replace("'", "''") + "'" for word in shown)
        answered = f"{self.log.sql(event)} NOT IN ({words})"
        stated = self.log.count(f"CASE WHEN {answered} THEN {self.log.sql(propensity)} END")
        return stated < 0.95 * self.log.count(f"CASE WHEN {answered} THEN 1 END")

    def _lists(self) -> None:
        """Which rows were shown together, and at which places: both, or neither."""
        request, place = self.meant.get("request"), self.meant.get("place")
        if (request is None and place is None) or {"request", "place"} <= self.given.keys():
            return
        shown = "propensity" in self.meant or NO_ANSWER in self.rename.values()
        if place is not None and (request is None or not self.log.are_lists(request, place)):
            request = self._same_moment(place)
        if shown and self.kind is None and request is not None and place is not None:
            self.meant |= {"request": request, "place": place}
            self.why.setdefault(request, "rows of one are one list")
            self.why[place] = "its place in the list"
            if "propensity" in self.meant:
                self.unsure.append(
                    f"{self.meant['propensity']} is read as the probability of an item at its {place} among those that "
                    "do not stand above it in the list. If it is another probability, values of lists are wrong"
                )
            return
        for ours, theirs in (("request", self.meant.get("request")), ("place", place)):
            if theirs is None or ours in self.given:
                continue
            del self.meant[ours]
            lacks = "nothing says which rows stood in one list" if ours == "place" else "nothing says its place in it"
            why = lacks if shown and self.kind is None else "only a log of what was shown has lists"
            self.why[theirs] = f"ignored: {why}"
            if "propensity" in self.meant and ours == "place":
                self.unsure.append(
                    f"{theirs} is ignored: {lacks}, so each row is read as a decision of its own. If rows were shown "
                    "together, say which: --columns request=NAME"
                )

    def _same_moment(self, place: str) -> str | None:
        """Rows of one person at one time, at places of their own, are one list."""
        who, when = self.meant["sequence_id"], self.meant.get("timestamp")
        if who == ROW or when is None:
            return None
        together = f"{who}+{when}"
        if not self.log.are_lists(together, place):
            return None
        self.unsure.append(f"rows with the same {who} and {when} are read as one list")
        return together

    def _one_event(self) -> None:
        """Every row is the same event: with a reward of its own, or all worth the same."""
        if "reward" in self.meant:
            self.event, self.rewards = REWARDED, None
            return
        self.event = ONE_EVENT
        self.rewards = self.rewards or f"{ONE_EVENT}=1"
        for name in self._left():
            if columns_meant([name], ["timestamp"]):
                continue
            if plain(name) in SCORES and self.log.numeric(name):
                self.unsure.append(
                    f"{name} is taken for a ranker's, and ignored: if people gave it, say --columns event={name}"
                )
            elif 2 <= self.log.distinct(name) <= FEW_WORDS and plain(name) not in PLACES:
                listed = ", ".join(self.log.values(name))
                self.why[name] = f"few values ({listed}): is it what people did? Then say --columns event={name}"
                self.unsure.append(f"{name} holds {listed}: if that is what people did, say --columns event={name}")
        self.unsure.append(
            f"there is neither an event nor a reward column: every row is a '{ONE_EVENT}', no event is worth more than "
            "another, and there is nothing to improve but the likelihood"
        )

    def _order(self) -> None:
        """Say that the file's order is taken for time, and what the rows of a sequence are sorted by, if anything."""
        said = "there is no time column: the order of the file is taken for time"
        for ours in ("item_id", "reward", "event"):
            theirs = self.meant.get(ours)
            if theirs is None or "+" in theirs or self.meant["sequence_id"] == ROW:
                continue
            if ours == "event" and not self.log.numeric(theirs):
                continue  # a visit that ends with its purchase is in the order of time
            if self.log.is_sorted(self.meant["sequence_id"], theirs):
                self.unsure.append(
                    f"{said}, and the rows of a sequence seem sorted by {theirs}: that is no order of time. Do not "
                    "trust sequence models here; find the times, or shuffle the rows and take every sequence for a set"
                )
                return
        self.unsure.append(f"{said}. If it is not, sequence models learn the file's order and nothing else")

    def _sequences(self) -> int:
        theirs = self.meant["sequence_id"]
        return self.log.count() if theirs == ROW else self.log.distinct(theirs)

    def _left(self) -> list[str]:
        used = {part for theirs in self.meant.values() for part in theirs.split("+")}
        return [name for name in self.log.names if name not in used]

    def _few_stars(self, name: str) -> bool:
        """Whole or half numbers, few of them: people gave them, no ranker did."""
        halves = self.log.share(name, "TRY_CAST({0} AS DOUBLE) * 2 % 1 = 0")
        return halves == 1 and 2 <= self.log.distinct(name) <= FEW_STARS and plain(name) not in PLACES

    def _rewarding(self, name: str) -> bool:
        called = plain(name)
        is_id = called.endswith(("id", "code", "key")) or "genre" in called
        if is_id or not any(word in called for word in REWARDING) or self.log.distinct(name) < 2:
            return False
        return self.log.numeric(name) or self.log.answers(name)

    def _uses(self) -> Iterator[Use]:
        roles = {part: ours for ours, theirs in self.meant.items() for part in theirs.split("+")}
        for name in self.log.names:
            if name in roles:
                yield Use(name, roles[name], self.why.get(name, "its name"))
            elif name in COLUMNS and name not in self.why:  # prepare reads our own names without being told
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
            return f"{self.meant.get(ours, 'another column')} is taken for the {ours}"
        return "nothing here needs it"
