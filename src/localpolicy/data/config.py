"""Settings of `prepare`, kept in the manifest; files and engines are no part of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo

from localpolicy.data.rewards import pairs
from localpolicy.data.times import Notation
from localpolicy.errors import ConfigError, DataError
from localpolicy.limits import LARGEST_SEED
from localpolicy.runtime.files import read_yaml
from localpolicy.settings import AUTO, OrAuto, Settings

DAY_OR_MONTH = ("dayfirst", "monthfirst")
SPLIT_RULES = ("random", "time", "last")  # any other word is a column of the log


def _event(event: Any) -> str:
    """Return the event as a log's text: engines write truth values in small letters."""
    return str(event).lower() if isinstance(event, bool) or type(event).__name__ == "bool_" else str(event)


TEXT: dict[str, JsonValue] = {"read": "text"}  # on the command line: a validator makes of it what it is


class PrepareConfig(Settings):
    """Settings of how a log becomes sequences, and how these are split."""

    # What the columns mean.
    columns: dict[str, str] = Field(
        {}, description="our column = the log's column, as sequence_id=user_id,item_id=movie_id; or a YAML file of them"
    )
    item_columns: dict[str, str] = Field(
        {}, description="the item table's column = id, category, categories, number, vector, name or skip, where its "
        "kind is not to be guessed"
    )  # fmt: skip
    names: tuple[str, ...] = Field((), description="column names of text files without a header line: a,b,c")
    delimiter: str | None = Field(None, description="of text files (default: taken from their first line)")
    event: str | None = Field(None, description="the event of every row, for logs without an event column")
    rename: dict[str, str] = Field({}, description="the log's event = ours, as view=click,addtocart=purchase")
    drop_events: tuple[str, ...] = Field((), description="events whose rows are left out: a,b")
    rewards: str | None = Field(None, description="purchase=1.0,click=0.2 or, for ratings, >=4=1,>=3=0.5,*=0")
    list_reward: Literal["places", "sum", "repeated"] = Field(
        "places", description="what a list earned: each place its own reward; or one reward of the whole list, the sum "
        "of its rows' or the one that each row repeats"
    )  # fmt: skip
    reward_kind: Literal["auto", "opinion", "amount", "measure"] = Field(
        "auto", description="what a column of rewards holds: opinions of items; amounts of a sale (price, margin, "
        "quantity); or measures of what people did (seconds, shares); auto: by its name, then by its numbers"
    )  # fmt: skip
    kind: Literal["auto", "interactions", "impressions"] = Field(
        "auto", description="'interactions' reduces an impression log to what users did"
    )
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = Field("auto", description="of times that are numbers")
    dayfirst: bool = Field(False, description="dates such as 05/06/2024 begin with the day, where no row tells")
    monthfirst: bool = Field(False, description="… with the month")
    ids: Literal["auto", "integer", "text"] = Field("auto", description="how ids in text files are read")

    # What is kept.
    duplicates: Literal["keep", "exact", "consecutive"] = Field(
        "keep", description="drop rows equal in sequence, time, item and event, or repeats of the row before"
    )
    session_gap: float | None = Field(
        None, gt=0, description="a pause longer than this begins a new sequence: seconds, or 30m, 1h",
        json_schema_extra=TEXT,
    )  # fmt: skip
    min_clicks: int = Field(0, ge=0, description="fewest clicks of a sequence")
    min_events: int = Field(0, ge=0, description="fewest events of a sequence")
    min_item_events: int = Field(0, ge=0, description="fewest events of an item")
    min_item_sequences: int = Field(0, ge=0, description="fewest sequences that hold an item")
    iterate: bool = Field(False, description="repeat the filters until nothing changes")
    most_recent: int | None = Field(None, ge=1, description="keep only the last events of a sequence")
    since: str | None = Field(None, description="leave out what happened before this ISO time (UTC)")
    days: float | None = Field(
        None, gt=0, description="leave out what happened more than this many days before the last"
    )

    # How it is split.
    split: str = Field(
        "random", description="by sequence at random, by its last time (time), or last: of every sequence the last "
        "event is test, the one before it validation, the rest training (leave-one-out); or a column of the log that "
        "says train, validation or test"
    )  # fmt: skip
    validation: float = Field(0.1, gt=0, description="share of the sequences, or their number where >= 1")
    test: float = Field(0.1, gt=0, description="share of the sequences, or their number where >= 1")
    split_times: tuple[str, ...] = Field((), description="two ISO times at which validation and test begin")
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="of the random split")

    @field_validator("columns", "rename", "item_columns", mode="before")
    @classmethod
    def _pairs(cls, value: Any, info: ValidationInfo) -> Any:
        """Parse `a=b,c=d` into a mapping; columns may also be the path of a YAML file with one."""
        if not isinstance(value, str | Path):
            return value
        what, text = str(info.field_name), str(value)
        return _from_yaml(text) if what == "columns" and "=" not in text else pairs(text, what=what)

    @field_validator("names", "drop_events", "split_times", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Parse `a,b` into a list."""
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @property
    def dates(self) -> Notation | None:
        """Notation of dates with the year last, as the user states it, or None."""
        return "day first" if self.dayfirst else "month first" if self.monthfirst else None

    @property
    def split_column(self) -> str | None:
        """Column of the log that names each row's split, or None."""
        return None if self.split in SPLIT_RULES else self.split

    @field_validator("rewards", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        """Write a mapping of events to rewards as text."""
        if not isinstance(value, Mapping):
            return value
        return ",".join(f"{_event(event)}={reward}" for event, reward in value.items())

    @field_validator("rename", mode="before")
    @classmethod
    def _events(cls, value: Any) -> Any:
        """Turn events given as numbers or truth values into texts."""
        return {_event(event): ours for event, ours in value.items()} if isinstance(value, Mapping) else value

    @field_validator("since", mode="before")
    @classmethod
    def _since(cls, value: Any) -> Any:
        """Turn a time of Python, pandas or NumPy into a text."""
        return value.isoformat() if hasattr(value, "isoformat") else value

    @field_validator("split_times", mode="before")
    @classmethod
    def _iso(cls, value: Any) -> Any:
        """Turn times of Python, pandas and NumPy into texts."""
        if isinstance(value, str):
            return value
        given = value if isinstance(value, list | tuple) else (value,)
        return tuple(each.isoformat() if hasattr(each, "isoformat") else str(each) for each in given)

    @field_validator("session_gap", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        """Parse 30m, 1h and 45s into seconds."""
        if isinstance(value, str) and (match := re.fullmatch(r"([\d.]+)\s*([smhd]?)", value.strip())):
            return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
        return value

    @model_validator(mode="after")
    def _consistent(self) -> PrepareConfig:
        if self.dayfirst and self.monthfirst:
            raise ValueError("dayfirst and monthfirst: dates begin with one of them")
        if (self.validation < 1) != (self.test < 1):
            raise ValueError("validation and test must both be shares or both be numbers of sequences")
        if self.validation < 1 and self.validation + self.test >= 1:
            raise ValueError("validation and test together leave nothing to train on")
        if self.split_times and (self.split != "time" or len(self.split_times) != 2):
            raise ValueError("split_times takes two times, and needs split=time")
        return self


class PrepareOptions(Settings):
    """Options on where a log is prepared and with which engine, which do not change the result."""

    append: Path | None = Field(None, description="append the log to this earlier data set")
    new_only: bool = Field(False, description="with append: pass over files that the earlier data set holds already")
    like: Path | None = Field(None, description="take the item indices and settings of this earlier data set")
    items: Path | None = Field(
        None, description="what is known of the items (CSV or Parquet, one row per item): its items are part of the "
        "catalogue, and models learn from its columns"
    )  # fmt: skip
    keep_log: bool = Field(True, description="keep the log's rows; a later --append needs them")
    skip_bad_rows: bool = Field(False, description="skip rows that cannot be read, and count them")
    engine: Literal["duckdb", "spark"] = Field("duckdb", description="what reads and sorts")
    memory: str = Field("1GB", description="memory limit of DuckDB; beyond it, DuckDB spills to disk")
    threads: int | None = Field(None, ge=1, le=1024, description="threads of DuckDB (default: all cores)")
    scratch: Path | None = Field(None, description="folder for temporary files (default: next to --out)")
    spark_master: str | None = Field(None, description="Spark master, such as local[2] or spark://host:7077")
    force: bool = Field(False, description="replace the folder")


OF_GO = (
    "time_unit", "dayfirst", "monthfirst", "ids", "drop_events", "list_reward", "reward_kind", "duplicates",
    "session_gap", "min_events", "min_item_events", "most_recent", "since", "days", "split", "validation", "test",
    "memory", "scratch",
)  # fmt: skip


def go_fields() -> dict[str, FieldInfo]:
    """Settings of preparing that `go` takes in addition to its guesses: messages of `prepare` name these options."""
    known = {**PrepareConfig.model_fields, **PrepareOptions.model_fields}
    return {name: known[name] for name in OF_GO}


def _from_yaml(path: str) -> dict[str, str]:
    """Mapping from a YAML file of `ours: theirs` lines."""
    try:
        content = read_yaml(Path(path))
    except (OSError, DataError) as error:
        raise ConfigError(
            f"columns: expected our=theirs pairs or a YAML file of them, got '{path}' ({error})."
        ) from None
    if not isinstance(content, dict):
        raise ConfigError(f"columns: {path} holds no 'our: theirs' lines.")
    return {str(ours): str(theirs) for ours, theirs in content.items()}


class WindowConfig(Settings):
    """Settings of how sequences are cut, the group `data`."""

    length: OrAuto[int] = Field(
        AUTO, ge=1, description="longest context T: the most recent T actions of a sequence; auto: all of 99 sequences "
        "in 100, up to 200"
    )  # fmt: skip
    last: int | None = Field(None, ge=1, description="score only the last m actions of a window (default: all)")
