"""`lpi prepare`: any log in, a data set of sequences out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.messages import PREPARING, show_steps
from localpolicy.cli.output import show
from localpolicy.limits import LARGEST_SEED

LOG = logging.getLogger(__name__)


def prepare(
    source: Annotated[
        str,
        typer.Argument(
            help="events, yoochoose, retailrocket, netflix, movielens or openbandit; or a reader: package.module:Name"
        ),
    ],
    paths: Annotated[list[Path], typer.Argument(help="files or folders, as downloaded", show_default=False)],
    out: Annotated[Path, typer.Option(help="folder of the data set to write", show_default=False)],
    columns: Annotated[
        str | None,
        typer.Option(help="column map, our name = log name: sequence_id=user_id,item_id=movie_id; or a YAML file"),
    ] = None,
    names: Annotated[str | None, typer.Option(help="column names of text files without a header: a,b,c")] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="delimiter of text files (default: guessed from the first line)")
    ] = None,
    event: Annotated[str | None, typer.Option(help="the event of every row, if the log has no event column")] = None,
    rename: Annotated[
        str | None, typer.Option(help="rename events, log name = our name: view=click,addtocart=purchase")
    ] = None,
    drop_events: Annotated[str | None, typer.Option(help="drop the rows of these events: a,b")] = None,
    rewards: Annotated[
        str | None,
        typer.Option(help="the reward of each event: purchase=1.0,click=0.2; of ratings: '>=4=1,>=3=0.5,*=0'"),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="interactions (reduces an impression log to what users did) or impressions")
    ] = None,
    time_unit: Annotated[str | None, typer.Option(help="unit of numeric timestamps: s, ms, us, ns")] = None,
    ids: Annotated[str | None, typer.Option(help="how ids in text files are read: integer or text")] = None,
    duplicates: Annotated[
        str | None, typer.Option(help="duplicates: keep them, or drop exact or consecutive ones")
    ] = None,
    session_gap: Annotated[
        str | None, typer.Option(help="a pause longer than this starts a new sequence: 30m, 1h")
    ] = None,
    min_clicks: Annotated[int | None, typer.Option(help="drop sequences with fewer clicks")] = None,
    min_events: Annotated[int | None, typer.Option(help="drop sequences with fewer events")] = None,
    min_item_events: Annotated[int | None, typer.Option(help="drop items with fewer events")] = None,
    min_item_sequences: Annotated[int | None, typer.Option(help="drop items that fewer sequences hold")] = None,
    iterate: Annotated[bool | None, typer.Option(help="repeat the filters until nothing changes")] = None,
    most_recent: Annotated[int | None, typer.Option(help="keep only the last events of a sequence")] = None,
    split: Annotated[str | None, typer.Option(help="how to split: random, time or last (leave-one-out)")] = None,
    validation: Annotated[float | None, typer.Option(help="share of the sequences, or their number")] = None,
    test: Annotated[float | None, typer.Option(help="share of the sequences, or their number")] = None,
    split_times: Annotated[
        str | None, typer.Option(help="when validation and test begin: 2014-08-01,2014-09-01")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=LARGEST_SEED, help="seed of the random split")] = None,
    append: Annotated[Path | None, typer.Option(help="append the log to this earlier data set")] = None,
    like: Annotated[
        Path | None, typer.Option(help="take the item indices and settings of this earlier data set")
    ] = None,
    keep_log: Annotated[bool, typer.Option(help="keep the log's rows; a later --append needs them")] = True,
    skip_bad_rows: Annotated[bool, typer.Option(help="skip rows that cannot be read, and count them")] = False,
    engine: Annotated[str, typer.Option(help="engine: duckdb or spark")] = "duckdb",
    memory: Annotated[str, typer.Option(help="memory limit of DuckDB; beyond it, DuckDB spills to disk")] = "1GB",
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="threads of DuckDB (default: all cores)")] = None,
    scratch: Annotated[Path | None, typer.Option(help="folder for temporary files (default: beside --out)")] = None,
    spark_master: Annotated[
        str | None, typer.Option(help="Spark master, such as local[2] or spark://host:7077")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace the folder if it is there")] = False,
    json: Annotated[Path | None, typer.Option(help="write the counts and the quality report as JSON")] = None,
) -> None:
    """Prepare a log: read, check, filter, index, split and store it; report on its quality."""
    from localpolicy.data.prepare import prepare as prepare_log
    from localpolicy.data.quality import measure
    from localpolicy.data.rewards import pairs
    from localpolicy.report.quality import quality_tables, write_page
    from localpolicy.runtime.files import write_json

    def listed(text: str | None) -> tuple[str, ...] | None:
        return None if text is None else tuple(part.strip() for part in text.split(","))

    settings: dict[str, Any] = {
        "columns": None if columns is None else _column_map(columns),
        "names": listed(names),
        "delimiter": delimiter,
        "event": event,
        "rename": None if rename is None else pairs(rename, what="rename"),
        "drop_events": listed(drop_events),
        "rewards": rewards,
        "kind": kind,
        "time_unit": time_unit,
        "ids": ids,
        "duplicates": duplicates,
        "session_gap": session_gap,
        "min_clicks": min_clicks,
        "min_events": min_events,
        "min_item_events": min_item_events,
        "min_item_sequences": min_item_sequences,
        "iterate": iterate,
        "most_recent": most_recent,
        "split": split,
        "validation": validation,
        "test": test,
        "split_times": listed(split_times),
        "seed": seed,
    }
    show_steps(PREPARING)
    data = prepare_log(
        *paths,
        source=source,
        out=out,
        engine=engine,
        append=append,
        like=like,
        keep_log=keep_log,
        skip_bad_rows=skip_bad_rows,
        force=force,
        memory=memory,
        threads=threads,
        scratch=scratch,
        spark_master=spark_master,
        **{name: value for name, value in settings.items() if value is not None},
    )
    quality = measure(data)
    page = write_page(data, quality)
    if json is not None:
        write_json(
            json, {"counts": data.manifest["counts"], "splits": data.manifest["splits"], "quality": quality.as_dict()}
        )
    for table in quality_tables(data, quality):
        show(table)
    LOG.info("prepared %s; plots are in %s", out, page)


def _column_map(text: str) -> dict[str, str]:
    """`a=b,c=d`, or the path of a YAML file with the same."""
    from localpolicy.data.rewards import pairs

    if "=" in text:
        return pairs(text, what="columns")
    from localpolicy.errors import ConfigError, DataError
    from localpolicy.runtime.files import read_yaml

    try:
        content = read_yaml(Path(text))
    except (OSError, DataError) as error:
        raise ConfigError(
            f"columns: expected our=theirs pairs or a YAML file of them, got '{text}' ({error})."
        ) from None
    if not isinstance(content, dict):
        raise ConfigError(f"columns: {text} holds no 'our: theirs' lines.")
    return {str(ours): str(theirs) for ours, theirs in content.items()}
