"""What a log is about, in its own words: what a sequence, an item and the reward will be."""

from __future__ import annotations

from typing import Literal

from localpolicy.data.column_names import BASKETS, MONEY, RATINGS, REWARDING, UNITS, plain, rewarding
from localpolicy.data.guess.reading import Reading
from localpolicy.data.reading import ROW
from localpolicy.data.reward_kind import unpaid_events
from localpolicy.limits import NO_ANSWER

OF_PRICES, OF_COUNTS = REWARDING.index(MONEY[-1]), len(REWARDING) - 1
LogKind = Literal["till", "lists", "ratings", "amounts", "actions"]
# What a row is -> in what words it is told.
ROWS: dict[LogKind, str] = {
    "till": "a till's log: a row is something that was bought",
    "lists": "a log of what was shown: a row is an item that was shown, with what came of it",
    "ratings": "a log of ratings: a row is what a person thought of an item",
    "amounts": "a log of what was used: a row is how much of an item somebody took",
    "actions": "a log of actions: a row is something that a person did",
}


def log_kind(reading: Reading) -> LogKind:
    """What kind of log it is, by its names and by what its rows are worth."""
    names = [plain(name) for name in reading.log.names]
    rewarded = plain(reading.meant.get("reward", ""))
    if NO_ANSWER in reading.rename.values() or "propensity" in reading.meant:
        return "lists"
    if any(part in rewarded for part in RATINGS) or plain(reading.meant.get("event", "")) in (*RATINGS, "score"):
        return "ratings"
    if _sells(reading):
        return "actions"
    bought = any(part in rewarded for parts in (*MONEY, UNITS) for part in parts)
    if bought or ("reward" not in reading.meant and "event" not in reading.meant and not {*names}.isdisjoint(BASKETS)):
        return "till"
    return "amounts" if rewarded else "actions"


def meaning(reading: Reading) -> tuple[str, ...]:
    """One sentence each."""
    who, item = reading.meant["sequence_id"], reading.meant["item_id"]
    sequence = "every row is a sequence of its own" if who == ROW else f"the rows of one {who} ({_many(reading, who)})"
    return (
        f"This is read as {ROWS[log_kind(reading)]}",
        f"A sequence: {sequence}{_order(reading)}",
        f"An item: one {item} ({_many(reading, item)})",
        f"The reward: {_reward(reading)}",
    )


def _many(reading: Reading, name: str) -> str:
    return f"{reading.log.distinct(name):,} of them"


def _order(reading: Reading) -> str:
    if reading.meant["sequence_id"] == ROW:
        return ""
    if reading.meant.get("request") == reading.meant["sequence_id"]:
        return ", which is one list"
    when = reading.meant.get("timestamp")
    return f", in the order of {when}" if when else ", in the order of the file"


def _sells(reading: Reading) -> bool:
    """Whether rows are sales with an amount, and others that are none."""
    if "reward" not in reading.meant or "event" not in reading.meant:
        return False
    events = [reading.rename.get(each, each) for each in reading.log.values(reading.meant["event"])]
    return bool(unpaid_events(events, reading.meant["reward"], "auto"))


def _reward(reading: Reading) -> str:
    if theirs := reading.meant.get("reward"):
        if _sells(reading):
            return f"{theirs} of a sale; rows that are no sale earn nothing"
        count = next((name for name in reading.log.names if name != theirs and rewarding(name) == OF_COUNTS), None)
        if count is None or rewarding(theirs) != OF_PRICES:
            return f"{theirs} of the row, as it stands"
        return f"{theirs} of the row, as it stands (if it is the price of one, multiply it by {count} first)"
    worth = reading.rewards or ""
    if event := reading.meant.get("event"):
        return f"what {event} is worth: {worth}"
    return f"the same for every row ({worth})" if worth else "the same for every row"
