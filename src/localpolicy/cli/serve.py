"""`lpi serve`: a run behind HTTP, with logged propensities."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def serve(
    run: Annotated[Path, typer.Argument(help="a finished run, or an export")],
    log: Annotated[
        str, typer.Option(envvar="LPI_LOG", help="the log to write: a SQLite file, or postgresql://…")
    ] = "lpi-log.db",
    host: Annotated[str, typer.Option(envvar="LPI_HOST", help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="LPI_PORT", help="port; 0 takes any free one")] = 8471,
    workers: Annotated[int, typer.Option(envvar="LPI_WORKERS", help="number of processes")] = 1,
    threads: Annotated[int, typer.Option(help="onnxruntime threads per worker")] = 1,
    floor: Annotated[
        float,
        typer.Option(envvar="LPI_FLOOR", help="exploration floor: weight ε of a uniform policy mixed into the draws"),
    ] = 0.0,
    empty_history: Annotated[str, typer.Option(help="what answers an empty history: fallback or model")] = "fallback",
    share: Annotated[float, typer.Option(help="share of requests that is logged")] = 1.0,
    window: Annotated[float, typer.Option(help="seconds after which feedback is late")] = 3600.0,
    queue: Annotated[int, typer.Option(help="requests that may wait, per worker")] = 256,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="change any other setting: key=value; may be repeated")
    ] = None,
    rollout: Annotated[
        Path | None,
        typer.Option(
            envvar="LPI_ROLLOUT", help="the rollout's file, to be followed once it is there (lpi rollout plan)"
        ),
    ] = None,
) -> None:
    """Serve lists over HTTP; each is logged, with exact propensities, before it is answered.

    The token that clients must send, if any, is read from the environment variable LPI_TOKEN.
    """
    from localpolicy.serving.service import serve as run_it

    run_it(
        run, log=log, host=host, port=port, workers=workers, threads=threads, floor=floor, empty_history=empty_history,
        share=share, changes=set_ or (), window=window, queue=queue, rollout=rollout,
        token=os.environ.get("LPI_TOKEN"),
    )  # fmt: skip
