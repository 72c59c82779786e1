"""Whose rows are one sequence, and in which split a log says that they are."""

from __future__ import annotations

from localpolicy.data.column_names import BASKETS, columns_meant, plain
from localpolicy.data.events import SPLIT_WORDS
from localpolicy.data.guess.reading import Reading
from localpolicy.data.reading import ROW

SPLIT_NAMES = ("split", "set", "fold", "partition", "subset")
FEWEST = 3  # sequences of a split that `prepare` takes


def settle_sequence(reading: Reading) -> None:
    """People before baskets where both are named: a basket has no past to learn from. Which one it is, is said."""
    theirs = reading.meant["sequence_id"]
    if "sequence_id" in reading.given or theirs == ROW or "+" in theirs:
        return
    if theirs == reading.meant.get("request"):
        _take_person(reading)
        return
    other = columns_meant(reading.left(), ["sequence_id"]).get("sequence_id")
    basket = plain(theirs) in BASKETS
    if other is not None and (reading.log.distinct(other) <= 2 or reading.log.stated(other) < 1):
        other = None  # a mark of a few rows
    if other is None:
        if basket:
            reading.why[theirs] = "its name; no column says whose it is"
        return
    option = f"--columns sequence_id={other}"
    if plain(other) in BASKETS and not basket:
        reading.why[theirs] = f"its name: a person's rows, and not one {other} alone, which has no past"
        reading.unsure.append(
            f"each {theirs} is a sequence, with what it took before; for each {other} as one, say {option}"
        )
    else:
        reading.why[theirs] = f"its name, the surest; if it is {other}, say {option}"
        reading.unsure.append(f"each {theirs} is a sequence; for each {other} as one, say {option}")
    reading.why[other] = f"ignored: {theirs} is the sequence; to change that, say {option}"


def _take_person(reading: Reading) -> None:
    """The only other id as the person, if each list has one of them, and some of them had several lists."""
    request = reading.meant["request"]
    ids = [name for name in reading.left() if plain(name).endswith("id")]
    if len(ids) != 1 or reading.log.stated(ids[0]) < 1 or reading.log.several(request, ids[0]):
        return
    if reading.log.distinct(ids[0]) >= reading.log.distinct(request) or reading.log.distinct(ids[0]) < 2:
        return
    reading.meant["sequence_id"], reading.why[ids[0]] = ids[0], f"each {request} has one, and it has several"
    reading.unsure = [note for note in reading.unsure if not note.startswith("no column says who it was")]
    reading.unsure.append(
        f"each {ids[0]} is a sequence of lists, with what it was shown before; for each {request} as one, say "
        f"--columns sequence_id={request}"
    )


def settle_split(reading: Reading) -> None:
    """A column that says train, validation and test is used, or why not is said."""
    found = next((name for name in reading.left() if plain(name) in SPLIT_NAMES), None)
    if found is None or reading.log.distinct(found) > sum(map(len, SPLIT_WORDS)):
        return
    who = reading.meant["sequence_id"]
    codes = {word: number for number, words in enumerate(SPLIT_WORDS) for word in words}
    named = {value: codes.get(value.strip().lower()) for value in reading.log.values(found)}
    if None in named.values() or not {0, 2} <= set(named.values()):
        if any(code is not None for code in named.values()):
            _leave(reading, found, f"its values are {', '.join(named)}, and not train, validation and test alone")
    elif who != ROW and (torn := reading.log.several(who, found)):
        _leave(reading, found, f"{torn:,} {who} are in more than one split, and a sequence is in one")
    elif who != ROW and min(reading.log.sequences_by(who, found).values()) < FEWEST:
        _leave(reading, found, f"one of its splits has fewer than {FEWEST} sequences")
    else:
        reading.split, reading.why[found] = found, "it says train, validation and test"
        reading.unsure.append(f"{found} says what is trained on and what is tested on; to split anew: --split random")


def _leave(reading: Reading, name: str, why: str) -> None:
    reading.why[name] = f"ignored: {why}"
    reading.unsure.append(f"{name} is ignored, and the log is split anew: {why}")
