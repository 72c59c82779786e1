"""The page itself (see `contents` for what it says): verdict first, then each comparison and what it rests on."""

from __future__ import annotations

from pathlib import Path

from localpolicy.errors import ConfigError
from localpolicy.report.contents import Contents
from localpolicy.runtime.files import whole_file

EXTRA = ("altair", "vl_convert")  # modules of the extra `report`


def write_report(contents: Contents, path: Path | str) -> Path:
    """Draw `contents` as one self-contained HTML file. Equal contents give equal bytes."""
    try:
        from localpolicy.report.html.assemble import page
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in EXTRA:
            raise
        raise ConfigError(f"A report needs {error.name}: pip install 'localpolicy[report]'.") from None
    path = Path(path)
    with whole_file(path) as partial:
        partial.write_text(page(contents), encoding="utf-8", newline="\n")
    return path
