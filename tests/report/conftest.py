"""Pages that several tests style at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from report_examples import usual

from localpolicy.report.contents import Contents
from localpolicy.report.page import write_report


@pytest.fixture(scope="session")
def extra() -> None:
    """What draws the charts, or the test is skipped."""
    for module in ("altair", "vl_convert"):
        pytest.importorskip(module, reason="the extra `report` is not installed")


@pytest.fixture
def light(extra: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Contents], Path]:
    """Writes pages without the charting library, which takes seconds to bundle."""
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    return lambda contents: write_report(contents, tmp_path / "report.html")


@pytest.fixture(scope="session")
def usual_page(extra: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The usual report, whole."""
    return write_report(usual(), tmp_path_factory.mktemp("report") / "usual.html")
