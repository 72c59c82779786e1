"""Runs and exports that several tests of the service share."""

from __future__ import annotations

import pytest
from serve_runs import small_run

from localpolicy.runs.run import Run
from localpolicy.serving.export import export
from localpolicy.serving.recommender import Recommender


@pytest.fixture(scope="session")
def run(small, tmp_path_factory) -> Run:
    """A run with a dial."""
    return small_run(small, tmp_path_factory.mktemp("serve") / "run", objective="sqn", epochs=3)


@pytest.fixture(scope="session")
def exported(run, tmp_path_factory) -> Recommender:
    """Its export."""
    return export(run.folder, out=tmp_path_factory.mktemp("serve") / "export")
