"""Runs the notebooks of docs/notebooks and writes their outputs into them: `make docs`.

    python tools/run_notebooks.py [--check] [NAME]...      --check: run them on small logs, two epochs; write nothing

Each runs in an empty folder of its own, on one thread. Times and paths are left out of the output: the pages show
results, not progress.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

SMALLER = (  # what makes a cell quick: whether it runs does not depend on it
    (r"(visitors, .* = )\d_000,", r"\g<1>600,"),
    (r'("epochs": |train\.epochs=)\d+', r"\g<1>2"),
)
FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def run(path: Path, *, write: bool) -> None:
    """Execute one notebook; an error of a cell is an error here."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    for cell in notebook.cells if not write else ():
        for pattern, smaller in SMALLER:
            cell.source = re.sub(pattern, smaller, cell.source)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.output_type not in ("stream", "display_data")]
    if write:
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


def main() -> None:
    """Run all of them."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--check", action="store_true")
    options.add_argument("names", nargs="*", metavar="NAME", help="of notebooks (default: all)")
    asked = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not asked.names or path.stem in asked.names:
            print(path.name, file=sys.stderr, flush=True)
            run(path, write=not asked.check)


if __name__ == "__main__":
    main()
