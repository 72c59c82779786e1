"""What people did and what it is worth: a column of events, of ratings or of rewards, or none of them."""

from __future__ import annotations

import re

from localpolicy.data.column_names import BASKETS, FEW_STARS, MONEY, RATINGS, REWARDING, columns_meant, plain, rewarding
from localpolicy.data.guess.event_words import MOST_EVENTS, likely_reward, number
from localpolicy.data.guess.log import ANSWERS
from localpolicy.data.guess.reading import PLACES, SCORES, Reading
from localpolicy.errors import DataError
from localpolicy.limits import NO_ANSWER

AGAIN = ("re", "again", "repeat")  # how names of habits begin
WIDE = 3  # columns of prices, which are then one for each alternative
FEW_WORDS = 8  # values of a column that may be events, where no other is
ONE_EVENT, BOUGHT = "click", "purchase"  # of every row, in a log that has neither events nor rewards; of a till's
PLACE_OF_COUNTS = len(REWARDING) - 1
REWARDED = "interaction"  # of every row, in a log that states rewards alone


def settle_event(reading: Reading) -> None:
    """A column of events must hold few values; numbers that vary are a reward instead."""
    theirs = reading.meant.get("event")
    if theirs is None or "+" in theirs:
        return
    rows = reading.log.count()
    empty = rows - reading.log.count(reading.log.sql(theirs))
    if empty:
        raise DataError(
            f"{reading.path}: {theirs}, the event, is empty in {empty:,} of {rows:,} rows. Where an item "
            f"was shown and nothing came of it, write '{NO_ANSWER}' there; else leave these rows out. Or say which "
            "column the event is: --columns event=NAME"
        )
    if "event" in reading.given or reading.rewards is not None:
        return
    distinct = reading.log.distinct(theirs)
    if reading.log.numeric(theirs) and distinct > MOST_EVENTS:
        del reading.meant["event"]
        if "reward" not in reading.meant:
            reading.meant["reward"] = theirs
            reading.why[theirs] = f"{distinct:,} different numbers: a reward, no kinds of event"
    elif distinct <= MOST_EVENTS and _is_of_items(reading, theirs):
        del reading.meant["event"]
        item = reading.meant["item_id"]
        reading.why[theirs] = f"ignored: each {item} has one of its values, so it is no event"


def _is_of_items(reading: Reading, event: str) -> bool:
    """Whether values whose names say nothing tell items apart: several, and each item has one of them alone."""
    values = reading.log.values(event)
    if len(values) < 2 or any(number(value) is not None or likely_reward(value) is not None for value in values):
        return False
    item = reading.meant["item_id"]
    repeated = reading.log.count() > 2 * reading.log.distinct(item)
    return repeated and reading.log.several(item, event) == 0


def settle_reward(reading: Reading) -> None:
    """A number that varies and is named like one; beside events of several kinds it is only asked about."""
    stated = reading.meant.get("reward")
    if stated is not None and "reward" not in reading.given and reading.rewards is not None:
        del reading.meant["reward"]
        reading.why[stated] = "ignored: the rewards that you gave say what events are worth"
    if stated is not None or reading.rewards is not None:
        return
    answers = [name for name in reading.left() if reading.log.answers(name) and likely_reward(name)]
    if _is_till(reading):  # every row was bought: whether it was before is no answer to what was shown
        habits = [name for name in answers if plain(name).startswith(AGAIN)]
        answers = [name for name in answers if name not in habits]
        reading.why |= {name: "ignored: every row was bought, whether or not for the first time" for name in habits}
    if len(answers) > 1 and "event" not in reading.meant:
        _several_answers(reading, sorted(answers, key=lambda name: likely_reward(name) or 0.0))
        return
    likely = [name for name in reading.left() if name in answers or _rewarding(reading, name)]
    likely = _without_those_of_alternatives(reading, likely)
    likely.sort(key=lambda name: -1 if name in answers else rewarding(name) or 0)  # the surest first
    if not likely and "event" not in reading.meant:
        likely = [name for name in reading.left() if plain(name) == "score" and _few_stars(reading, name)]
    if not likely:
        return
    kinds = "event" in reading.meant and (
        "+" in reading.meant["event"] or reading.log.distinct(reading.meant["event"]) > 1
    )
    if kinds:
        reading.why |= {name: "numbers that vary: a reward? then say --columns reward=" + name for name in likely}
        reading.unsure.append(
            f"{' and '.join(likely)} could be a reward, and the events are taken instead: say --columns "
            f"reward={likely[0]} if it is what counts"
        )
        return
    first = likely[0]
    if reading.log.answers(first):
        reading.meant["event"], called = first, _called(first)
        words = {value: ANSWERS[value] for value in reading.log.values(first)}
        reading.rename |= {value: called if word == "click" else word for value, word in words.items()}
        reading.rewards, reading.why[first] = (
            f"none=0,{called}=1", "0 and 1: what was shown without and with an answer"
        )  # fmt: skip
    elif plain(first) in (*RATINGS, "score") and reading.log.distinct(first) <= MOST_EVENTS:
        reading.meant["event"], reading.why[first] = first, "numbers that people gave: ratings"
    else:
        counted = [name for name in likely[1:] if _counts(name) and not _counts(first)]
        before = f": an amount before a count ({', '.join(counted)})" if counted else ""
        reading.meant["reward"], reading.why[first] = first, f"numbers that vary, named like a reward{before}"
        if "event" in reading.meant:
            del reading.meant["event"]
    if len(likely) > 1:
        reading.why |= {name: f"{first} is taken for the reward; if it is this: --columns reward={name}"
                     for name in likely[1:]}  # fmt: skip
        reading.unsure.append(
            f"{first} is taken for the reward, not {' or '.join(likely[1:])}; to change that: --columns reward=NAME"
        )


