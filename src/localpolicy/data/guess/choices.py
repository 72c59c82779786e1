"""Guesses of logs of choices by their values, where no name says the case or the item."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from localpolicy.data.column_names import columns_meant
from localpolicy.data.guess.event_words import likely_reward
from localpolicy.data.guess.log_columns import ANSWERS, LogColumns

MOST_ALTERNATIVES = 100
FEWEST_CASES = 10
NEARLY_ALL = 0.95  # share of the cases
MOST_SHOWN = 0.5  # least share of all alternatives that a case shows


def chosen_among_columns(log: LogColumns) -> tuple[str, frozenset[str]] | None:
    """Return the column that names what was chosen, and the columns of each alternative.

    As in choice=air with price.air and price.train: its values are ends (or beginnings) of other columns' names.
    """
    groups: dict[str, dict[str, str]] = defaultdict(dict)  # an alternative -> its column
    for name in log.names:
        for cut in re.finditer(r"[._: -]", name):
            head, tail = name[: cut.start()], name[cut.end() :]
            groups[f"{head}*"][tail] = name
            groups[f"*{tail}"][head] = name
    alternatives = [group for group in groups.values() if 2 <= len(group) <= MOST_ALTERNATIVES]
    for name in log.names if alternatives else ():
        if log.numeric(name) or not 2 <= log.distinct(name) <= max(map(len, alternatives)):
            continue
        values = set(log.values(name))
        matching = [group for group in alternatives if values <= group.keys()]
        if matching and not log.answers(name):
            return name, frozenset(column for group in matching for column in group.values())
    return None


def case_and_item(log: LogColumns, *, items: Sequence[str] = ()) -> tuple[str, str] | None:
    """Return the columns of the case and of the item, in a log of choices without times: one row per alternative.

    Nearly every case shows most of the alternatives, none twice, and one of them was chosen. `items` are the columns
    that may be the item: all texts by default.
    """
    meant = columns_meant(log.names)
    case = meant.get("sequence_id")
    if case is None or "timestamp" in meant or log.distinct(case) < FEWEST_CASES:
        return None
    answers = [name for name in log.names if name != case and log.answers(name) and likely_reward(name)]
    if not answers:
        return None
    free = items or [name for name in log.names if name not in (case, *answers) and not log.numeric(name)]
    found = [name for name in free if any(_are_alternatives(log, case, name, answer) for answer in answers)]
    return (case, found[0]) if len(found) == 1 else None


def _are_alternatives(log: LogColumns, case: str, item: str, answer: str) -> bool:
    count = log.distinct(item)
    if not 2 <= count <= MOST_ALTERNATIVES:
        return False
    yes = ", ".join(f"'{form}'" for form, event in ANSWERS.items() if event != "none")
    chosen = f"SUM(CASE WHEN CAST({log.sql(answer)} AS VARCHAR) IN ({yes}) THEN 1 ELSE 0 END) = 1"
    once = f"COUNT(*) = COUNT(DISTINCT {log.sql(item)})"
    each = f"SELECT COUNT(*) AS n, {chosen} AND {once} AS fits FROM log GROUP BY {log.sql(case)}"
    rows, fits = log.engine.rows(f"SELECT AVG(n), AVG(CASE WHEN fits THEN 1.0 ELSE 0.0 END) FROM ({each})")[0]
    return float(rows) >= max(2.0, MOST_SHOWN * count) and float(fits) > NEARLY_ALL
