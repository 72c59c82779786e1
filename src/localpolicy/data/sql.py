"""The one SQL text of `prepare`, in the subset that DuckDB and Spark share.

Differences between engines: hashes differ (so md5, compared as text); NULL order differs (so it is stated);
sums of integers change type (so outputs are cast); LEFT SEMI JOIN is Spark's alone (so SEMI JOIN).
Tables, in the order they come to be:

    event_codes  event as the log wrote it -> code       policies   policy -> code
    loaded      every row of the log as an event (see `events`); a bad row's event is NULL
    kept        what the filters left
    sequences   sequence_id, split, number
    numbered    kept, with its sequences' numbers instead of their ids
    items       item_id, index, count
    item_filters  filter, number, content: of the filters of `numbered` whose items the log states

No table has a column that this log does not need: an idle one costs as much as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from localpolicy.limits import NO_FILTER, UNKNOWN_FILTER

STORED = (
    "time",
    "reward",
    "propensity",
    "policy",
    "request",
    "place",
    "filter",
    "context_id",
    "past_event",
)  # optional columns, as `final` gives them
EVENTS_PER_PART, MOST_PARTS = 1 << 23, 4  # of the last sort


def order(fields: Sequence[str], *, impressions: bool) -> str:
    """ORDER BY of events within a sequence, total up to rows that are equal throughout.

    Ties in time are broken by the event's reward, then at random (`with_lots`): a view precedes the purchase it led to,
    whatever the two are called. If the event is the answer to the item (a rating, or the response to an impression) it
    comes last: else the order would reveal the answer, and on logs that know only the day it would reveal most of them.
    A list stays together, in its own order.
    """
    if "position" in fields:
        return "position"
    item = ["lot", "item_id"] if "lot" in fields else ["item_id"]
    kind = ["reward_rank", "event"] if "reward_rank" in fields else ["event"]
    ties = [*item, "event"] if impressions else [*kind, *item]
    rest = [name for name in ("reward", "propensity", "policy") if name in fields]
    lists = ["request", "place"] if "request" in fields else []
    first = ["context_id"] if "context_id" in fields else []  # keeps a history together, whatever a clock did meanwhile
    return ", ".join([*first, "time", *lists, *ties, *rest])


PRIME, MIXED = 2**31 - 1, {"sequence_id": 48_271, "item_id": 69_621, "time": 16_807}  # primitive roots


def with_lots(source: str, *, integers: bool, reward_rank: Sequence[int]) -> str:
    """Rows with a pseudo-random tie-breaker, a hash of sequence, item and time, and with the rank of their event.

    An order by item would be the same for everybody, and one without the time the same in every basket of a person:
    models learn it, and held-out metrics reward them for it. Whole numbers are mixed by a square modulo a prime, which
    takes a tenth of the time of an md5; no product exceeds 64 bits. `reward_rank` ranks the events, by code.
    """
    lot = "SUBSTR(md5(CONCAT(" + ", ' ', ".join(MIXED) + ")), 1, 8)"
    if integers:
        parts = " + ".join(f"CAST({name} AS BIGINT) % {PRIME} * {factor}" for name, factor in MIXED.items())
        lot = f"(({parts}) % {PRIME}) * (({parts}) % {PRIME}) % {PRIME}"
    ranks = " ".join(f"WHEN {code} THEN {rank}" for code, rank in enumerate(reward_rank))
    also = f", CASE event {ranks} END AS reward_rank" if reward_rank else ""
    return f"SELECT *, {lot} AS lot{also} FROM {source}"


def _reversed(order: str) -> str:
    """ORDER BY terms in descending order, from ascending ones."""
    return ", ".join(f"{part} DESC" for part in order.split(", "))


ROWS = "SELECT event, COUNT(*) FROM loaded GROUP BY event"


def recent(earliest: int, *, contexts: bool) -> str:
    """Usable rows from this time on (ms); a history is kept or dropped whole, since rows are read in its context."""
    if not contexts:
        return f"SELECT * FROM loaded WHERE event IS NOT NULL AND time >= {earliest}"
    live = f"SELECT DISTINCT sequence_id, context_id FROM loaded WHERE event IS NOT NULL AND time >= {earliest}"
    joined = f"SEMI JOIN ({live}) h ON l.sequence_id = h.sequence_id AND l.context_id = h.context_id"
    kept = f"l.event IS NOT NULL AND (l.context_id <> '' OR l.time >= {earliest})"
    return f"SELECT l.* FROM loaded l {joined} WHERE {kept}"


def without_exact_duplicates(source: str, *, fields: Sequence[str], order: str) -> str:
    """First row of each group equal in sequence, time, item and event (and in place of one list)."""
    place = ", request, place" if "request" in fields else ""
    return f"""SELECT {", ".join(fields)} FROM (SELECT *, row_number() OVER (
    PARTITION BY sequence_id, time, item_id, event{place} ORDER BY {order}) AS copy
FROM {source}) numbered WHERE copy = 1"""


def without_consecutive_duplicates(source: str, *, fields: Sequence[str], order: str) -> str:
    """Rows whose item and event differ from those of the row before in the sequence."""
    before = f"OVER (PARTITION BY sequence_id ORDER BY {order})"
    return f"""SELECT {", ".join(fields)} FROM (
    SELECT *, LAG(item_id) {before} AS item_before, LAG(event) {before} AS event_before FROM {source}
) compared WHERE item_before IS NULL OR item_before <> item_id OR event_before <> event"""


def sessions(source: str, *, fields: Sequence[str], gap_ms: int) -> str:
    """Sequences cut at gaps of more than `gap_ms` between two events.

    A part is named id#<its first time>: a name that stays when more of the log arrives. Of events at one time, the one
    that begins a part must be counted first, or the others would be left in the part before.
    """
    name = "CONCAT(sequence_id, '#', CAST(MIN(time) OVER (PARTITION BY sequence_id, session) AS STRING))"
    return f"""SELECT {name} AS sequence_id, {", ".join(field for field in fields if field != "sequence_id")}
