"""A divergence is reported against named references, next to the floor between them."""

from __future__ import annotations

import numpy as np
import pytest
from measured import evaluate_policy, log, policy, random_sequences, scores

from localpolicy.data.batches import WindowConfig
from localpolicy.measure.divergence import Reference, divergence, noise_floor, times_floor
from localpolicy.measure.estimate import Estimate, mean_estimate, mean_of_estimates


def test_the_mean_is_over_references_and_the_floor_over_pairs():
    made = scores(
        sequence=[0, 0, 1],
        js={"a": np.array([0.1, 0.2, 0.3]), "b": np.array([0.3, 0.2, 0.1]), "a|b": np.array([0.05, 0.05, 0.2])},
        kl={"a": np.array([1.0, 2.0, 3.0]), "b": np.array([3.0, 2.0, 4.0]), "a|b": np.array([0.1, 0.1, 0.1])},
    )
    found = divergence(made, [Reference("a", "mle", 0), Reference("b", "mle", 1)])
    assert found is not None and found.floor_js is not None
    assert found.js.overall.mean == pytest.approx(0.2)
    assert found.js.by_name["a"].mean == pytest.approx(0.2)
    assert found.kl.overall.mean == pytest.approx(2.5)
    assert found.floor_js.overall.mean == pytest.approx(0.1)
    assert found.above_floor == pytest.approx(2.0)
    said = found.to_dict()
    assert [each["name"] for each in said["reference"]] == ["a", "b"]
    assert said["floor"]["js"]["mean"] == pytest.approx(0.1)
    assert said["js"]["quantiles"]["q50"] == pytest.approx(0.2)
    assert [said["floor"][name]["quantiles"]["q50"] for name in ("js", "kl")] == pytest.approx([0.05, 0.1])


def test_the_noise_floor_is_the_mean_over_pairs_with_an_error_that_pairs_do_not_shrink():
    pairs = [Estimate(0.1, 0.01, 50, 0.005), Estimate(0.4, 0.03, 50, 0.015)]
    assert tuple(noise_floor(pairs)) == pytest.approx(((0.1 + 0.4) / 2, 0.03, 50, 0.015))
    assert noise_floor(pairs) == mean_of_estimates(pairs), "as a mean over seeds, over the same positions too"
    assert noise_floor([]) is None
    assert times_floor(Estimate(0.5, 0, 50, 0), noise_floor(pairs)) == pytest.approx(0.5 / 0.25)
    assert times_floor(None, pairs[0]) is times_floor(pairs[0], None) is None
    # Never below the error of the mean over pairs at each position.
    rng = np.random.default_rng(0)
    one, two = rng.random(40), rng.random(40)
    both, alone = mean_estimate((one + two) / 2, np.arange(40)), [mean_estimate(js, np.arange(40)) for js in (one, two)]
    assert noise_floor(alone).mean == pytest.approx(both.mean) and noise_floor(alone).se > both.se


def test_references_of_other_objectives_make_no_floor():
    made = scores(
        sequence=[0, 1],
        js={"a": np.zeros(2), "b": np.zeros(2), "a|b": np.ones(2)},
        kl={"a": np.zeros(2), "b": np.zeros(2), "a|b": np.ones(2)},
    )
    found = divergence(made, [Reference("a", "mle", 0), Reference("b", "lpi_rl", 0)])
    assert found is not None and found.floor_js is None and found.above_floor is None
    assert found.to_dict()["floor"] is None


def test_references_trained_in_other_ways_make_no_floor_either():
    made = scores(sequence=[0, 1], js={name: np.ones(2) for name in ("a", "b", "a|b")},
                  kl={name: np.ones(2) for name in ("a", "b", "a|b")})  # fmt: skip
    small, wide = Reference("a", "mle", 0, family="small"), Reference("b", "mle", 1, family="wide")
    found = divergence(made, [small, wide])
    assert found is not None and found.floor_js is None


def test_without_a_reference_there_is_no_divergence():
    assert divergence(scores(sequence=[0]), []) is None


def test_evaluation_measures_each_segment_and_each_pair(tmp_path):
    data = log(tmp_path / "data", random_sequences(25, 9), items=9)
    made, one, two = (policy(data, seed=seed) for seed in (0, 1, 2))
    found = evaluate_policy(
        made, data, name="new", window=WindowConfig(), references={"one": one, "two": two, "self": made},
        described=[Reference(name, "mle", seed) for seed, name in enumerate(("one", "two", "self"))],
    )  # fmt: skip
    assert found.divergence is not None and found.divergence.floor_js is not None
    by_name = found.divergence.js.by_name
    assert by_name["self"].mean == pytest.approx(0.0, abs=1e-6)
    assert by_name["one"].mean > 0.01
    assert found.divergence.floor_js.by_name["one|self"].mean == pytest.approx(by_name["one"].mean, rel=1e-5)
    weights = {name: part.n for name, part in found.divergence.segments.items() if name.startswith("history")}
    assert sum(weights.values()) == len(found.scores)
