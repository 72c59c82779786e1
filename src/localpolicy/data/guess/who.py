"""Guesses of the sequence (person, visit or basket) and of a column of splits."""

from __future__ import annotations

from localpolicy.data.column_names import BASKETS, columns_meant, plain
from localpolicy.data.events import SPLIT_WORDS
from localpolicy.data.guess.state import GuessState
from localpolicy.data.log_schema import ROW

SPLIT_NAMES = ("split", "set", "fold", "partition", "subset")
FEWEST = 3  # fewest sequences of a split that `prepare` takes


def settle_sequence(state: GuessState) -> None:
    """Settle the sequence: people before baskets, which have no past to learn from; note the choice."""
    theirs = state.meant["sequence_id"]
    if "sequence_id" in state.given or theirs == ROW or "+" in theirs:
        return
    if theirs == state.meant.get("request"):
        _take_person(state)
        return
    other = columns_meant(state.left(), ["sequence_id"]).get("sequence_id")
    basket = plain(theirs) in BASKETS
    if other is not None and (state.log.distinct(other) <= 2 or state.log.stated(other) < 1):
        other = None  # a mark of a few rows
    if other is None:
        if basket:
            state.why[theirs] = "its name; no column says whose it is"
        return
    option = f"--columns sequence_id={other}"
    if plain(other) in BASKETS and not basket:
        state.why[theirs] = f"its name: a person's rows, and not one {other} alone, which has no past"
        state.unsure.append(
            f"each {theirs} is a sequence, with what it took before; for each {other} as one, say {option}"
        )
    else:
        state.why[theirs] = f"its name, the surest; if it is {other}, say {option}"
        state.unsure.append(f"each {theirs} is a sequence; for each {other} as one, say {option}")
    state.why[other] = f"ignored: {theirs} is the sequence; to change that, say {option}"


def _take_person(state: GuessState) -> None:
    """Take the only other id column as the person, if each list has one person and some persons several lists."""
    request = state.meant["request"]
    ids = [name for name in state.left() if plain(name).endswith("id")]
    if len(ids) != 1 or state.log.stated(ids[0]) < 1 or state.log.several(request, ids[0]):
        return
    if state.log.distinct(ids[0]) >= state.log.distinct(request) or state.log.distinct(ids[0]) < 2:
        return
    state.meant["sequence_id"], state.why[ids[0]] = ids[0], f"each {request} has one, and it has several"
    state.unsure = [note for note in state.unsure if not note.startswith("no column says who it was")]
    state.unsure.append(
        f"each {ids[0]} is a sequence of lists, with what it was shown before; for each {request} as one, say "
        f"--columns sequence_id={request}"
    )


def settle_split(state: GuessState) -> None:
    """Settle the column that names train, validation and test; if it cannot be used, note why."""
    found = next((name for name in state.left() if plain(name) in SPLIT_NAMES), None)
    if found is None or state.log.distinct(found) > sum(map(len, SPLIT_WORDS)):
        return
    who = state.meant["sequence_id"]
    codes = {word: number for number, words in enumerate(SPLIT_WORDS) for word in words}
    named = {value: codes.get(value.strip().lower()) for value in state.log.values(found)}
    if None in named.values() or not {0, 2} <= set(named.values()):
        if any(code is not None for code in named.values()):
            _leave(state, found, f"its values are {', '.join(named)}, and not train, validation and test alone")
    elif who != ROW and (torn := state.log.several(who, found)):
        _leave(state, found, f"{torn:,} {who} are in more than one split, and a sequence is in one")
    elif who != ROW and min(state.log.sequences_by(who, found).values()) < FEWEST:
        _leave(state, found, f"one of its splits has fewer than {FEWEST} sequences")
    else:
        state.split, state.why[found] = found, "it says train, validation and test"
        state.unsure.append(f"{found} says what is trained on and what is tested on; for a new split: --split random")


def _leave(state: GuessState, name: str, why: str) -> None:
    state.why[name] = f"ignored: {why}"
    state.unsure.append(f"{name} is ignored, and the log gets a new split: {why}")
