"""Guesses of event and reward: a column of events, of ratings or of rewards, or none of them."""

from __future__ import annotations

import re

from localpolicy.data.column_names import BASKETS, FEW_STARS, MONEY, RATINGS, REWARDING, columns_meant, plain, rewarding
from localpolicy.data.guess.event_words import MOST_EVENTS, likely_reward, number
from localpolicy.data.guess.log_columns import ANSWERS
from localpolicy.data.guess.state import PLACES, SCORES, GuessState
from localpolicy.errors import DataError
from localpolicy.limits import NO_ANSWER

AGAIN = ("re", "again", "repeat")  # beginnings of names of habits
WIDE = 3  # columns of prices, which are then one for each alternative
FEW_WORDS = 8  # most values of a column that may be the events, if no other is
ONE_EVENT, BOUGHT = "click", "purchase"  # of every row, in a log that has neither events nor rewards; of a till's
PLACE_OF_COUNTS = len(REWARDING) - 1
REWARDED = "interaction"  # of every row, in a log that states rewards alone


def settle_event(state: GuessState) -> None:
    """Settle the column of events: it must hold few values; varying numbers are a reward instead."""
    theirs = state.meant.get("event")
    if theirs is None or "+" in theirs:
        return
    rows = state.log.count()
    empty = rows - state.log.count(state.log.sql(theirs))
    if empty:
        raise DataError(
            f"{state.path}: {theirs}, the event, is empty in {empty:,} of {rows:,} rows. Where an item "
            f"was shown and not answered, write '{NO_ANSWER}' there; else leave these rows out. Or say which "
            "column the event is: --columns event=NAME"
        )
    if "event" in state.given or state.rewards is not None:
        return
    distinct = state.log.distinct(theirs)
    if state.log.numeric(theirs) and distinct > MOST_EVENTS:
        del state.meant["event"]
        if "reward" not in state.meant:
            state.meant["reward"] = theirs
            state.why[theirs] = f"{distinct:,} different numbers: a reward, no kinds of event"
    elif distinct <= MOST_EVENTS and _is_of_items(state, theirs):
        del state.meant["event"]
        item = state.meant["item_id"]
        state.why[theirs] = f"ignored: each {item} has one of its values, so it is no event"


def _is_of_items(state: GuessState, event: str) -> bool:
    """Whether values whose names say nothing tell items apart: several, and each item has one of them alone."""
    values = state.log.values(event)
    if len(values) < 2 or any(number(value) is not None or likely_reward(value) is not None for value in values):
        return False
    item = state.meant["item_id"]
    repeated = state.log.count() > 2 * state.log.distinct(item)
    return repeated and state.log.several(item, event) == 0


def settle_reward(state: GuessState) -> None:
    """Settle the reward: a varying number named like one; if there are several events, only ask about it."""
    stated = state.meant.get("reward")
    if stated is not None and "reward" not in state.given and state.rewards is not None:
        del state.meant["reward"]
        state.why[stated] = "ignored: you gave the rewards of events"
    if stated is not None or state.rewards is not None:
        return
    answers = [name for name in state.left() if state.log.answers(name) and likely_reward(name)]
    if _is_till(state):  # every row was bought: whether it was bought before is no answer to what was shown
        habits = [name for name in answers if plain(name).startswith(AGAIN)]
        answers = [name for name in answers if name not in habits]
        state.why |= {name: "ignored: every row was bought, whether or not for the first time" for name in habits}
    if len(answers) > 1 and "event" not in state.meant:
        _several_answers(state, sorted(answers, key=lambda name: likely_reward(name) or 0.0))
        return
    likely = [name for name in state.left() if name in answers or _rewarding(state, name)]
    likely = _without_those_of_alternatives(state, likely)
    likely.sort(key=lambda name: -1 if name in answers else rewarding(name) or 0)  # the surest first
    if not likely and "event" not in state.meant:
        likely = [name for name in state.left() if plain(name) == "score" and _few_stars(state, name)]
    if not likely:
        return
    kinds = "event" in state.meant and ("+" in state.meant["event"] or state.log.distinct(state.meant["event"]) > 1)
    if kinds:
        state.why |= {name: "numbers that vary: a reward? then say --columns reward=" + name for name in likely}
        state.unsure.append(
            f"{' and '.join(likely)} could be a reward, and the events are taken instead: say --columns "
            f"reward={likely[0]} if it is what counts"
        )
        return
    first = likely[0]
    if state.log.answers(first):
        state.meant["event"], called = first, _called(first)
        words = {value: ANSWERS[value] for value in state.log.values(first)}
        state.rename |= {value: called if word == "click" else word for value, word in words.items()}
        state.rewards, state.why[first] = (
            f"none=0,{called}=1", "0 and 1: what was shown without and with an answer"
        )  # fmt: skip
    elif plain(first) in (*RATINGS, "score") and state.log.distinct(first) <= MOST_EVENTS:
        state.meant["event"], state.why[first] = first, "numbers that people gave: ratings"
    else:
        counted = [name for name in likely[1:] if _counts(name) and not _counts(first)]
        before = f": an amount before a count ({', '.join(counted)})" if counted else ""
        state.meant["reward"], state.why[first] = first, f"numbers that vary, named like a reward{before}"
        if "event" in state.meant:
            del state.meant["event"]
    if len(likely) > 1:
        state.why |= {name: f"{first} is taken for the reward; if it is this: --columns reward={name}"
                     for name in likely[1:]}  # fmt: skip
        state.unsure.append(
            f"{first} is taken for the reward, not {' or '.join(likely[1:])}; to change that: --columns reward=NAME"
        )


