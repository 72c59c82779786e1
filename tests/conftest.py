"""Fixtures and settings that several test folders share."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

# Before torch, which reads it once: threads that wait for each other sleep, where several processes share two cores.
import localpolicy  # noqa: F401 # isort: skip
import pytest
import torch
from small_logs import TINY, write_small

from localpolicy.data.store import Prepared
from localpolicy.runs.config import Config

# Tensors are tiny here: a second thread would only wait for the first, in the processes that tests start too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

LOGGERS = ("localpolicy", "localpolicy.data.prepare", "localpolicy.training.epochs")
AS_IMPORTED = {name: (list(logging.getLogger(name).handlers), logging.getLogger(name).level) for name in LOGGERS}


# Files that take long, the longest first. Last, one of them would keep a single process at work while others wait.
LONG = (
    "test_ranks.py", "test_kills.py", "test_documents.py", "test_spark.py", "test_notebooks.py", "test_month.py",
    "test_sweeps.py", "test_live.py", "test_rotation.py", "test_fuzz.py", "test_closed.py", "test_jobs.py",
    "test_daily.py", "test_http.py", "test_loop_rounds.py", "test_go.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Prepared:
    """A small impression log."""
    return write_small(tmp_path_factory.mktemp("data") / "small")


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory) -> Path:
    """The folder of a data set with ids, and of two runs of it."""
    from localpolicy.training.train import train  # not for tests that need no trainer

    folder = tmp_path_factory.mktemp("two")
    made = write_small(folder / "data", propensity=False, ids=True)
    for seed in (0, 1):
        config = Config.parse({**TINY, "train": {**TINY["train"], "seed": seed}})
        train(made, "mle", out=folder / f"mle{seed}", config=config)
    return folder


@pytest.fixture(autouse=True, scope="session")
def cache_of_its_own(tmp_path_factory) -> Iterator[None]:
    """Keep measurements of the machine's speed for these tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def loggers_as_imported() -> Iterator[None]:
    """A command line run in this process sets up its loggers, in fixtures of a module too: no test finds them so."""
    _reset_loggers()
    yield
    _reset_loggers()


def _reset_loggers() -> None:
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:], level = AS_IMPORTED[name]
        logger.setLevel(level)


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """Messages of a logger by its name, step by step too, whatever an earlier command line has set."""
    for name in LOGGERS:
        caplog.set_level(logging.INFO, logger=name)
    return lambda name: [record.getMessage() for record in caplog.records if record.name == name]
