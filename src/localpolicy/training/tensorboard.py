"""Records of a run as TensorBoard events, in addition to metrics.jsonl, which stays the source.

Events cannot be taken back. So a resumed run removes the old ones and writes those of the lines it kept again: nothing
is there twice, and nothing from an abandoned future.
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
    """Raise ConfigError if the extra is missing."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("train.tensorboard: tensorboard is not installed: pip install 'localpolicy[track]'.")


@contextmanager
def event_writer(folder: Path, lines: Sequence[Line], *, wanted: bool) -> Iterator[Callable[[Line], None]]:
    """Context manager: yield a function that writes a line of metrics.jsonl as events; `lines` are written first."""
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
