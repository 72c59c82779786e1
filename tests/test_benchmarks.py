"""Every benchmark starts: a rename must break this test, not the evidence. mypy reads them too."""

from __future__ import annotations

import importlib
import itertools
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
TINY = {  # at a size that takes seconds
    "collapse.py": [["--loops", "3"]],
    "evaluate.py": [["--items", "60", "--positions", "200", "--threads", "1", "--way", "statistics"]],
    "factorisation.py": [["--ratings", "200", "--users", "60", "--items", "20", "--rank", "3", "--way", "ours"]],
    "foreign_ranker.py": [["null", "--worlds", "1", "--requests", "400"]],
    "improvement.py": [],
    "month_table.py": [["--first", "3", "--seeds", "1", "--days", "6", "--only", "places"]],
    "prepare.py": [],
    "promises.py": [["--repeats", "4", "--only", "single", "rare", "far", "intent", "drift", "below", "luce4"]],
    "processes.py": [["checkpoint", "--rounds", "1", "--millions", "1"]],
    "rollout_rates.py": [["--repeats", "1", "--worlds", "lists", "--truths", "-0.6", "--margin", "0.5"]],
    "scale_model.py": [[]],
    "serving.py": [["lists", "--items", "300", "--repeats", "2"], ["export", "--items", "300", "--repeats", "2"]],
    "estimated_gains.py": [["--worlds", "3", "--only", "single", "deviations", "views"]],
    "training.py": [["overhead", "--sequences", "512", "--items", "300"], ["million", "--items", "300"]],
}
STARTED = {  # `--help`: what they import and parse; the whole takes too long here, or needs what CI has not
    "choices.py": "trains in several worlds",
    "credit.py": "trains in many worlds",
    "critic_signal.py": "trains many critics on a log that is not in the repository",
    "observed_dial.py": "reads the runs of a table",
    "real_table3.py": "trains hundreds of runs on logs that are not in the repository",
    "defaults.py": "trains many runs",
    "constants.py": "trains in several worlds",
    "far_sighted.py": "trains in several worlds",
    "forms.py": "trains in many shops",
    "features.py": "reads logs that are not in the repository",
    "figures.py": "trains in several shops",
    "first_hour.py": "trains on many logs",
    "reference_fit.py": "trains on many logs",
    "real_logs.py": "reads logs that are not in the repository",
    "frontier.py": "plays the demo",
    "list_rounds.py": "trains for several rounds",
    "lists.py": "measures peers that are not installed here",
    "loops.py": "reads the results of loops",
    "promises_serving.py": "repeats rollouts and audits many times",
    "open_bandit.py": "reads a log that is not in the repository",
    "public.py": "reads logs that are not in the repository",
    "time_to_quality.py": "reads a log that is not in the repository",
    "sequence_models.py": "reads a log that is not in the repository",
    "daily_default.py": "trains in many shops",
    "month.py": "played by tests/test_month.py",
    "service_week.py": "plays a service for minutes",
    "worlds.py": "trains in forty worlds",
    **{
        name: "needs a GPU"
        for name in (
            "kernel_tiles.py",
            "gpu_epoch.py",
            "gpu_kernels.py",
            "gpu_libraries.py",
            "gpu_lists.py",
            "gpu_peers.py",
        )
    },
    **{name: "needs a GPU" for name in ("gpu_memory.py", "gpu_runs.py", "gpu_step.py", "gpu_table3.py")},
}
# No command of their own, or none that takes arguments.
IMPORTED = {"collect.py", "ceilings.py", "luce_lists.py", "shelves.py", "promises_logs.py", "service_ledger.py"}


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """Benchmarks take two threads and two cores: the tests after them in this process sum in one thread's order."""
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    yield
    torch.set_num_threads(threads)
    os.sched_setaffinity(0, cores)


@pytest.mark.parametrize("places", [1, 3, 6])
def test_lists_with_one_click_have_their_exact_value(places, monkeypatch):
    """Every list of some of seven items is enumerated; and a list is clicked at most once."""
    monkeypatch.syspath_prepend(str(FOLDER))
    world_of, rng = importlib.import_module("luce_lists").LuceWorld, np.random.default_rng(3)
    world = world_of.drawn(rng, places=places, total=1.5, spread=1.0, contexts=2, items=7)
    lists, expected = np.array(list(itertools.permutations(range(7), places))), []
    for context in range(2):
        at = np.full(len(lists), context)
        total = world.pull[at[:, None], lists].sum(1)
        expected.append(world.chances(world.mu, at, lists).prod(1) @ (total / (1 + total)))
    assert world.value(world.mu) == pytest.approx(np.mean(expected), abs=2e-5)
    assert world.ratios(world.mu, at, lists) == pytest.approx(1.0)
    context, shown, clicks = world.log(20_000, rng)
    assert set(clicks.sum(1)) == {0.0, 1.0} and len(set(shown[0])) == places
    assert clicks.sum(1).mean() == pytest.approx(np.mean(expected), abs=4 * (0.25 / 20_000) ** 0.5)
    pull = world.pull[context[:, None], shown]
    assert clicks.mean(0) == pytest.approx((pull / (1 + pull.sum(1, keepdims=True))).mean(0), abs=0.015)


def test_every_benchmark_is_named_here():
    assert set(SCRIPTS) == {*TINY, *STARTED, *IMPORTED}


def play(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if "triton" in (FOLDER / name).read_text():
        pytest.importorskip("triton")
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.syspath_prepend(str(FOLDER))
    runpy.run_path(str(FOLDER / name), run_name="smoke" if name in IMPORTED else "__main__")


@pytest.mark.parametrize(
    ("name", "arguments"), [(name, words) for name, each in TINY.items() for words in each], ids=lambda part: str(part)
)
def test_it_measures_something_small(name, arguments, monkeypatch, capsys):
    play(name, arguments, monkeypatch)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", sorted({*STARTED, *TINY, *IMPORTED} - {"scale_model.py"}))
def test_it_starts(name, monkeypatch, capsys):
    if name in IMPORTED:
        play(name, [], monkeypatch)
        return
    with pytest.raises(SystemExit) as ended:
        play(name, ["--help"], monkeypatch)
    assert not ended.value.code
