"""Imputed ratings against the normal equations of the whole matrix, formed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from measured import log, scores

from localpolicy.errors import DataError
from localpolicy.measure import imputation as module
from localpolicy.measure.imputation import (
    FactorisationConfig,
    Factors,
    Imputation,
    Ratings,
    concordance,
    factorise,
    imputation_at,
    impute,
    imputed_rewards,
    ratings_of,
    reward_of_rating,
)

CONFIG = FactorisationConfig(rank=3, weight=0.05, regularisation=0.2, sweeps=1, missing=2.0)


def some_ratings(users: int = 15, items: int = 11, share: float = 0.4, seed: int = 0) -> Ratings:
    rng = np.random.default_rng(seed)
    user, item = np.nonzero(rng.random((users, items)) < share)
    return Ratings(user, item, rng.integers(1, 6, len(user)).astype(float), users, items)


def formed(ratings: Ratings, config: FactorisationConfig) -> tuple[np.ndarray, np.ndarray]:
    """The whole matrix less m, and its weights."""
    values, weights = (
        np.zeros((ratings.n_users, ratings.n_items)),
        np.full((ratings.n_users, ratings.n_items), config.weight),
    )
    values[ratings.user, ratings.item] = ratings.value - config.missing
    weights[ratings.user, ratings.item] = 1.0
    return values, weights


def solved(values: np.ndarray, weights: np.ndarray, others: np.ndarray, ridge: float) -> np.ndarray:
    """Row by row: (Qᵀ W_u Q + λ Σ W_u I)⁻¹ Qᵀ W_u (R_u - m)."""
    rows = []
    for value, weight in zip(values, weights, strict=True):
        normal = others.T @ (weight[:, None] * others) + ridge * weight.sum() * np.eye(others.shape[1])
        rows.append(np.linalg.solve(normal, others.T @ (weight * value)))
    return np.array(rows)


@pytest.mark.parametrize(("gathered", "together"), [(1 << 16, 1024), (4, 2), (1, 1)])
def test_a_sweep_solves_the_whole_matrix(gathered, together, monkeypatch):
    monkeypatch.setattr(module, "GATHERED", gathered)
    monkeypatch.setattr(module, "SOLVED", together)
    ratings = some_ratings()
    values, weights = formed(ratings, CONFIG)
    generator = torch.Generator().manual_seed(CONFIG.seed)
    start = (torch.randn(ratings.n_items, 3, generator=generator) * 3**-0.5).double().numpy()
    users = solved(values, weights, start, CONFIG.regularisation)
    items = solved(values.T, weights.T, users, CONFIG.regularisation)
    found = factorise(ratings, CONFIG)
    np.testing.assert_allclose(found.users.numpy(), users, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(found.items.numpy(), items, rtol=2e-3, atol=2e-4)


def test_users_and_items_without_ratings_are_solved_too():
    ratings = some_ratings()._replace(n_users=18, n_items=14)
    found = factorise(ratings, CONFIG)
    assert torch.isfinite(found.users).all() and torch.isfinite(found.items).all()
    np.testing.assert_allclose(found.users[15:].numpy(), 0.0, atol=1e-6)


def objective(ratings: Ratings, config: FactorisationConfig) -> float:
    """Σ_ui W_ui ((R_ui - m - p_u·q_i)² + λ (|p_u|² + |q_i|²)) of the factors found."""
    (values, weights), found = formed(ratings, config), factorise(ratings, config)
    users, items = found.users.double().numpy(), found.items.double().numpy()
    penalty = (users**2).sum(1)[:, None] + (items**2).sum(1)[None, :]
    return float((weights * ((values - users @ items.T) ** 2 + config.regularisation * penalty)).sum())


def test_every_sweep_lowers_the_objective():
    ratings = some_ratings(40, 30)
    values = [objective(ratings, CONFIG.model_copy(update={"sweeps": n})) for n in range(1, 8)]
    assert all(later <= earlier + 1e-4 for earlier, later in pairwise(values))
    assert values[-1] < 0.99 * values[0]


def test_missing_ratings_pull_towards_their_value():
    """Everyone loves what they rated; where nothing is known the model says m, not 5."""
    ratings = some_ratings(60, 40, share=0.1)._replace()
    loved = ratings._replace(value=np.full(len(ratings.value), 5.0))
    config = FactorisationConfig(rank=4, weight=0.2, regularisation=0.01)
    found = factorise(loved, config)
    everywhere = (found.users @ found.items.T).numpy() + config.missing
    known = np.zeros((60, 40), bool)
    known[loved.user, loved.item] = True
    assert everywhere[known].mean() > everywhere[~known].mean() + 0.5
    assert everywhere[~known].mean() < 3.0


def test_a_planted_structure_is_found_again():
    rng = np.random.default_rng(1)
    left, right = rng.standard_normal((150, 2)), rng.standard_normal((80, 2))
    truth = 3 + left @ right.T
    user, item = np.nonzero(rng.random(truth.shape) < 0.3)
    held_out = rng.random(len(user)) < 0.1
    ratings = Ratings(user, item, truth[user, item], 150, 80)
    config = FactorisationConfig(rank=3, weight=0.001, regularisation=0.001, missing=3.0)
    found = factorise(ratings.only(~held_out), config)
    error = found.at(user[held_out], item[held_out]) - truth[user, item][held_out]
    assert np.sqrt((error**2).mean()) < 0.15 * truth.std()


def test_concordance_counts_pairs_in_the_right_order():
    test = Ratings(np.array([0, 0, 1, 1, 1]), np.arange(5), np.array([1.0, 5.0, 2.0, 2.0, 4.0]), 2, 5)
    assert concordance(test, np.array([0.1, 0.9, 5.0, 0.0, 0.3])) == 1.0
    assert concordance(test, np.array([0.9, 0.1, 5.0, 0.0, 0.3])) == 0.5
    assert concordance(test, np.zeros(5)) == 0.5


def test_reward_of_a_rating_is_the_papers_at_whole_stars():
    assert reward_of_rating(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 3.5])).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0, 0.75]


STARS = ["1", "2", "3", "4", "5"]


def test_ratings_of_all_splits_the_latest_counts(tmp_path):
    data = log(tmp_path / "data", [[0, 1, 0], [2]], events=[[0, 1, 4], [2]], items=3, names=STARS, split="test")
    found = ratings_of(data)
    # The same two sequences are in train and in test: users 0 and 1, then 2 and 3.
    entries = sorted(zip(found.user.tolist(), found.item.tolist(), found.value.tolist(), strict=True))
    assert entries == [(0, 0, 5.0), (0, 1, 2.0), (1, 2, 3.0), (2, 0, 5.0), (2, 1, 2.0), (3, 2, 3.0)]
    assert (found.n_users, found.n_items) == (4, 3)


def test_clicks_are_not_ratings(tmp_path):
    with pytest.raises(DataError, match="holds no ratings"):
        ratings_of(log(tmp_path / "data", [[0, 1]], items=2))


def test_imputed_reward_is_of_the_first_item_for_this_user(tmp_path):
    data = log(tmp_path / "data", [[0, 1], [1, 2]], events=[[4, 0], [0, 4]], items=3, names=STARS)
    users = torch.tensor([[0.0], [0.0], [1.0], [-1.0]])  # two of train, then two of test
    factors = Factors(users, torch.tensor([[1.0], [0.0], [2.0]]), missing=3.0)
    made = Imputation(factors, {}, FactorisationConfig(), data.digest)
    found = imputed_rewards(scores(sequence=[0, 1, 1], top=[2, 2, 0], events=STARS), made, data, "test")
    assert found == pytest.approx([1.0, 0.0, 0.0])
    other = Imputation(factors, {}, FactorisationConfig(), "another")
    with pytest.raises(DataError, match="belong to other data"):
        imputed_rewards(scores(sequence=[0], top=[0]), other, data, "test")


def test_an_imputation_is_written_once_and_read_again(tmp_path):
    rng = np.random.default_rng(0)
    sequences = [rng.permutation(8)[:5].tolist() for _ in range(30)]
    events = [rng.integers(0, 5, 5).tolist() for _ in range(30)]
    data = log(tmp_path / "data", sequences, events=events, items=8, names=STARS)
    first = imputation_at(tmp_path / "imputed", data)
    again = imputation_at(tmp_path / "imputed", data)
    assert torch.equal(first.factors.users, again.factors.users)
    assert again.quality == first.quality
    assert {"rmse", "item mean rmse", "order", "item mean order"} <= set(first.quality)
    assert torch.equal(impute(data).factors.items, first.factors.items)
