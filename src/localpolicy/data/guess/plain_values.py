"""Values as people and programs write them, and how `prepare` reads the same: numbers, stars, days, weeks.

Each kind is SQL of a column's texts. A column is of a kind if all of its values are, and some of the first show it.
"""

from __future__ import annotations

from localpolicy.data.engines.duckdb import DuckDB

LOOKED_AT = 1000  # first rows, which decide the columns to examine
SIGN = "[$€£¥₹₽%]|EUR|USD|GBP|CHF"
PLAIN = "-?[0-9]+([.][0-9]+)?"
COMMAS = "-?([0-9]{1,3}([.][0-9]{3})+|[0-9]+)(,[0-9]+)?"  # 4,5 and 1.037,00
POINTS = "-?([0-9]{1,3}(,[0-9]{3})+|[0-9]+)([.][0-9]+)?"  # 1,037.00
BOTH = ".*,[0-9]{3}[.,].*"  # what shows that a comma parts thousands
# 870, 1,037 and 12,400, but not 0,250 or 1037: where enough values differ, no decimals look like this by chance.
GROUPED, ENOUGH_GROUPED = "-?([1-9][0-9]{0,2}(,[0-9]{3})+|[0-9]{1,3})", 3
STARS = "[★⭐☆]*½?"
OF_SO_MANY = (
    "(?i)([0-9]+(?:[.,][0-9]+)?) ?(?:stars?|sterne?n?|étoiles?|estrellas?|stelle|punkte?|points?|(?:/|out of) ?[0-9]+)"
)
MONTHS = "(?i).*(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec).*"
DAYS = ("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%a, %d %b %Y", "%a %b %d %Y")
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", ", %I:%M %p", " %I:%M:%S %p", " %H:%M:%S GMT", " %H:%M:%S UTC")
WEEK = "[0-9]{4}-?W[0-9]{2}"
MARK = "[xX✓✔*]"  # of what was chosen, where other rows are empty


def plainly(engine: DuckDB, column: str) -> tuple[str, str] | None:
    """SQL of the column's values as `prepare` reads them, and what they are; None if they are plain, or of no kind."""
    text = f"trim(CAST({column} AS VARCHAR))"
    if _shown(engine, column, text, f".*({SIGN}).*"):
        bare = f"trim(regexp_replace(CAST({column} AS VARCHAR), '{SIGN}', '', 'g'))"
        number = _number(engine, column, bare) or (bare if _all(engine, column, bare, PLAIN) else None)
        if number and _all(engine, column, text, f"-?({SIGN}).*|.*({SIGN})"):
            return number, "numbers with signs such as $ or %, read without them"
    if number := _number(engine, column, text):
        return (
            number,
            f"numbers with {'decimal commas' if 'chr(46)' in number else 'commas at thousands'}, read as such",
        )
    if _shown(engine, column, text, ".*[★⭐½].*") and _all(engine, column, text, STARS):
        return (
            f"CAST({_count(text, '★')} + {_count(text, '⭐')} + {_count(text, '½')} / 2 AS VARCHAR)",
            "stars, counted",
        )
    if _shown(engine, column, text, OF_SO_MANY) and _all(engine, column, text, OF_SO_MANY):
        given = f"replace(regexp_extract({text}, '{OF_SO_MANY}', 1), ',', '.')"
        if (
            int(engine.rows(f"SELECT COUNT(DISTINCT regexp_extract({text}, '(/|of) ?([0-9]+)$', 2)) FROM log")[0][0])
            == 1
        ):
            return given, "numbers with words, such as 4 stars or 4/5, read without them"
    if _shown(engine, column, text, MARK) and _all(engine, column, text, MARK):
        return (
            f"CASE WHEN {text} <> '' THEN '1' ELSE '0' END",
            "marks such as x, read as 1, and as 0 where there is none",
        )
    if _shown(engine, column, text, MONTHS):
        formats = ", ".join(f"'{day}{clock}'" for day in DAYS for clock in CLOCKS)
        when = f"try_strptime({text}, [{formats}])"
        if _none(engine, column, text, f"{when} IS NULL"):
            return f"strftime({when}, '%Y-%m-%d %H:%M:%S')", "days with the names of months, read as such"
    if _shown(engine, column, text, WEEK) and _all(engine, column, text, WEEK):
        monday = f"try_strptime(replace({text}, '-', '') || '1', '%GW%V%u')"
        if _none(engine, column, text, f"{monday} IS NULL"):
            return f"strftime({monday}, '%Y-%m-%d')", "weeks, each read as its Monday"
    return None


def _number(engine: DuckDB, column: str, text: str) -> str | None:
    """SQL of numbers with commas: at decimals, unless some value shows that they part thousands."""
    if not _shown(engine, column, text, ".*,.*"):
        return None
    thousands = _all(engine, column, text, POINTS) and _some(engine, text, BOTH)
    if thousands or (_all(engine, column, text, GROUPED) and _with_commas(engine, text) >= ENOUGH_GROUPED):
        return f"replace({text}, ',', '')"
    if _all(engine, column, text, COMMAS):
        return f"replace(replace({text}, chr(46), ''), ',', chr(46))"
    return None


def _with_commas(engine: DuckDB, text: str) -> int:
    """Number of different values with a comma."""
    return int(engine.rows(f"SELECT COUNT(DISTINCT {text}) FROM log WHERE {text} LIKE '%,%'")[0][0])


def _count(text: str, sign: str) -> str:
    return f"(length({text}) - length(replace({text}, '{sign}', '')))"


def _shown(engine: DuckDB, column: str, text: str, pattern: str) -> bool:
    """Whether one of the first values matches a regular expression."""
    first = f"(SELECT {column} FROM log LIMIT {LOOKED_AT})"
    return bool(engine.rows(f"SELECT 1 FROM {first} WHERE regexp_full_match({text}, '{pattern}') LIMIT 1"))


def _some(engine: DuckDB, text: str, pattern: str) -> bool:
    return bool(engine.rows(f"SELECT 1 FROM log WHERE regexp_full_match({text}, '{pattern}') LIMIT 1"))


def _all(engine: DuckDB, column: str, text: str, pattern: str) -> bool:
    return _none(engine, column, text, f"NOT regexp_full_match({text}, '{pattern}')")


def _none(engine: DuckDB, column: str, text: str, condition: str) -> bool:
    """Whether no value but empty ones meets the condition."""
    stated = f"{column} IS NOT NULL AND {text} <> ''"
    return not engine.rows(f"SELECT 1 FROM log WHERE {stated} AND ({condition}) LIMIT 1")