FROM (SELECT *, SUM(begins) OVER (
        PARTITION BY sequence_id ORDER BY time, begins DESC ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS session
    FROM (SELECT *, CASE WHEN time - LAG(time) OVER (PARTITION BY sequence_id ORDER BY time) > {gap_ms}
            THEN 1 ELSE 0 END AS begins FROM {source}) gaps) numbered"""


def sequence_sizes(source: str, *, click: int) -> str:
    """Each sequence with its numbers of events and clicks."""
    return f"""SELECT sequence_id, CAST(COUNT(*) AS BIGINT) AS events,
    CAST(COUNT(CASE WHEN event = {click} THEN 1 END) AS BIGINT) AS clicks
FROM {source} GROUP BY sequence_id"""


def item_sizes(source: str, *, count_sequences: bool) -> str:
    """Each item with its number of events and, if they are counted, of the sequences that hold it (else 0)."""
    sequences = "COUNT(DISTINCT sequence_id)" if count_sequences else "0"
    return f"""SELECT item_id, CAST(COUNT(*) AS BIGINT) AS events, CAST({sequences} AS BIGINT) AS sequences
FROM {source} GROUP BY item_id"""


def only(source: str, keep: Mapping[str, str]) -> str:
    """Rows of `source` whose columns are in the tables that `keep` names for them."""
    joins = " ".join(f"SEMI JOIN {table} {table} ON e.{column} = {table}.{column}" for column, table in keep.items())
    return f"SELECT e.* FROM {source} e {joins}"


def most_recent(source: str, count: int, *, fields: Sequence[str], order: str) -> str:
    """Last `count` events of each sequence."""
    return f"""SELECT {", ".join(fields)} FROM (SELECT *, row_number() OVER (
    PARTITION BY sequence_id ORDER BY {_reversed(order)}) AS from_end FROM {source}) numbered
WHERE from_end <= {count}"""


def items(first: int) -> str:
    """Items of `numbered`, by their counts in the sequences from number `first` on; then those `listed`."""
    return f"""SELECT item_id, CAST(row_number() OVER (
    ORDER BY known_index NULLS LAST, count DESC, item_id) - 1 AS INT) AS index, count
FROM (SELECT COALESCE(k.item_id, c.item_id) AS item_id, k.index AS known_index,
        CAST(COALESCE(c.count, 0) AS BIGINT) AS count
    FROM (SELECT COALESCE(n.item_id, l.item_id) AS item_id, n.count
        FROM (SELECT item_id, COUNT(*) AS count FROM numbered WHERE sequence >= {first} GROUP BY item_id) n
        FULL JOIN listed l ON n.item_id = l.item_id) c
    FULL JOIN known k ON c.item_id = k.item_id) counted"""


def keys_at_random(source: str, *, seed: int) -> str:
    """Distinct sequences in `source`, each with an md5 of seed and id."""
    return f"SELECT sequence_id, md5(CONCAT('{seed}:', CAST(sequence_id AS STRING))) AS split_key FROM {source}"


DISTINCT_SEQUENCES = "(SELECT DISTINCT sequence_id FROM kept) d"
KEYS_BY_COLUMN = "SELECT sequence_id, CAST(MAX(split) AS BIGINT) AS split_key FROM kept GROUP BY sequence_id"
IN_TWO_SPLITS = "SELECT sequence_id FROM kept GROUP BY sequence_id HAVING MIN(split) <> MAX(split) ORDER BY 1 LIMIT 1"


def keys_with_validation(least: str, *, seed: int) -> str:
    """Keys if a column has train and test alone: sequences of train with an md5 of at least `least` validate."""
    key = f"md5(CONCAT('{seed}:', CAST(sequence_id AS STRING)))"
    validates = f"split_key = 0 AND {key} >= '{least}'"
    return f"""SELECT sequence_id, CASE WHEN {validates} THEN CAST(1 AS BIGINT) ELSE split_key END AS split_key
FROM ({KEYS_BY_COLUMN}) k"""


def near_duplicates(table: str, column: str) -> str:
    """Number of ids that equal another but for spaces, capitals and 7.0 for 7, and two of them."""
    word = f"REGEXP_REPLACE(LOWER(TRIM({column})), '[.]0+$', '')"
    same = f"SELECT {word} AS word, MIN({column}) AS one, MAX({column}) AS other FROM {table} GROUP BY 1"
    return f"SELECT COUNT(*), MIN(one), MIN(other) FROM ({same} HAVING COUNT(DISTINCT {column}) > 1) d"


KEYS_BY_TIME = "SELECT sequence_id, MAX(time) AS split_key FROM kept GROUP BY sequence_id"


def sequences(cuts: Sequence[str]) -> str:
    """Sequences with their split (0, 1, 2) and their number in the order of split, then id."""
    validation, test = cuts
    return f"""SELECT sequence_id, split, CAST(row_number() OVER (ORDER BY split, sequence_id) - 1 AS BIGINT) AS number
FROM (SELECT sequence_id, CASE WHEN split_key < {validation} THEN 0 WHEN split_key < {test} THEN 1 ELSE 2 END AS split
    FROM sequence_keys) s"""


KEYS_BY_COUNT = "SELECT sequence_id, COUNT(*) AS split_key FROM kept GROUP BY sequence_id"
# Every sequence in every split; of split s the last 2 - s events are left out. A shorter one has nothing to hold out.
SEQUENCES_BY_LAST = """SELECT sequence_id, split,
    CAST(row_number() OVER (ORDER BY split, sequence_id) - 1 AS BIGINT) AS number
FROM (SELECT k.sequence_id, s.split FROM sequence_keys k
    CROSS JOIN (SELECT 0 AS split UNION ALL SELECT 1 AS split UNION ALL SELECT 2 AS split) s
    WHERE k.split_key >= 3) copies"""
TOO_SHORT = "SELECT COUNT(*) FROM sequence_keys WHERE split_key < 3"


def from_end(source: str, *, order: str) -> str:
    """Events with their place from the end of their sequence, the last being 1."""
    return f"""(SELECT *, row_number() OVER (PARTITION BY sequence_id ORDER BY {_reversed(order)}) AS from_end
FROM {source} a)"""


SPLIT_SIZES = "SELECT split, COUNT(*) FROM sequences GROUP BY split"


FIRST_PLACE = "SELECT MIN(place) FROM usable WHERE request <> '' AND place >= 0"


def lists(first: int) -> str:
    """Number of lists, and of those that lack a place from the first on, or have one twice."""
    each = "SELECT MIN(place) AS least, MAX(place) AS most, COUNT(*) AS shown, COUNT(DISTINCT place) AS places"
    broken = f"least <> {first} OR most <> {first} + shown - 1 OR places <> shown"
    return f"""SELECT COUNT(*), CAST(COALESCE(SUM(CASE WHEN {broken} THEN 1 ELSE 0 END), 0) AS BIGINT)
FROM ({each} FROM usable WHERE request <> '' AND place >= 0 GROUP BY sequence_id, request) lists"""


def numbered(source: str, *, fields: Sequence[str], sequences: int, last: bool = False, first_place: int = 0) -> str:
    """Kept events, each with its sequence's number: a join of two large tables, made once.

    Numbers that replace ids are as narrow as possible, since ids may be long texts. `last`: each event once for every
    split it is in. Places are stored as counted from 0.
    """
    number = f"CAST(s.number AS {'INT' if sequences < 2**31 else 'BIGINT'})"
    shifted = {"place": f"CAST(e.place - {first_place} AS SMALLINT) AS place"} if first_place else {}
    rest = "".join(f", {shifted.get(name, f'e.{name}')}" for name in fields if name != "sequence_id")
    within = " AND e.from_end > 2 - s.split" if last else ""
    joined = f"{source} e JOIN sequences s ON e.sequence_id = s.sequence_id{within}"
    return f"SELECT {number} AS sequence{rest} FROM {joined}"


def parts(sequences: int, events: int) -> list[tuple[int, int]]:
    """Ranges of sequence numbers to sort one after another: sorts that fit into memory cost less than one that spills.

    Few, since each reads all of `numbered`; rows that do not fit into memory spill as before.
    """
    count = max(1, min(MOST_PARTS, -(-events // EVENTS_PER_PART)))
    return list(pairwise(sequences * number // count for number in range(count + 1)))


def final(first: int, stop: int, *, fields: Sequence[str], order: str) -> str:
    """Events of sequences `first` to `stop`, in the order they are stored."""
    values = {name: f"e.{name}" for name in STORED} | {
        "filter": f"CASE WHEN e.filter = '' THEN {NO_FILTER} ELSE COALESCE(f.number, {UNKNOWN_FILTER}) END"
    }
    stored = "".join(f", {values[name]} AS {name}" for name in STORED if name in fields)
    within = ", ".join(f"e.{part}" for part in order.split(", "))
    filters = " LEFT JOIN item_filters f ON e.filter = f.filter" if "filter" in fields else ""
    return f"""SELECT e.sequence, i.index AS item, e.event{stored}
FROM numbered e JOIN items i ON e.item_id = i.item_id{filters}
WHERE e.sequence >= {first} AND e.sequence < {stop} ORDER BY e.sequence, {within}"""


# Sorted by name, so that both engines give a filter the same number.
ITEM_FILTERS = """SELECT filter, CAST(row_number() OVER (ORDER BY filter) - 1 AS INT) AS number, content, other
FROM (SELECT u.filter, MIN(u.filter_content) AS content, MAX(u.filter_content) AS other
    FROM usable u SEMI JOIN (SELECT DISTINCT filter FROM numbered) n ON u.filter = n.filter
    WHERE u.filter <> '' AND u.filter_content <> '' GROUP BY u.filter) stated"""
TWO_CONTENTS = "SELECT filter FROM item_filters WHERE content <> other ORDER BY filter LIMIT 1"
FILTER_SIZES = "SELECT COUNT(*), CAST(COALESCE(SUM(LENGTH(content)), 0) AS BIGINT) FROM item_filters"


def filter_contents(first: int, stop: int) -> str:
    """Names and contents of the filters from number `first` to `stop`, in order."""
    return f"""SELECT filter, content FROM item_filters
WHERE number >= {first} AND number < {stop} ORDER BY number"""


def sequence_ids(*, integer: bool) -> str:
    """Ids of all sequences, in order, as wide as they are stored."""
    return (
        f"SELECT CAST(sequence_id AS {'BIGINT' if integer else 'STRING'}) AS sequence_id FROM sequences ORDER BY number"
    )


def too_long(most: int) -> str:
    """Id and length of a sequence with more than `most` events."""
    return f"""SELECT s.sequence_id, n.events FROM sequences s
JOIN (SELECT sequence, COUNT(*) AS events FROM numbered GROUP BY sequence) n ON s.number = n.sequence
WHERE n.events > {most} ORDER BY n.events DESC, s.number LIMIT 1"""


FIRST_AND_LAST = "SELECT MIN(time), MAX(time) FROM numbered"
CATALOGUE = "SELECT item_id, count FROM items ORDER BY index"