def _without_those_of_alternatives(state: GuessState, likely: list[str]) -> list[str]:
    """The columns but for price.a, price.b, price.c, which are of alternatives in a wide table, and not of the row."""
    parts = {name: re.split(r"[\W_]", name.lower(), maxsplit=1) for name in likely}
    several = [
        name for name, (stem, *rest) in parts.items() if stem in MONEY[-1] and rest and rewarding(rest[0]) is None
    ]
    several = several if len(several) >= WIDE else []
    if several:
        state.why |= {
            name: "ignored: one column for each alternative, so none of them is the row's" for name in several
        }
        state.unsure.append(
            f"{', '.join(several)} are ignored: they seem to be of alternatives, one column each. If one of them is "
            f"the row's reward, say --columns reward={several[0]}"
        )
    return [name for name in likely if name not in several]


def refuse_empty_rewards(state: GuessState) -> None:
    """Raise DataError on empty rewards: they may mean 0 or "not known"."""
    theirs = state.meant.get("reward")
    if theirs is None or "+" in theirs:
        return
    rows, stated = state.log.count(), state.log.count(f"NULLIF(CAST({state.log.sql(theirs)} AS VARCHAR), 'NaN')")
    if stated < rows:
        raise DataError(
            f"{state.path}: {theirs}, the reward, is empty in {rows - stated:,} of {rows:,} rows. Where a row "
            "earned nothing, write 0; where it is not known, leave these rows out with --skip-bad-rows. Or say which "
            "column the reward is: --columns reward=NAME"
        )


def settle_one_event(state: GuessState) -> None:
    """Settle the one event of all rows, if there is no column of events: with a reward of its own, or all equal."""
    if "reward" in state.meant:
        state.event, state.rewards = REWARDED, None
        return
    till, asked = _is_till(state), []
    state.event = one = BOUGHT if till else ONE_EVENT
    state.rewards = state.rewards or f"{one}=1"
    for name in [] if till else state.left():
        if columns_meant([name], ["timestamp"]) or name in state.why:
            continue
        if plain(name) in SCORES and state.log.numeric(name):
            state.unsure.append(
                f"{name} is taken for a ranker's, and ignored: if people gave it, say --columns event={name}"
            )
        elif 2 <= state.log.distinct(name) <= FEW_WORDS and plain(name) not in PLACES:
            listed = ", ".join(state.log.values(name))
            state.why[name] = f"few values ({listed}): is it what people did? Then say --columns event={name}"
            asked.append(name)
    if len(asked) == 1:
        state.unsure.append(f"{asked[0]} holds {listed}: if that is what people did, say --columns event={asked[0]}")
    elif asked:
        state.unsure.append(f"{', '.join(asked)} hold few values: if one is what people did, say --columns event=NAME")
    state.unsure.append(
        f"there is neither an event nor a reward column: every row is a '{one}', all rewards are equal, and there is "
        "nothing to improve but the likelihood"
    )


def _is_till(state: GuessState) -> bool:
    """Whether the log is a till's: a column holds receipts."""
    return not {plain(name) for name in state.log.names}.isdisjoint(BASKETS)


def _several_answers(state: GuessState, names: list[str]) -> None:
    """Combine columns such as is_click and is_buy, 0 or 1 each: the event of a row is its best paid one."""
    together = "+".join(names)
    state.meant["event"] = together
    called = [_called(name) for name in names]
    state.why |= {name: "0 and 1: whether it followed; the best paid one counts" for name in names}
    for value in state.log.values(together):
        came = [word for word, part in zip(called, value.split("+"), strict=True) if ANSWERS.get(part) == "click"]
        state.rename.setdefault(value, came[-1] if came else "none")
    rewards = {word: likely_reward(word) for word in called}
    state.rewards = ",".join(["none=0", *(f"{word}={reward:g}" for word, reward in rewards.items())])


def _called(name: str) -> str:
    """Return the event that a yes-or-no column is about: clicked is a click, is_purchased a purchase."""
    word = plain(name).removeprefix("is").removeprefix("has")
    return "click" if word in ("clicked", "clicks") or likely_reward(word) is None else word


def _few_stars(state: GuessState, name: str) -> bool:
    """Whether a column holds few distinct whole or half numbers, as ratings by people do, and no ranker's scores."""
    halves = state.log.share(name, "TRY_CAST({0} AS DOUBLE) * 2 % 1 = 0")
    return halves == 1 and 2 <= state.log.distinct(name) <= FEW_STARS and plain(name) not in PLACES


def _rewarding(state: GuessState, name: str) -> bool:
    called = plain(name)
    is_id = called.endswith(("id", "code", "key")) or "genre" in called
    if is_id or rewarding(name) is None or state.log.distinct(name) < 2:
        return False
    return state.log.numeric(name) or state.log.answers(name)


def _counts(name: str) -> bool:
    """Whether a column's name is one of counts, not of amounts."""
    return rewarding(name) == PLACE_OF_COUNTS
