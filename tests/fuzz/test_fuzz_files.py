"""Files as strangers write them: dialects of text and types of Parquet, read again by Python's csv and by pyarrow."""

from __future__ import annotations

import csv
import decimal
import gzip
import io
import shutil
from datetime import date, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from by_hand import in_order, stored
from fuzzing import bounded_memory, examples, fair, lpi
from hypothesis import given
from hypothesis import strategies as st

from localpolicy.data.store import Prepared

EVENTS = ("click", "purchase")
START = 1_690_000_000
FEW = ("--threads", "1", "--validation", "3", "--test", "3")
NAMES = ("who", "what", "event", "when")
COLUMNS = "sequence_id=who,item_id=what,timestamp=when"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


# ---------------------------------------------------------------------- dialects of text

WORDS = st.text(alphabet="ab0,;|\t\"' .é\n#\\β-_", min_size=1, max_size=4)
IDS = st.one_of(
    WORDS, st.integers(-3, 30).map(str), st.sampled_from(["007", "7.0", "1e3", "NULL", "nan", "None", "NA"])
)
TEXTS = st.lists(st.tuples(IDS, IDS, st.sampled_from(EVENTS), st.integers(0, 10**6)), min_size=40, max_size=80)


def written(rows, *, mark, quoting, changes, end, other, blank):
    """The rows as text: from row `changes` on all is quoted or nothing more than needed, and lines end in `other`."""
    lines = []
    for number, row in enumerate(rows):
        later = number >= changes
        text = io.StringIO()
        how = csv.QUOTE_ALL if quoting and later else csv.QUOTE_MINIMAL
        csv.writer(text, delimiter=mark, lineterminator=other if later else end, quoting=how).writerow(row)
        lines.append(text.getvalue())
    if blank:
        lines.insert(max(1, changes), end)
    return "".join(lines)


@examples(0.15)
@given(
    rows=TEXTS, mark=st.sampled_from(",;\t|"), quoting=st.booleans(), changes=st.integers(1, 60),
    end=st.sampled_from(["\n", "\r\n"]), mixed=st.sampled_from([False, False, False, True]), blank=st.booleans(),
    bom=st.booleans(), cut=st.booleans(), packed=st.booleans(), order=st.permutations(range(4)),
    twin=st.sampled_from(["", "", "", "Who", "what", "WHAT", "_row"]),
)  # fmt: skip
def test_a_dialect_is_read_as_by_python_or_refused(
    place, rows, mark, quoting, changes, end, mixed, blank, bom, cut, packed, order, twin
):
    table = [[*NAMES], *([who, what, event, START + at] for who, what, event, at in rows)]
    table = [[row[at] for at in order] + ([twin if row is table[0] else "x"] if twin else []) for row in table]
    other = {"\n": "\r\n", "\r\n": "\n"}[end] if mixed else end
    text = written(table, mark=mark, quoting=quoting, changes=changes, end=end, other=other, blank=blank)
    text = text.removesuffix(other if len(table) > changes else end) if cut else text
    content = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    path = place / f"log.csv{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(content) if packed else content)
    with bounded_memory():
        outcome = lpi("prepare", "events", path, "--out", place / "new", "--ids", "text", "--columns", COLUMNS, *FEW)
    read = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark) if row]
    header, *lines = read
    places = [header.index(name) for name in NAMES]
    events = [tuple(line[at] for at in places) for line in lines]
    expected = in_order(
        ((who, what, event, 1000 * int(when)) for who, what, event, when in events), numbers=False, events=EVENTS
    )
    if fair(outcome):
        assert twin != "what", "one of two columns was taken"
        assert stored(Prepared(place / "new")) == expected, (content, outcome.stderr)
    else:
        known = len(expected) < 9 or twin == "what" or mixed
        assert known or "fewer than 3" in outcome.stderr, (outcome.stderr, content)
        if mixed and len(expected) >= 9 and twin != "what":
            assert str(path) in outcome.stderr, outcome.stderr


# ---------------------------------------------------------------------- types of Parquet


def texts(kind):
    return lambda values: pa.array([f"i{value}" for value in values], kind)


