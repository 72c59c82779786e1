"""Matrix factorisation of the answered items by alternating least squares: ALS (Hu, Koren, Volinsky 2008).

New users are folded in: their factors follow from their answers, so nobody must have been there in training. log π(a|x)
= x·y_a / τ, and popularity's for a user without answers. τ maximises the likelihood of the last item of each validation
sequence; no rank depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from localpolicy.data.store import NO_ANSWER, Prepared
from localpolicy.logits import Head, LinearLogits, Logits
from localpolicy.model.counts import events_but, memberships, popularity, recent
from localpolicy.model.deployable import Origin
from localpolicy.model.fold_in import EXACT, fold_in
from localpolicy.types import Batch

WIDTH, ALPHA, RIDGE = 64, 10.0, 0.1
SWEEPS, STEPS = 10, 3  # sweeps of training; steps of conjugate gradients each, from where the last sweep ended
TEMPERATURES = 2.0 ** -np.arange(10)
LOOKED_AT = 1000  # validation sequences


@dataclass(frozen=True)
class Factors:
    """Policy by the inner products of item factors and the factors of a folded-in user."""

    factors: Tensor  # [V, K], float64
    share: Tensor  # [V] popularity, for users without answers
    codes: list[int]  # events that answer
    origin: Origin
    items: pa.Table
    temperature: float = 1.0
    alpha: float = ALPHA
    ridge: float = RIDGE
    depth: int = 50  # answers looked back at

    @classmethod
    def fit(cls, data: Prepared) -> Factors:
        """Alternate between the factors of people and of items, each exactly but for the steps."""
        codes = events_but(data, NO_ANSWER)
        taken = memberships(data, codes).tocsr()
        by_person, by_item = taken.tocoo(), taken.T.tocsr().tocoo()
        width = min(WIDTH, max(2, data.n_items // 8))  # as many as items would learn each by heart
        items = np.random.default_rng(0).normal(0, 0.1, (data.n_items, width))
        people = np.zeros((taken.shape[0], width))
        for _ in range(SWEEPS):
            people = fold_in(items, _gram(items, RIDGE), by_person.row, by_person.col, len(people), alpha=ALPHA,
                             steps=STEPS, start=people)  # fmt: skip
            items = fold_in(people, _gram(people, RIDGE), by_item.row, by_item.col, len(items), alpha=ALPHA,
                            steps=STEPS, start=items)  # fmt: skip
        origin = Origin("ALS", data.kind, data.events, None)
        temperature, factors = _temperature(items, data, codes), torch.from_numpy(items)
        return cls(factors, popularity(data), codes, origin, data.catalogue, temperature=temperature)

    def logits(self, batch: Batch) -> Logits:
        """x·y_a / τ of each position's user, or log popularity for a user without answers."""
        row, item, _ = (part.cpu().numpy() for part in recent(batch, self.codes, self.depth))
        items, rows = self.factors.numpy(), len(batch.scored)
        people = fold_in(items, _gram(items, self.ridge), row, item, rows, alpha=self.alpha, steps=EXACT)
        none = np.bincount(row, minlength=rows) == 0
        hidden = np.concatenate([people / self.temperature, none[:, None]], axis=1)
        weight = torch.cat([self.factors, self.share.double().log()[:, None]], dim=1)
        device = batch.row.device
        return LinearLogits(torch.from_numpy(hidden).float().to(device), Head(weight.float().to(device)))


def _gram(factors: np.ndarray, ridge: float) -> np.ndarray:
    """Σ y yᵀ + λI: [K, K]."""
    return np.asarray(factors.T @ factors + ridge * np.eye(factors.shape[1]))


def _temperature(items: np.ndarray, data: Prepared, codes: list[int]) -> float:
    """The τ of TEMPERATURES that maximises the likelihood of the last item of validation sequences."""
    split = data["validation"]
    rows: list[int] = []
    columns: list[int] = []
    last: list[int] = []
    for start, end in zip(split.offsets[:LOOKED_AT], split.offsets[1:], strict=False):
        taken = split.arrays["item"][start:end][np.isin(split.arrays["event"][start:end], codes)]
        if len(taken) > 1:
            rows += [len(last)] * (len(taken) - 1)
            columns += taken[:-1].tolist()
            last.append(int(taken[-1]))
    if not last:
        return 1.0
    people = fold_in(items, _gram(items, RIDGE), np.array(rows), np.array(columns), len(last), alpha=ALPHA, steps=EXACT)
    scores = torch.from_numpy(people @ items.T)
    taken_last = torch.tensor(last)[:, None]
    likely = [float(torch.log_softmax(scores / t, 1).gather(1, taken_last).mean()) for t in TEMPERATURES]
    return float(TEMPERATURES[int(np.argmax(likely))])
