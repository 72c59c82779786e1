"""Messages of the package (logger `localpolicy`) on stderr: as lines for people, or with --log-json for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

# Loggers of step-by-step messages, hidden unless a verb asks for them (`show_steps`).
PREPARING = "localpolicy.data.prepare"
EPOCHS = "localpolicy.training.epochs"


class Stderr(logging.Handler):
    """Writes to the current `sys.stderr`."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        print(self.format(record), file=sys.stderr, flush=True)


class Line(logging.Formatter):
    """The message alone; a warning says that it is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        before = {logging.WARNING: "note: ", logging.ERROR: "lpi: "}.get(record.levelno, "")
        return f"{before}{record.getMessage()}"


class JsonLine(logging.Formatter):
    """One JSON object per message: time, level, logger, message."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        content = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json.dumps(content, ensure_ascii=False)


def show_messages(*, as_json: bool = False) -> None:
    """Show messages from here on."""
    logger = logging.getLogger("localpolicy")
    for shown in [handler for handler in logger.handlers if isinstance(handler, Stderr)]:
        logger.removeHandler(shown)
    handler = Stderr()
    handler.setFormatter(JsonLine() if as_json else Line())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    for name in (PREPARING, EPOCHS):
        logging.getLogger(name).setLevel(logging.WARNING)


def show_steps(name: str) -> None:
    """Show the step-by-step messages of this logger too."""
    logging.getLogger(name).setLevel(logging.INFO)
