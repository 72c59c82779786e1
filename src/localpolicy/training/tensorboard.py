"""The records of a run as TensorBoard events, beside metrics.jsonl, which stays the truth.

Events cannot be taken back. So a run that goes on throws the old ones away and writes those of the lines it kept
again: nothing is there twice, and nothing from a future that was lost.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localpolicy.errors import ConfigError

Line = dict[str, Any]


def require_tensorboard() -> None:
    """Raise where the extra is missing."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("train.tensorboard: tensorboard is not installed: pip install 'localpolicy[track]'.")


@contextmanager
def event_writer(folder: Path, lines: Sequence[Line], *, wanted: bool) -> Iterator[Callable[[Line], None]]:
    """Yields what takes a line of metrics.jsonl; `lines` are there already."""
    if not wanted:
        yield lambda line: None
        return
    from torch.utils.tensorboard import SummaryWriter

    shutil.rmtree(folder, ignore_errors=True)
    with SummaryWriter(str(folder)) as writer:

        def add(line: Line) -> None:
            for group in ("losses", "weights", "validation"):
                for name, value in line[group].items():
                    writer.add_scalar(f"{group}/{name.replace('@', '_at_')}", value, line["step"])
            writer.add_scalar("validation/selected_by", line["selected_by"], line["step"])
            writer.flush()

        for line in lines:
            add(line)
        yield add
