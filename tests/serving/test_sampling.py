"""Lists are drawn with the probabilities they claim: proven on catalogues small enough to enumerate."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from localpolicy.errors import ConfigError, DataError, RunError
from localpolicy.serving import sampling
from localpolicy.serving.sampling import conditional_propensities, plackett_luce, top, transforms

LOGITS = np.log(np.array([[0.4, 0.1, 0.25, 0.05, 0.2]]))


def exact(weights: np.ndarray, items: tuple[int, ...], floor: float = 0.0) -> list[float]:
    """(1 - ε) w(a) / Σ w(what is left) + ε / n, place by place, n items of a weight being left."""
    left, found = weights.copy(), []
    for item in items:
        found.append((1 - floor) * left[item] / left.sum() + floor / (left > 0).sum())
        left[item] = 0
    return found


def weights_without(gone: tuple[int, ...] = ()) -> np.ndarray:
    """Weights of the items, 0 for those that are filtered out."""
    weights = np.exp(LOGITS[0])
    weights[list(gone)] = 0
    return weights / weights.sum()


class Planned:
    """A generator that gives the uniform numbers it is given."""

    def __init__(self, *uniform: np.ndarray) -> None:
        self.uniform = list(uniform)

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        found = self.uniform.pop(0)
        assert found.shape == shape
        return found


@pytest.fixture(params=[2, 1024], ids=["three blocks", "one block"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(sampling, "BLOCK", request.param)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("gone", [(), (0, 3)], ids=["all", "filtered"])
@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_every_list_has_its_plackett_luce_probability(floor, gone):
    weights = weights_without(gone)
    allowed = [item for item in range(5) if item not in gone]
    total = 0.0
    for items in permutations(allowed, 3):
        found = conditional_propensities(
            LOGITS, np.array([items]), floor=floor, forbidden=[np.array(gone, np.int64)]
        )  # fmt: skip
        assert found[0] == pytest.approx(exact(weights, items, floor), rel=1e-6)
        total += found.prod()
    assert total == pytest.approx(1, rel=1e-6)


@pytest.mark.usefixtures("blocks")
def test_a_draw_inverts_the_distribution():
    """Over all results of four draws with replacement, each pair of places has the probability reported with it.

    Where all four are the same item, a fifth number draws among the others: it runs over a grid.
    """
    weights, grid = weights_without(), (np.arange(200) + 0.5) / 200
    middle = weights.cumsum() - weights / 2
    tried = np.array(list(product(range(5), repeat=4)))
    chance = np.repeat(weights[tried].prod(1), len(grid)) / len(grid)
    rows = np.repeat(tried, len(grid), axis=0)
    same = (rows == rows[:, :1]).all(1)
    fifth = np.tile(grid, len(tried))[same][:, None]
    planned = Planned(middle[rows], np.zeros_like(fifth), fifth)
    found = plackett_luce(np.repeat(LOGITS, len(rows), axis=0), 2, rng=planned)
    assert not planned.uniform
    for pair in permutations(range(5), 2):
        these = (found.indices == pair).all(1)
        assert chance[these].sum() == pytest.approx(np.prod(exact(weights, pair)), abs=weights.max() ** 4 / len(grid))
        for row in (these & same, these & ~same):
            assert found.propensity[row.argmax()] == pytest.approx(exact(weights, pair), rel=1e-6)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("gone", [(), (0, 3)], ids=["all", "filtered"])
def test_lists_drawn_with_a_floor_are_as_frequent_as_their_propensities_say(gone):
    """Of 100,000 lists of two each is as frequent as enumeration says, and each place has the stated probability."""
    count, weights, floor = 100_000, weights_without(gone), 0.3
    forbidden = [np.array(gone, np.int64)] * count
    found = plackett_luce(
        np.repeat(LOGITS, count, axis=0), 2, rng=np.random.default_rng(0), floor=floor, forbidden=forbidden
    )
    for pair in permutations([item for item in range(5) if item not in gone], 2):
        these, chance = (found.indices == pair).all(1), np.prod(exact(weights, pair, floor))
        assert these.mean() == pytest.approx(chance, abs=4 * np.sqrt(chance / count))
        np.testing.assert_allclose(found.propensity[these], [exact(weights, pair, floor)] * these.sum(), rtol=1e-5)


def test_a_floor_takes_its_share_of_every_place_and_no_more():
    """Of a peaked policy next to nothing is left after the first place: a floor in its weights would rule others."""
    logits = np.repeat([[20.0, 10.0, 5.0, *[-10.0] * 97]], 20_000, axis=0)
    found = plackett_luce(logits, 3, rng=np.random.default_rng(0), floor=0.05)
    assert (found.indices == [0, 1, 2]).mean(0) == pytest.approx([0.95, 0.95**2, 0.95**3], abs=0.01)


def test_a_draw_tells_what_an_audit_finds():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(7, 3000)) * 3
    gone = [rng.choice(3000, 5, replace=False) for _ in range(7)]
    found = plackett_luce(logits, 20, rng=rng, forbidden=gone, floor=0.05)
    again = conditional_propensities(logits, found.indices, forbidden=gone, floor=0.05)
    np.testing.assert_allclose(found.propensity, again, rtol=1e-12)
    for index, forbidden in zip(found.indices, gone, strict=True):
        assert len(set(index)) == 20 and not set(index) & set(forbidden)


def test_a_policy_that_repeats_itself_tells_what_an_audit_finds():
    """One item of nine tenths, then items that fall off: many tries repeat it, and little is left after it."""
    rng = np.random.default_rng(0)
    logits = np.where(np.arange(300) == 7, 12.0, -0.05 * np.arange(300)) + rng.normal(size=(40, 300))
    found = plackett_luce(logits, 6, rng=rng)
    np.testing.assert_allclose(found.propensity, conditional_propensities(logits, found.indices), rtol=1e-12)
    assert all(len(set(row)) == 6 for row in found.indices.tolist())


def test_little_that_is_left_is_summed_and_not_what_a_subtraction_leaves():
    logits = np.array([[25.0, 0.0, 0.0]])
    small = np.exp(-25.0)
    tried = np.array([0.5, 1 + small / 2, 1 + 3 * small / 2, 0.5, 0.5, 0.5]) / (1 + 2 * small)
    ignored = np.zeros((1, 1))
    found = plackett_luce(logits, 3, rng=Planned(tried[None], ignored, ignored, ignored))
    assert found.indices.tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(found.propensity[0, 1:], [1 / 2, 1], rtol=1e-12)


def test_a_peaked_policy_still_draws_whole_lists():
    """Weights from 1 to e^-800: float32 ends at e^-104."""
    logits = -200.0 * np.arange(5.0)[None]
    found = plackett_luce(logits, 5, rng=np.random.default_rng(0))
    assert found.indices.tolist() == [[0, 1, 2, 3, 4]]
    assert found.propensity == pytest.approx(1.0)


def test_uniform_numbers_next_to_one_draw_something_allowed():
    logits = np.array([[0.0, 1.0, 2.0]])
    edge = np.full((1, 2), np.nextafter(1, 0))
    for gone in ([], [2], [1, 2]):
        found = plackett_luce(logits, 1, rng=Planned(edge), forbidden=[np.array(gone, np.int64)])
        assert found.indices[0, 0] == 2 - len(gone)


def test_the_best_are_deterministic():
    logits = np.array([[0.1, 0.9, 0.5, 0.9, 0.2], [5.0, 1.0, 1.0, 1.0, 1.0]])
    found = top(logits, 3)
    assert found.indices.tolist() == [[1, 3, 2], [0, 1, 2]]
    assert (found.propensity == 1).all()
    assert top(logits, 2, forbidden=[np.array([1]), np.array([0, 2])]).indices.tolist() == [[3, 2], [1, 3]]
    assert top(logits, 5).indices[0].tolist() == [1, 3, 2, 4, 0]


@pytest.mark.parametrize("k", [0, -1, 4])
def test_lists_longer_than_what_is_left(k):
    gone = [np.array([0, 0, 1])]
    with pytest.raises(DataError, match="between 1 and 3"):
        top(LOGITS, k, forbidden=gone)
    with pytest.raises(DataError, match="between 1 and 3"):
        plackett_luce(LOGITS, k, rng=np.random.default_rng(0), forbidden=gone)


def test_a_bad_score_or_floor_is_refused():
    with pytest.raises(RunError, match="not a finite number"):
        top(np.array([[0.0, np.nan]]), 1)
    for floor in (-0.1, 1.1, 1e-9, float("nan")):
        with pytest.raises(ConfigError, match="exploration floor"):
            plackett_luce(LOGITS, 1, rng=np.random.default_rng(0), floor=floor)


@pytest.mark.parametrize("size", [5, 31, 32, 33, 64, 700, 1000])
@pytest.mark.parametrize("spread", [3, 10_000])
def test_the_best_are_those_of_a_whole_sort_equal_ones_by_index(size, spread):
    scores = np.random.default_rng(size).integers(0, spread, (4, size)).astype(np.float32)
    scores[0, ::2] = -np.inf  # what a filter has left out
    for k in (1, 2):
        gone = [np.flatnonzero(np.isneginf(row)) for row in scores]
        found = top(np.where(np.isneginf(scores), 0, scores), k, forbidden=gone).indices
        assert found.tolist() == np.argsort(-scores, axis=1, kind="stable")[:, :k].tolist()


class Share:
    """Stands for a generator whose numbers are all the same."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self, shape):
        return np.full(shape, self.number)


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_transforms_divide_the_unit_interval_by_the_law_of_each_place(floor):
    """Over every list of 3 out of 5: given the places above, the items' intervals tile (0, 1) by their probability."""
    logits = np.log(np.array([[0.9, 0.05, 0.04, 0.007, 0.003]]))
    lists = np.array(list(permutations(range(5), 3)))
    given = dict(logits=np.repeat(logits, len(lists), axis=0), index=lists, floor=floor)
    chance = conditional_propensities(given["logits"], lists, floor=floor)
    (low, best), (high, _) = (transforms(rng=Share(number), **given) for number in (0.0, 1.0))
    for order in (0, 1):
        assert high[order] - low[order] == pytest.approx(chance, rel=1e-5, abs=1e-7)
        for row, one in enumerate(lists):
            for place in range(3):
                rivals = (lists[:, :place] == one[:place]).all(1)
                starts = np.unique(low[order, rivals, place].round(6))
                ends = np.unique(high[order, rivals, place].round(6))
                assert starts[0] == 0 and ends[-1] == pytest.approx(1)
                assert starts[1:] == pytest.approx(ends[:-1], abs=2e-6)
                if order == 0:
                    left = [item for item in range(5) if item not in one[:place]]
                    assert best[row, place] == (one[place] == min(left)), (
                        "the order of the weights is that of the items"
                    )


def test_equal_items_share_their_interval():
    lists = np.array([[0], [1], [2]])
    logits = np.repeat(np.log([[0.25, 0.25, 0.5]]), 3, axis=0)
    (low, _), (high, _) = (transforms(logits, lists, rng=Share(number)) for number in (0.0, 1.0))
    assert low[0, :, 0] == pytest.approx([0.5, 0.5, 0]) and high[0, :, 0] == pytest.approx([1, 1, 0.5])
