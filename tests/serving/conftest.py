"""Runs and exports that several tests of the service share."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from fastapi.testclient import TestClient
from serve_runs import small_run
from shop_layer import make_layer

from localpolicy.runs.run import Run
from localpolicy.serving.app import make_app
from localpolicy.serving.config import ServeConfig
from localpolicy.serving.export import export
from localpolicy.serving.recommender import Recommender


@pytest.fixture(scope="session")
def run(small, tmp_path_factory) -> Run:
    """A run with a dial."""
    return small_run(small, tmp_path_factory.mktemp("serve") / "run", objective="sqn", epochs=3)


@pytest.fixture(scope="session")
def exported(run, tmp_path_factory) -> Recommender:
    """Export of the session's run."""
    return export(run.folder, out=tmp_path_factory.mktemp("serve") / "export")


@pytest.fixture(scope="session")
def layer(tmp_path_factory) -> Path:
    """A layer on a foreign ranker."""
    return make_layer(tmp_path_factory.mktemp("layer") / "run")


@pytest.fixture
def start(exported, tmp_path):
    """Starts a service and gives a client of it."""
    clients = []

    def make(*, token=None, **settings) -> TestClient:
        given = {"export": exported.folder, "log": str(tmp_path / "log.db"), **settings}
        client = TestClient(make_app(ServeConfig.parse(given), token=token))
        clients.append(client.__enter__())
        return client

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(start):
    return start()


BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
NUMBERS = count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A server of its own, on a socket in a folder; it refuses to run as root."""
    if not BINARIES or shutil.which("runuser") is None:
        pytest.skip("PostgreSQL's server is not installed")
    folder = Path(subprocess.run(["mktemp", "-d", "/tmp/lpi-pg-XXXX"], capture_output=True, text=True).stdout.strip())
    shutil.chown(folder, "postgres")
    run = ["runuser", "-u", "postgres", "--", "env", "LC_ALL=C"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(
        [*run, BINARIES[-1] / "initdb", "-D", folder / "data", "-A", "trust", "-E", "UTF8", "--no-sync"], **quiet
    )
    options = f"-k {folder} -c listen_addresses=''"
    control = [*run, BINARIES[-1] / "pg_ctl", "-D", folder / "data", "-w"]
    subprocess.run([*control, "-l", folder / "log", "-o", options, "start"], **quiet)
    try:
        yield f"postgresql://postgres@/postgres?host={folder}"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(folder)


@pytest.fixture
def postgres_log(postgres_server) -> str:
    """The address of an empty database on it."""
    name = f"log{next(NUMBERS)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_server.replace("/postgres?", f"/{name}?")


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request, tmp_path) -> str:
    """Where a log may lie, on either kind of database."""
    return str(tmp_path / "log.db") if request.param == "sqlite" else request.getfixturevalue("postgres_log")
