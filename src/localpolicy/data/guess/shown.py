"""What a log says was shown: propensities, rows of which nothing came, and which rows were one list."""

from __future__ import annotations

from collections.abc import Mapping

from localpolicy.data.guess.event_words import says_nothing_came, worth
from localpolicy.data.guess.reading import Reading
from localpolicy.data.reading import ROW
from localpolicy.limits import NO_ANSWER

MOST = 0.9  # of the rows: a column that is right in more of them is meant, and wrong in the others


def settle_propensity(reading: Reading) -> None:
    """Probabilities lie above 0 and up to 1; what does not is something else, unless few rows do not: those are wrong.

    `prepare` then names the first of them.
    """
    theirs = reading.meant.get("propensity")
    if theirs is None or theirs in reading.why:
        return
    fit = reading.log.share(theirs, "TRY_CAST({0} AS DOUBLE) > 0 AND TRY_CAST({0} AS DOUBLE) <= 1")
    if fit == 1.0 or (fit > MOST and reading.log.share(theirs, "{0} IS NOT NULL") == 1.0):
        reading.why[theirs] = "its name; numbers from 0 to 1: how likely it was shown"
    else:
        del reading.meant["propensity"]
        reading.why[theirs] = "ignored: no probabilities, which lie above 0 and up to 1"


def settle_showings(reading: Reading) -> None:
    """Rows that say "shown" are no action: nothing came of them. Beside rows of what came they are left out."""
    event = reading.meant["event"]
    if "+" in event:
        return
    values = reading.log.values(event)
    shown = {value: NO_ANSWER for value in values if value not in reading.rename and says_nothing_came(value)}
    if reading.rewards is not None:  # what is worth something is no such row
        shown = {value: none for value, none in shown.items() if not worth(reading.rewards, value)}
    if not shown or len(shown) == len(values):
        return
    reading.rename |= shown
    words = " and ".join(shown)
    who = reading.meant.get("request", reading.meant["sequence_id"])
    pair = f"{who}+{reading.meant['item_id']}"
    decided = "propensity" in reading.meant and not _answers_lack(reading, reading.meant["propensity"], event, shown)
    if who != ROW and not decided and reading.log.shown_before(pair, event, shown):
        reading.kind = "interactions"
        reading.meant.pop("propensity", None)
        reading.unsure.append(
            f"a row that says {words} stands before the row that says what came of it: these rows are left out, "
            "and what people did is read. To judge by what was shown, write one row for each shown item, with what "
            f"came of it (or '{NO_ANSWER}')"
        )
    elif set(shown) != {NO_ANSWER}:
        reading.unsure.append(
            f"{words} is read as '{NO_ANSWER}': the item was shown, and nothing came of it. If it is something "
            f"that people did, say what it is worth: --rewards {next(iter(shown))}=0.1,…"
        )


def settle_lists(reading: Reading) -> None:
    """Which rows were shown together, and at which places: both, or neither."""
    request, place = reading.meant.get("request"), reading.meant.get("place")
    if (request is None and place is None) or {"request", "place"} <= reading.given.keys():
        return
    shown = "propensity" in reading.meant or NO_ANSWER in reading.rename.values()
    if place is not None and (request is None or not reading.log.are_lists(request, place)):
        request = _same_moment(reading, place) or _one_list_each(reading, place)
    if shown and reading.kind is None and request is not None and place is not None:
        reading.meant |= {"request": request, "place": place}
        reading.why.setdefault(request, "rows of one are one list")
        reading.why[place] = "its place in the list"
        if "propensity" in reading.meant:
            reading.unsure.append(
                f"{reading.meant['propensity']} is read as the probability of an item at its {place} among those that "
                "do not stand above it in the list. If it is another probability, values of lists are wrong"
            )
        return
    for ours, theirs in (("request", reading.meant.get("request")), ("place", place)):
        if theirs is None or ours in reading.given:
            continue
        del reading.meant[ours]
        lacks = "nothing says which rows stood in one list" if ours == "place" else "nothing says its place in it"
        why = lacks if shown and reading.kind is None else "only a log of what was shown has lists"
        reading.why[theirs] = f"ignored: {why}"
        if "propensity" in reading.meant and ours == "place":
            reading.unsure.append(
                f"{theirs} is ignored: {lacks}, so each row is read as a decision of its own. If rows were shown "
                "together, say which: --columns request=NAME"
            )


def _one_list_each(reading: Reading, place: str) -> str | None:
    """The sequence's own column, if no column names lists and each sequence's rows stand at places of their own."""
    who = reading.meant["sequence_id"]
    if "request" in reading.meant or who == ROW or "+" in who or not reading.log.are_lists(who, place):
        return None
    reading.unsure.append(f"the rows of one {who} are read as one list; if it saw several, say --columns request=NAME")
    return who


def _answers_lack(reading: Reading, propensity: str, event: str, shown: Mapping[str, str]) -> bool:
    """Whether the rows of answers state no propensities: then the rows that were shown do."""
    words = ", ".join("'" + word.replace("'", "''") + "'" for word in shown)
    answered = f"{reading.log.sql(event)} NOT IN ({words})"
    stated = reading.log.count(f"CASE WHEN {answered} THEN {reading.log.sql(propensity)} END")
    return stated < 0.95 * reading.log.count(f"CASE WHEN {answered} THEN 1 END")


def _same_moment(reading: Reading, place: str) -> str | None:
    """Rows of one person at one time, at places of their own, are one list."""
    who, when = reading.meant["sequence_id"], reading.meant.get("timestamp")
    if who == ROW or when is None:
        return None
    together = f"{who}+{when}"
    if not reading.log.are_lists(together, place):
        return None
    reading.unsure.append(f"rows with the same {who} and {when} are read as one list")
    return together
