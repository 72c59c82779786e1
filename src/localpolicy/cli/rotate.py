"""`lpi rotate`: move older lists of the log to Parquet files, which `lpi prepare events` reads."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

LOG = logging.getLogger(__name__)


def rotate(
    log: Annotated[str, typer.Argument(help="the log: a SQLite file, or postgresql://…")],
    out: Annotated[Path, typer.Option(help="the folder of Parquet files")],
    window: Annotated[float, typer.Option(help="seconds after a list within which an answer counts")] = 3600.0,
    grace: Annotated[
        float, typer.Option(help="seconds to wait after the window for answers that arrive late", min=0)
    ] = 0.0,
    rewards: Annotated[str, typer.Option(help="the reward of each event")] = "purchase=1.0,click=0.2",
    default: Annotated[float, typer.Option(help="reward of a shown item without feedback")] = 0.0,
    aggregation: Annotated[
        str, typer.Option(help="how to combine several events on one item: max, sum, first or last")
    ] = "max",
    smallest_reward: Annotated[float | None, typer.Option(help="set aside answers with a smaller reward")] = None,
    largest_reward: Annotated[float | None, typer.Option(help="set aside answers with a larger reward")] = None,
    now: Annotated[bool, typer.Option("--now", help="also move lists whose window is still open")] = False,
    json: Annotated[Path | None, typer.Option(help="write the names of the files as JSON to this file")] = None,
) -> None:
    """Join lists with their feedback, and move them to Parquet once their window is over."""
    from localpolicy.runtime.files import write_json
    from localpolicy.serving.join import JoinConfig
    from localpolicy.serving.records import now as moment
    from localpolicy.serving.rotate import rotate as run_it

    config = JoinConfig.parse({
        "window": window, "rewards": rewards, "default": default, "aggregation": aggregation,
        "smallest_reward": smallest_reward, "largest_reward": largest_reward,
    })  # fmt: skip
    files = run_it(log, out=out, config=config, upto=moment() if now else None, grace=grace)
    if json is not None:
        write_json(json, {"files": [str(file) for file in files]})
    LOG.info("\n".join(f"wrote {file}" for file in files) or "nothing to rotate: no list's window is over")
