"""Ridge regression of a user's answers on the items' factors, with NumPy alone, since a service uses it too.

x = argmin Σ_a c_a (p_a - x·y_a)² + λ|x|²,  p_a = 1 and c_a = 1 + α for answered items, else p_a = 0 and c_a = 1

(Hu, Koren, Volinsky 2008). With G = Σ_a y_a y_aᵀ the system (G + λI + α Σ_taken y yᵀ) x = (1 + α) Σ_taken y is solved
for many rows at once by conjugate gradients (Takács, Pilászy, Tikk 2011), and never written out.
"""

from __future__ import annotations

import numpy as np

EXACT = 24  # steps for a new user: only rounding errors are left then
PAIRS = 1 << 17  # pairs of row and item in one block


def fold_in(
    factors: np.ndarray, gram: np.ndarray, row: np.ndarray, item: np.ndarray, rows: int, *, alpha: float, steps: int,
    start: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Factors x of each row: [rows, K]. `gram` is G + λI; pairs (row, item) are sorted by row."""
    found = np.zeros((rows, factors.shape[1])) if start is None else start.copy()
    ends = np.searchsorted(row, np.arange(rows + 1))
    first = 0
    while first < rows:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + PAIRS, side="right")) - 1)
        pairs = slice(ends[first], ends[last])
        found[first:last] = _solved(
            factors[item[pairs]], gram, row[pairs] - first, found[first:last], alpha=alpha, steps=steps
        )
        first = last
    return found


def _solved(
    taken: np.ndarray, gram: np.ndarray, row: np.ndarray, x: np.ndarray, *, alpha: float, steps: int
) -> np.ndarray:
    def product(v: np.ndarray) -> np.ndarray:
        weight = alpha * np.einsum("pk,pk->p", taken, v[row])
        return np.asarray(v @ gram + _sums(weight[:, None] * taken, row, len(x)))

    x = x.copy()
    residual = (1 + alpha) * _sums(taken, row, len(x)) - product(x)
    direction = residual.copy()
    square = np.einsum("nk,nk->n", residual, residual)
    for _ in range(steps):
        moved = product(direction)
        curve = np.einsum("nk,nk->n", direction, moved)
        step = np.divide(square, curve, out=np.zeros_like(square), where=curve > 0)
        x += step[:, None] * direction
        residual -= step[:, None] * moved
        before, square = square, np.einsum("nk,nk->n", residual, residual)
        ratio = np.divide(square, before, out=np.zeros_like(square), where=before > 0)
        direction = residual + ratio[:, None] * direction
    return x


def _sums(values: np.ndarray, row: np.ndarray, rows: int) -> np.ndarray:
    """Σ of the values of each row: [rows, K]."""
    sums = np.zeros((rows, values.shape[1]))
    if len(row):
        begins = np.flatnonzero(np.diff(row, prepend=-1))
        sums[row[begins]] = np.add.reduceat(values, begins, axis=0)
    return sums