IDENTIFIERS = {
    "int8": lambda values: pa.array(values, pa.int8()), "int32": lambda values: pa.array(values, pa.int32()),
    "uint16": lambda values: pa.array(values, pa.uint16()), "uint64": lambda values: pa.array(values, pa.uint64()),
    "int64": lambda values: pa.array([value << 33 for value in values], pa.int64()),
    "double": lambda values: pa.array(values, pa.float64()), "float": lambda values: pa.array(values, pa.float32()),
    "decimal": lambda values: pa.array(map(decimal.Decimal, values), pa.decimal128(12, 2)),
    "wide decimal": lambda values: pa.array([decimal.Decimal(value << 33) for value in values], pa.decimal128(30, 0)),
    "text": texts(pa.string()), "large text": texts(pa.large_string()),
    "dictionary": lambda values: texts(pa.string())(values).dictionary_encode(),
    "number dictionary": lambda values: pa.array(values, pa.int64()).dictionary_encode(),
}  # fmt: skip
SCALES = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def times(seconds, kind, unit, odd):
    """A column of times, some of them with parts of a second where the unit has them, and their milliseconds."""
    scale = SCALES[unit]
    exact = [(START + second) * scale + odd * second % scale for second in seconds]
    ms = [1000 * value // scale for value in exact]
    if kind == "number":
        return pa.array(exact, pa.int64()), ms
    if kind == "date":
        days = [date(2024, 1, 1) + timedelta(days=second % 1000) for second in seconds]
        return pa.array(days), [86_400_000 * (day - date(1970, 1, 1)).days for day in days]
    zone = {"plain": None, "UTC": "UTC", "east": "Asia/Tokyo", "offset": "+05:30"}[kind]
    return pa.array(exact, pa.int64()).cast(pa.timestamp(unit, tz=zone)), ms


ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6), st.sampled_from(EVENTS), st.integers(0, 10**6)),
    min_size=60, max_size=120,
)  # fmt: skip


@examples(0.15)
@given(
    rows=ROWS, who=st.sampled_from(sorted(IDENTIFIERS)), what=st.sampled_from(sorted(IDENTIFIERS)),
    clock=st.sampled_from(["number", "date", "plain", "UTC", "east", "offset"]), unit=st.sampled_from(sorted(SCALES)),
    odd=st.sampled_from([0, 1, 12_345_677]), coded=st.booleans(), extra=st.booleans(),
    codec=st.sampled_from(["snappy", "zstd", "gzip", "none", "brotli", "lz4"]), group=st.sampled_from([7, 1000]),
    version=st.sampled_from(["1.0", "2.6"]),
)  # fmt: skip
def test_types_of_parquet_are_read_as_arrow_reads_them(
    place, rows, who, what, clock, unit, odd, coded, extra, codec, group, version
):
    persons, items, events, seconds = map(list, zip(*rows, strict=True))
    stamps, expected_times = times(seconds, clock, unit, odd)
    names = pa.array(events)
    columns = {"who": IDENTIFIERS[who](persons), "what": IDENTIFIERS[what](items),
               "event": names.dictionary_encode() if coded else names, "when": stamps}  # fmt: skip
    if extra:
        columns |= {"_row": names, "Who": names, "nested": pa.array([{"a": [1], "b": {"c": None}}] * len(rows))}
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    path = place / "log.parquet"
    if pa.types.is_timestamp(stamps.type) and stamps.type.unit == "ns":
        version = "2.6"  # the first that can hold them
    pq.write_table(pa.table(columns), path, compression=codec, row_group_size=group, version=version)
    with bounded_memory():
        outcome = lpi("prepare", "events", path, "--out", place / "new", "--columns", COLUMNS, *FEW)
    again = pq.read_table(path)
    read = zip(*(map(plain, again[name].to_pylist()) for name in NAMES[:3]), expected_times, strict=True)
    persons, numbers = (not isinstance(again[name][0].as_py(), str) for name in ("who", "what"))
    expected = in_order(read, numbers=numbers, persons=persons, events=EVENTS)
    told = fair(outcome)
    assert told == (len(expected) >= 9), (outcome.stderr, who, what, clock, unit)
    if told:
        assert stored(Prepared(place / "new")) == expected, (who, what, clock, unit, odd)


def plain(value) -> str:
    return value if isinstance(value, str) else str(int(value))
