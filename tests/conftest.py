"""What several test folders share."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator

import pytest
import torch
from small_logs import write_small

from localpolicy.data.store import Prepared

# Tensors are tiny here: a second thread would only wait for the first, in the processes that tests start too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

LOGGERS = ("localpolicy", "localpolicy.data.prepare", "localpolicy.training.epochs")


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Prepared:
    """A small impression log."""
    return write_small(tmp_path_factory.mktemp("data") / "small")


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    """A command line run in this process sets up its loggers: the next test finds them as they were, in any order."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(list(logger.handlers), logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """What a logger has said, by its name; step by step too, whatever a command line before this test has set."""
    for name in LOGGERS:
        caplog.set_level(logging.INFO, logger=name)
    return lambda name: [record.getMessage() for record in caplog.records if record.name == name]
