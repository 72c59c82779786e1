"""Guesses of what was shown: propensities, rows without an answer, and rows of one list."""

from __future__ import annotations

from collections.abc import Mapping

from localpolicy.data.guess.event_words import reward_of, says_nothing_came
from localpolicy.data.guess.state import GuessState
from localpolicy.data.log_schema import ROW
from localpolicy.limits import NO_ANSWER

MOST = 0.9  # share of the rows above which a column is accepted, and its other rows are errors


def settle_propensity(state: GuessState) -> None:
    """Settle the propensity: numbers above 0 and up to 1, but for a few wrong rows; else the column is something else.

    `prepare` then names the first of them.
    """
    theirs = state.meant.get("propensity")
    if theirs is None or theirs in state.why:
        return
    fit = state.log.share(theirs, "TRY_CAST({0} AS DOUBLE) > 0 AND TRY_CAST({0} AS DOUBLE) <= 1")
    if fit == 1.0 or (fit > MOST and state.log.share(theirs, "{0} IS NOT NULL") == 1.0):
        state.why[theirs] = "its name; numbers from 0 to 1: how likely it was shown"
    else:
        del state.meant["propensity"]
        state.why[theirs] = "ignored: no probabilities, which lie above 0 and up to 1"


def settle_showings(state: GuessState) -> None:
    """Settle the rows that only say "shown": unanswered impressions, left out if the answers have rows of their own."""
    event = state.meant["event"]
    if "+" in event:
        return
    values = state.log.values(event)
    shown = {value: NO_ANSWER for value in values if value not in state.rename and says_nothing_came(value)}
    if state.rewards is not None:  # an event with a reward is no such row
        shown = {value: none for value, none in shown.items() if not reward_of(state.rewards, value)}
    if not shown or len(shown) == len(values):
        return
    state.rename |= shown
    words = " and ".join(shown)
    who = state.meant.get("request", state.meant["sequence_id"])
    pair = f"{who}+{state.meant['item_id']}"
    decided = "propensity" in state.meant and not _answers_lack(state, state.meant["propensity"], event, shown)
    if who != ROW and not decided and state.log.shown_before(pair, event, shown):
        state.kind = "interactions"
        state.meant.pop("propensity", None)
        state.unsure.append(
            f"a row that says {words} stands before the row of its answer: these rows are left out, and what people "
            "did is read. To judge by what was shown, write one row for each shown item, with its answer "
            f"(or '{NO_ANSWER}')"
        )
    elif set(shown) != {NO_ANSWER}:
        state.unsure.append(
            f"{words} is read as '{NO_ANSWER}': the item was shown and not answered. If it is something "
            f"that people did, state its reward: --rewards {next(iter(shown))}=0.1,…"
        )


def settle_lists(state: GuessState) -> None:
    """Settle which rows were one list, and at which places: both, or neither."""
    request, place = state.meant.get("request"), state.meant.get("place")
    if (request is None and place is None) or {"request", "place"} <= state.given.keys():
        return
    shown = "propensity" in state.meant or NO_ANSWER in state.rename.values()
    if place is not None and (request is None or not state.log.are_lists(request, place)):
        request = _same_moment(state, place) or _one_list_each(state, place)
    if shown and state.kind is None and request is not None and place is not None:
        state.meant |= {"request": request, "place": place}
        state.why.setdefault(request, "rows of one are one list")
        state.why[place] = "its place in the list"
        if "propensity" in state.meant:
            state.unsure.append(
                f"{state.meant['propensity']} is read as the probability of an item at its {place} among those that "
                "do not stand above it in the list. If it is another probability, values of lists are wrong"
            )
        return
    for ours, theirs in (("request", state.meant.get("request")), ("place", place)):
        if theirs is None or ours in state.given:
            continue
        del state.meant[ours]
        if theirs in state.meant.values():  # a column of lists that stands for the person too: it is used
            state.why.setdefault(theirs, "its name: rows of one are one sequence")
            continue
        lacks = "nothing says which rows stood in one list" if ours == "place" else "nothing says its place in it"
        why = lacks if shown and state.kind is None else "only a log of what was shown has lists"
        state.why[theirs] = f"ignored: {why}"
        if "propensity" in state.meant and ours == "place":
            state.unsure.append(
                f"{theirs} is ignored: {lacks}, so each row is read as a decision of its own. If rows were shown "
                "together, say which: --columns request=NAME"
            )


def _one_list_each(state: GuessState, place: str) -> str | None:
    """Column of the sequence, if each sequence is one list (distinct places, no column that names lists), else None."""
    who = state.meant["sequence_id"]
    if "request" in state.meant or who == ROW or "+" in who or not state.log.are_lists(who, place):
        return None
    state.unsure.append(f"the rows of one {who} are read as one list; if it saw several, say --columns request=NAME")
    return who


def _answers_lack(state: GuessState, propensity: str, event: str, shown: Mapping[str, str]) -> bool:
    """Whether under 95 % of the rows of answers state a propensity, so that those of impressions are used."""
    words = ", ".join("'" + word.replace("'", "''") + "'" for word in shown)
    answered = f"{state.log.sql(event)} NOT IN ({words})"
    stated = state.log.count(f"CASE WHEN {answered} THEN {state.log.sql(propensity)} END")
    return stated < 0.95 * state.log.count(f"CASE WHEN {answered} THEN 1 END")


def _same_moment(state: GuessState, place: str) -> str | None:
    """Take rows of one person at one time, at distinct places, for one list; return its name, or None."""
    who, when = state.meant["sequence_id"], state.meant.get("timestamp")
    if who == ROW or when is None:
        return None
    together = f"{who}+{when}"
    if not state.log.are_lists(together, place):
        return None
    state.unsure.append(f"rows with the same {who} and {when} are read as one list")
    return together