def _without_those_of_alternatives(reading: Reading, likely: list[str]) -> list[str]:
    """The columns but for price.a, price.b, price.c, which are of alternatives in a wide table, and not of the row."""
    parts = {name: re.split(r"[\W_]", name.lower(), maxsplit=1) for name in likely}
    several = [
        name for name, (stem, *rest) in parts.items() if stem in MONEY[-1] and rest and rewarding(rest[0]) is None
    ]
    several = several if len(several) >= WIDE else []
    if several:
        reading.why |= {
            name: "ignored: one column for each alternative, so none of them is the row's" for name in several
        }
        reading.unsure.append(
            f"{', '.join(several)} are ignored: they seem to be of alternatives, one column each. If one of them is "
            f"the row's reward, say --columns reward={several[0]}"
        )
    return [name for name in likely if name not in several]


def refuse_empty_rewards(reading: Reading) -> None:
    """Raise on empty rewards: they may mean 0 or "not known", and the log does not say which."""
    theirs = reading.meant.get("reward")
    if theirs is None or "+" in theirs:
        return
    rows, stated = reading.log.count(), reading.log.count(f"NULLIF(CAST({reading.log.sql(theirs)} AS VARCHAR), 'NaN')")
    if stated < rows:
        raise DataError(
            f"{reading.path}: {theirs}, the reward, is empty in {rows - stated:,} of {rows:,} rows. Where nothing came "
            "of a row, write 0 there; where it is not known, leave these rows out with --skip-bad-rows. Or say which "
            "column the reward is: --columns reward=NAME"
        )


def settle_one_event(reading: Reading) -> None:
    """Every row is the same event: with a reward of its own, or all worth the same."""
    if "reward" in reading.meant:
        reading.event, reading.rewards = REWARDED, None
        return
    till, asked = _is_till(reading), []
    reading.event = one = BOUGHT if till else ONE_EVENT
    reading.rewards = reading.rewards or f"{one}=1"
    for name in [] if till else reading.left():
        if columns_meant([name], ["timestamp"]) or name in reading.why:
            continue
        if plain(name) in SCORES and reading.log.numeric(name):
            reading.unsure.append(
                f"{name} is taken for a ranker's, and ignored: if people gave it, say --columns event={name}"
            )
        elif 2 <= reading.log.distinct(name) <= FEW_WORDS and plain(name) not in PLACES:
            listed = ", ".join(reading.log.values(name))
            reading.why[name] = f"few values ({listed}): is it what people did? Then say --columns event={name}"
            asked.append(name)
    if len(asked) == 1:
        reading.unsure.append(f"{asked[0]} holds {listed}: if that is what people did, say --columns event={asked[0]}")
    elif asked:
        reading.unsure.append(
            f"{', '.join(asked)} hold few values: if one is what people did, say --columns event=NAME"
        )
    reading.unsure.append(
        f"there is neither an event nor a reward column: every row is a '{one}', no event is worth more than "
        "another, and there is nothing to improve but the likelihood"
    )


def _is_till(reading: Reading) -> bool:
    """Whether a column holds receipts."""
    return not {plain(name) for name in reading.log.names}.isdisjoint(BASKETS)


def _several_answers(reading: Reading, names: list[str]) -> None:
    """is_click and is_buy, 0 or 1 each: the event of a row is the dearest that came of it."""
    together = "+".join(names)
    reading.meant["event"] = together
    called = [_called(name) for name in names]
    reading.why |= {name: "0 and 1: whether it came of what was shown; the dearest one counts" for name in names}
    for value in reading.log.values(together):
        came = [word for word, part in zip(called, value.split("+"), strict=True) if ANSWERS.get(part) == "click"]
        reading.rename.setdefault(value, came[-1] if came else "none")
    worth = {word: likely_reward(word) for word in called}
    reading.rewards = ",".join(["none=0", *(f"{word}={reward:g}" for word, reward in worth.items())])


def _called(name: str) -> str:
    """The event that a column of yes and no is about: clicked is a click, is_purchased what it says."""
    word = plain(name).removeprefix("is").removeprefix("has")
    return "click" if word in ("clicked", "clicks") or likely_reward(word) is None else word


def _few_stars(reading: Reading, name: str) -> bool:
    """Whole or half numbers, few of them: people gave them, no ranker did."""
    halves = reading.log.share(name, "TRY_CAST({0} AS DOUBLE) * 2 % 1 = 0")
    return halves == 1 and 2 <= reading.log.distinct(name) <= FEW_STARS and plain(name) not in PLACES


def _rewarding(reading: Reading, name: str) -> bool:
    called = plain(name)
    is_id = called.endswith(("id", "code", "key")) or "genre" in called
    if is_id or rewarding(name) is None or reading.log.distinct(name) < 2:
        return False
    return reading.log.numeric(name) or reading.log.answers(name)


def _counts(name: str) -> bool:
    """Whether it says how many, not how much."""
    return rewarding(name) == PLACE_OF_COUNTS
