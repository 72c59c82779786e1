"""What the demo leaves behind can be used: its runs find their data, though all was made under another name."""

from __future__ import annotations

from dataclasses import replace

from localpolicy.measure.opening import open_data
from localpolicy.report import demo as module
from localpolicy.runs.run import Run


def test_runs_of_the_demo_find_their_data(tmp_path, monkeypatch):
    # The logging policy, the reference, and an lpi run, which the verdict wants.
    settings = {"data": {"length": 4}, "model": {"width": 8}, "train": {"epochs": 1}}
    scenario = module.SCENARIOS["bandit"]
    few = replace(scenario, sequences=600, items=20, settings=settings, arms=(*scenario.arms[:2], scenario.arms[-1]))
    monkeypatch.setattr(module, "SCENARIOS", {"bandit": few})
    monkeypatch.setattr("localpolicy.runtime.processes.cores", lambda: 1)
    module.demo(out=tmp_path / "demo")
    for arm in few.arms:
        data = open_data(Run(tmp_path / "demo" / "bandit" / "runs" / arm.folder))
        assert data.path == tmp_path / "demo" / "bandit" / "data"
