"""Lists of which a person clicks at most one item: P(click i) = v_i / (1 + Σ v of all that is shown), Luce's choice.

Every click depends on all items of the list, also on those below. The expected clicks of a list are 1 - E 1/(1 + S),
with S = Σ v over the list, and E 1/(1 + S) = ∫ e^{-s} E e^{-sS} ds. The list is the order in which exponential clocks
of rates π(a) ring: a is the last item, and k - 1 of the others rang before it, so that with x_b(t) = e^{-π_b t}

    E e^{-sS} = Σ_a ∫ π_a x_a(t) e^{-s v_a} [z^{k-1}] Π_{b≠a} (x_b(t) + z (1 - x_b(t)) e^{-s v_b}) dt
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_AT, _SHARE = np.polynomial.legendre.leggauss(12)
NODE, MASS = -2 * np.log((1 + _AT) / 2), _SHARE * (1 + _AT) / 2  # of s = -2 log x, 0 < x < 1: ∫ e^{-s} f(s) ds
STEP = 0.4  # of log t


class LuceWorld(NamedTuple):
    """Contexts by items: what μ shows, and v; lists of k."""

    mu: np.ndarray  # [X, V]
    pull: np.ndarray  # [X, V] v
    places: int

    @classmethod
    def drawn(
        cls, rng: np.random.Generator, *, places: int, total: float, spread: float, contexts: int = 6, items: int = 25
    ) -> LuceWorld:
        """About `total` is Σ v of a list of k items that are drawn from μ one by one."""
        mu = np.exp(rng.standard_normal((contexts, items)))
        mu /= mu.sum(1, keepdims=True)
        worth = np.exp(spread * rng.standard_normal((contexts, items)))
        return cls(mu, total / places * worth / (mu * worth).sum(1).mean(), places)

    def value(self, policy: np.ndarray) -> float:
        """Exact expected clicks of a list of the policy."""
        chances = (_no_click(law, pull, self.places) for law, pull in zip(policy, self.pull, strict=True))
        return 1 - float(np.mean([*chances]))

    def log(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The context of each list, its items and its clicks [count, k]."""
        context = rng.integers(len(self.mu), size=count)
        order = np.log(self.mu)[context] + rng.gumbel(size=(count, self.mu.shape[1]))
        shown = np.argsort(-order, axis=1)[:, : self.places]
        pull = self.pull[context[:, None], shown]
        upto = (pull / (1 + pull.sum(1, keepdims=True))).cumsum(1)
        choice = rng.random((count, 1))
        before = np.concatenate([np.zeros((count, 1)), upto[:, :-1]], 1)
        return context, shown, ((before <= choice) & (choice < upto)).astype(float)

    def chances(self, policy: np.ndarray, context: np.ndarray, shown: np.ndarray) -> np.ndarray:
        """π(a|x, open) of each place [count, k]."""
        taken = policy[context[:, None], shown]
        return np.asarray(taken / (1 - taken.cumsum(1) + taken))

    def ratios(self, policy: np.ndarray, context: np.ndarray, shown: np.ndarray) -> np.ndarray:
        """π/μ of each place [count, k]."""
        return np.asarray(self.chances(policy, context, shown) / self.chances(self.mu, context, shown))


def _no_click(law: np.ndarray, pull: np.ndarray, places: int) -> float:
    """E 1/(1 + Σ v) of lists of one context."""
    time = np.exp(np.arange(-12.0, 4.5 - np.log(law.min()), STEP))
    still = np.exp(-time[:, None] * law)  # [T, V]
    rings, weighed = STEP * time[:, None] * law * still, np.exp(-NODE[:, None] * pull)
    counts = np.zeros((places, len(NODE), len(time)))
    counts[0] = 1.0

    def last(items: np.ndarray, counts: np.ndarray) -> float:
        """Sum over the last items among these; `counts` holds how many of all others rang, weighed."""
        if len(items) == 1:
            return float(MASS @ (weighed[:, items] * counts[-1]) @ rings[:, items[0]])
        found, halves = 0.0, np.array_split(items, 2)
        for mine, others in (halves, halves[::-1]):
            rest = counts.copy()
            for other in others:
                rang = rest[:-1] * np.outer(weighed[:, other], 1 - still[:, other])
                rest *= still[:, other]
                rest[1:] += rang
            found += last(mine, rest)
        return found

    return last(np.arange(len(law)), counts)
