"""Sentences on what a sequence, an item and the reward are, in the log's own words."""

from __future__ import annotations

from typing import Literal

from localpolicy.data.column_names import BASKETS, MONEY, RATINGS, REWARDING, UNITS, plain, rewarding
from localpolicy.data.guess.state import GuessState
from localpolicy.data.log_schema import ROW
from localpolicy.data.reward_kind import unpaid_events
from localpolicy.limits import NO_ANSWER

OF_PRICES, OF_COUNTS = REWARDING.index(MONEY[-1]), len(REWARDING) - 1
LogKind = Literal["till", "lists", "ratings", "amounts", "actions"]
# Kind of log -> description of its rows.
ROWS: dict[LogKind, str] = {
    "till": "a till's log: a row is something that was bought",
    "lists": "a log of what was shown: a row is an item that was shown, with its answer",
    "ratings": "a log of ratings: a row is what a person thought of an item",
    "amounts": "a log of what was used: a row is how much of an item somebody took",
    "actions": "a log of actions: a row is something that a person did",
}


def log_kind(state: GuessState) -> LogKind:
    """Return the kind of the log, by its names and its rewards."""
    names = [plain(name) for name in state.log.names]
    rewarded = plain(state.meant.get("reward", ""))
    if NO_ANSWER in state.rename.values() or "propensity" in state.meant:
        return "lists"
    if any(part in rewarded for part in RATINGS) or plain(state.meant.get("event", "")) in (*RATINGS, "score"):
        return "ratings"
    if _sells(state):
        return "actions"
    bought = any(part in rewarded for parts in (*MONEY, UNITS) for part in parts)
    if bought or ("reward" not in state.meant and "event" not in state.meant and not {*names}.isdisjoint(BASKETS)):
        return "till"
    return "amounts" if rewarded else "actions"


def meaning(state: GuessState) -> tuple[str, ...]:
    """Return one sentence each on the rows, a sequence, an item and the reward."""
    who, item = state.meant["sequence_id"], state.meant["item_id"]
    sequence = "every row is a sequence of its own" if who == ROW else f"the rows of one {who} ({_many(state, who)})"
    return (
        f"This is read as {ROWS[log_kind(state)]}",
        f"A sequence: {sequence}{_order(state)}",
        f"An item: one {item} ({_many(state, item)})",
        f"The reward: {_reward(state)}",
    )


def _many(state: GuessState, name: str) -> str:
    return f"{state.log.distinct(name):,} of them"


def _order(state: GuessState) -> str:
    if state.meant["sequence_id"] == ROW:
        return ""
    if state.meant.get("request") == state.meant["sequence_id"]:
        return ", which is one list"
    when = state.meant.get("timestamp")
    return f", in the order of {when}" if when else ", in the order of the file"


def _sells(state: GuessState) -> bool:
    """Whether rows are sales with an amount, and others that are none."""
    if "reward" not in state.meant or "event" not in state.meant:
        return False
    events = [state.rename.get(each, each) for each in state.log.values(state.meant["event"])]
    return bool(unpaid_events(events, state.meant["reward"], "auto"))


def _reward(state: GuessState) -> str:
    if theirs := state.meant.get("reward"):
        if _sells(state):
            return f"{theirs} of a sale; rows that are no sale earn nothing"
        count = next((name for name in state.log.names if name != theirs and rewarding(name) == OF_COUNTS), None)
        if count is None or rewarding(theirs) != OF_PRICES:
            return f"{theirs} of the row, as it stands"
        return f"{theirs} of the row, as it stands (if it is the price of one, multiply it by {count} first)"
    rewards = state.rewards or ""
    if event := state.meant.get("event"):
        return f"by {event}: {rewards}"
    return f"the same for every row ({rewards})" if rewards else "the same for every row"
