"""`lpi prepare`: any log in, a data set of sequences out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.messages import PREPARING, show_steps
from localpolicy.cli.options import Fields, takes
from localpolicy.cli.output import show

LOG = logging.getLogger(__name__)


@takes(Fields("localpolicy.data.config:PrepareConfig"), Fields("localpolicy.data.config:PrepareOptions", "How"))
def prepare(
    source: Annotated[
        str,
        typer.Argument(
            help="events, yoochoose, retailrocket, netflix, movielens or openbandit; or a reader: package.module:Name"
        ),
    ],
    paths: Annotated[
        list[str],
        typer.Argument(
            help="files or folders, as downloaded; or s3://, gs://, delta+ and iceberg+ addresses", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder of the data set to write", show_default=False)],
    json: Annotated[Path | None, typer.Option(help="write the counts and the quality report as JSON")] = None,
    **settings: Any,
) -> None:
    """Prepare a log: read, check, filter, index, split and store it; report on its quality."""
    from localpolicy.data.prepare import prepare as prepare_log
    from localpolicy.data.quality import measure
    from localpolicy.data.store import QUALITY_PAGE, Prepared
    from localpolicy.errors import DataError
    from localpolicy.report.quality import quality_tables, write_page
    from localpolicy.runtime.files import write_json

    show_steps(PREPARING)
    try:
        data = prepare_log(*paths, source=source, out=out, **settings)
    except DataError:
        # A day that was appended by a call that was killed before it wrote the page: the page is still owed.
        if settings.get("append") and (out / "manifest.json").exists() and not (out / QUALITY_PAGE).exists():
            whole = Prepared(out)
            write_page(whole, measure(whole))
        raise
    quality = measure(data)
    page = write_page(data, quality)
    if json is not None:
        write_json(
            json, {"counts": data.manifest["counts"], "splits": data.manifest["splits"], "quality": quality.as_dict()}
        )
    for table in quality_tables(data, quality):
        show(table)
    LOG.info("prepared %s; plots are in %s", out, page)
