"""Pages and comparisons that several tests look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from page_tree import Element, parse
from report_examples import usual

from localpolicy.judge.compare import compare
from localpolicy.judge.comparison import Comparison
from localpolicy.report.comparison import comparison_section, write_comparison
from localpolicy.report.contents import Contents, Section
from localpolicy.report.page import write_report
from localpolicy.runs.config import Config
from localpolicy.simulation import StoreConfig, StoreWorld, write_prepared
from localpolicy.training.train import train


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


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two μ̂ and one improvement, on one small store."""
    folder = tmp_path_factory.mktemp("compared")
    world = StoreWorld(StoreConfig(items=30, categories=3, mean_length=8), seed=0)
    write_prepared(world, folder / "data", sequences=600, seed=0)
    made = {}
    for name, seed in (("mle", 0), ("mle", 1), ("lpi_rl", 2)):
        settings = {"objective": {"name": name}, "model": {"width": 8}, "train": {"epochs": 2, "seed": seed}}
        out = folder / f"{name}-{seed}"
        made[out.name] = train(folder / "data", out=out, config=Config.parse(settings)).folder
    return made


@pytest.fixture(scope="session")
def comparison(runs: dict[str, Path]) -> Comparison:
    return compare(list(runs.values()), episodes=60)


@pytest.fixture(scope="session")
def section(comparison: Comparison) -> Section:
    return comparison_section(comparison)


@pytest.fixture
def compared_page(extra: None, comparison: Comparison, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Element:
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    write_comparison(comparison, tmp_path / "report.html")
    return parse(tmp_path / "report.html")
