"""Law of a ranker's lists: drawn by known probabilities or scores, the best k in order, or unknown.

With a probability for every candidate the law is theirs. With scores it is softmax(score / τ), drawn place by place:
τ is logged, stated or fitted to what was shown, and either way the law is believed only where it explains what was
shown. Each place is turned into a number that is uniform if and only if it was drawn so (a randomised probability
integral transform: Rosenblatt 1952), and Kolmogorov and Smirnov's test accuses a true law in one of 10,000 logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import optimize, stats

from localpolicy.errors import DataError
from localpolicy.ranker.log import Padded, RequestLog

Kind = Literal["probabilities", "scores", "deterministic", "unknown"]
ACCUSED = 1e-4  # probability that a true law is rejected
FEWEST = 50  # with fewer lists no law is rejected or fitted
MOST = 20_000  # lists tested
MOST_FITTED = 2_000  # lists to which τ is fitted
COOLEST, WARMEST = 0.005, 20.0  # range of τ, in standard deviations of scores


class Law(NamedTuple):
    """Distribution that lists were drawn from, as far as the log shows it, and its test."""

    kind: Kind
    temperature: float | None = None  # None: each request states its own, or probabilities do
    standardise: bool = False
    fitted: bool = False  # τ was fitted to what was shown
    p: float | None = None  # p of the test of this law
    overlap: float | None = None  # share of shown items that are among the best k by score
    same_first: float | None = None  # share of lists that begin with their best item
    why: str = ""  # why the law is not known

    @property
    def known(self) -> bool:
        """Whether the law is known, so that the log determines values of other lists."""
        return self.kind in ("probabilities", "scores")

    def json(self) -> dict[str, Any]:
        """Return the law as JSON content of a layer's description."""
        return self._asdict()

    def served(self, log: RequestLog) -> Law:
        """The law for new requests without a stated temperature: that of most drawn requests in the log."""
        if self.kind != "scores" or self.temperature is not None or log.temperature is None:
            return self
        stated, counts = np.unique(log.temperature[log.temperature > 0], return_counts=True)
        return self._replace(temperature=float(stated[counts.argmax()]))

    def drawn(self, log: RequestLog) -> np.ndarray:
        """Return the requests with a drawn place."""
        free = log.length > log.pinned
        if self.kind == "scores" and self.temperature is None and log.temperature is not None:
            free = free & (log.temperature > 0)
        return np.flatnonzero(free)

    def logits(self, log: RequestLog, block: Padded) -> np.ndarray:
        """Return the law's logits at the first drawn place [B, C]; -inf at pinned items and beyond a request's end."""
        pinned = block.of((log.place > 0) & (log.place <= log.pinned[log.request]), True)
        if self.kind == "probabilities" and log.probability is not None:
            with np.errstate(divide="ignore"):
                return np.asarray(np.where(pinned, -np.inf, np.log(block.of(log.probability, 0.0))))
        scores = standard_scores(log, block) if self.standardise else block.of(own_scores(log), -np.inf)
        own: Any = self.temperature or 1.0
        if self.temperature is None and log.temperature is not None:
            own = log.temperature[block.requests, None]
        return np.asarray(np.where(pinned, -np.inf, (scores - scores.max(1, keepdims=True)) / own))


def own_scores(log: RequestLog) -> np.ndarray:
    """Return the logged scores [M], or the logs of probabilities if there are none."""
    if log.score is not None:
        return log.score
    if log.probability is None:
        raise DataError(
            f"{log.label} states neither scores nor probabilities: one of them is needed for every candidate."
        )
    return np.asarray(np.log(np.maximum(log.probability, 1e-12)))


def standard_scores(log: RequestLog, block: Padded) -> np.ndarray:
    """Return scores standardised per request [B, C]; -inf beyond a request's end."""
    scores, count = block.of(own_scores(log), 0.0), block.real.sum(1, keepdims=True)
    centred = np.where(block.real, scores - scores.sum(1, keepdims=True) / count, 0.0)
    spread = np.sqrt((centred**2).sum(1, keepdims=True) / count)
    return np.where(block.real, centred / np.where(spread > 0, spread, 1.0), -np.inf)


class Lists(NamedTuple):
    """Shown lists of a block, as positions in its table of candidates."""

    at: np.ndarray  # [B, K], -1 beyond a list's end
    pinned: np.ndarray  # [B]


def shown_lists(log: RequestLog, block: Padded) -> Lists:
    """Return the list that each request of a block showed."""
    place = block.of(log.place, 0)
    at = np.full((len(place), int(place.max(initial=1))), -1)
    request, position = np.nonzero(place)
    at[request, place[request, position] - 1] = position
    return Lists(at, log.pinned[block.requests])


def places_of(logits: np.ndarray, lists: Lists) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the drawn places in order: place, requests that have it, logits of the items open there, item taken."""
    open_ = logits.copy()
    rows = np.arange(len(logits))
    for place in range(lists.at.shape[1]):
        taken = lists.at[:, place]
        here = rows[(taken >= 0) & (place >= lists.pinned)]
        if len(here):
            yield place, here, open_[here], taken[here]
        open_[rows[taken >= 0], taken[taken >= 0]] = -np.inf


def log_chances(logits: np.ndarray, lists: Lists) -> np.ndarray:
    """log P(the item of each drawn place | those above, the law) [B, K]; 0 elsewhere."""
    found = np.zeros(lists.at.shape)
    for place, here, open_, taken in places_of(logits, lists):
        largest = open_.max(1)
        with np.errstate(invalid="ignore"):
            total = largest + np.log(np.exp(open_ - largest[:, None]).sum(1))
        found[here, place] = open_[np.arange(len(here)), taken] - total
    return found


def log_chance(logits: np.ndarray, lists: Lists) -> np.ndarray:
    """log P(the drawn places | the law) of each list [B]."""
    return np.asarray(log_chances(logits, lists).sum(1))


def law_of(log: RequestLog, *, temperature: float | None = None, standardise: bool | None = None, seed: int = 0) -> Law:
    """Determine the law of a log's lists, and test it on what was shown."""
    rng = np.random.default_rng(seed)
    if log.probability is not None:
        return _tested(log, Law("probabilities"), rng)
    if log.score is None:
        return Law("unknown", why="the log states neither scores nor probabilities of its candidates")
    overlap, same_first, greedy = _likeness(log)
    if temperature is None and log.temperature is None and greedy:
        return Law("deterministic", overlap=overlap, same_first=same_first,
                   why="every list is the best k by score: nothing was drawn")  # fmt: skip
    if log.temperature is not None and temperature is None and not (log.temperature > 0).any():
        return Law("deterministic", overlap=overlap, same_first=same_first, why="the logged temperature is 0")
    standardise = log.standardise if standardise is None else standardise
    forms = (True, False) if standardise is None else (standardise,)
    own = temperature is None and log.temperature is not None
    sample = _some(Law("scores", temperature if not own else None).drawn(log), MOST_FITTED, rng)
    if not len(sample):
        return Law("unknown", why="no place of any list was drawn: all are pinned")
    found = max((_fitted(log, sample, temperature, own, form) for form in forms), key=lambda pair: pair[0])[1]
    tested = _tested(log, found, rng)._replace(overlap=overlap, same_first=same_first)
    return tested._replace(kind="deterministic", why="every list is the best k by score") if (
        greedy and not tested.known
    ) else tested  # fmt: skip


def own_law(log: RequestLog, law: Law, *, temperature: float | None = None, standardise: bool | None = None) -> Law:
    """The ranker's own law, which a layer tilts, without the tilt of a layer that drew the log's lists."""
    of_layer = log.standardise is not None and log.temperature is not None and (log.temperature > 0).any()
    stated = temperature is not None or of_layer  # else the probabilities are what the ranker declares
    if law.kind != "probabilities" or log.score is None or not stated:
        return law
    standardise = log.standardise if standardise is None else standardise
    return Law("scores", temperature, standardise is not False).served(log)


def _fitted(
    log: RequestLog, sample: np.ndarray, temperature: float | None, own: bool, standardise: bool
) -> tuple[float, Law]:
    """Fit τ to a sample of lists; return the log-likelihood and the law."""
    blocks = [(block, shown_lists(log, block)) for block in log.padded(sample)]

    def likelihood(law: Law) -> float:
        return float(sum(log_chance(law.logits(log, block), lists).sum() for block, lists in blocks))

    if own or temperature is not None:
        law = Law("scores", None if own else temperature, standardise)
        return likelihood(law), law
    scale = 1.0 if standardise else float(np.sqrt(np.mean([own_scores(log)[block.rows[block.real]].var()
                                                          for block, _ in blocks])))  # fmt: skip
    fit = optimize.minimize_scalar(
        lambda t: -likelihood(Law("scores", float(np.exp(t)) * scale, standardise)),
        bounds=(np.log(COOLEST), np.log(WARMEST)), method="bounded", options={"xatol": 1e-4},
    )  # fmt: skip
    law = Law("scores", float(np.exp(fit.x)) * scale, standardise, fitted=True)
    return -float(fit.fun), law


def _tested(log: RequestLog, law: Law, rng: np.random.Generator) -> Law:
    """Test a law; return it with p, as `unknown` if the test rejects it."""
    p, count = _uniformity(log, law, _some(law.drawn(log), MOST, rng), rng)
    if p < ACCUSED:
        how = {"probabilities": "the logged probabilities"}.get(law.kind, "")
        if not how:
            tau = "the logged temperatures" if law.temperature is None else f"temperature {law.temperature:.3g}"
            how = f"softmax of {'standardised ' if law.standardise else ''}scores at {tau}"
        return law._replace(kind="unknown", p=p, why=f"{how} does not explain what was shown (p = {p:.1e}, "
                            f"{count:,} lists)")  # fmt: skip
    return law._replace(p=p)


def _uniformity(log: RequestLog, law: Law, sample: np.ndarray, rng: np.random.Generator) -> tuple[float, int]:
    """Return p of the test that places are drawn by the law: at each place, in each order, Bonferroni-corrected.

    Orders are by probability, by name, and, if probabilities and scores are logged, by score: equal probabilities look
    the same in the other two orders, whatever was drawn.
    """
    found: dict[tuple[int, int], list[np.ndarray]] = {}
    by_name = np.argsort(np.argsort(log.items))[log.item]  # candidates may be logged in an order that the draw decided
    by_score = log.score if law.kind == "probabilities" else None
    for block in log.padded(sample):
        names = block.of(by_name, 0)
        for place, here, open_, taken in places_of(law.logits(log, block), shown_lists(log, block)):
            with np.errstate(invalid="ignore"):
                weight = np.exp(open_ - open_.max(1, keepdims=True))
            own = weight[np.arange(len(here)), taken][:, None]
            better = np.where(weight > own, weight, 0).sum(1)
            equal = np.where(weight == own, weight, 0).sum(1)
            before = np.where(names[here] < names[here, taken][:, None], weight, 0).sum(1)
            total, share = weight.sum(1), rng.random((2, len(here)))
            for order, values in enumerate(((better + share[0] * equal), (before + share[1] * own[:, 0]))):
                found.setdefault((order, place), []).append((values / total).clip(0, 1))
            if by_score is not None:
                ahead = block.of(by_score, 0.0)[here]
                own_score = ahead[np.arange(len(here)), taken][:, None]
                tied = np.where(ahead == own_score, weight, 0).sum(1)
                values = np.where(ahead > own_score, weight, 0).sum(1) + rng.random(len(here)) * tied
                found.setdefault((2, place), []).append((values / total).clip(0, 1))
    if len(sample) < FEWEST:
        return 1.0, len(sample)
    whole = {key: np.concatenate(parts) for key, parts in found.items()}
    for order in sorted({order for order, _ in whole}):
        whole[order, -1] = np.concatenate([values for (one, place), values in whole.items() if one == order])
    worst = min(float(stats.kstest(values, "uniform").pvalue) for values in whole.values() if len(values) >= FEWEST)
    return min(1.0, worst * len(whole)), len(sample)


def _likeness(log: RequestLog) -> tuple[float, float, bool]:
    """Compare lists with the best k: share of shared items, share of equal first places, and whether all are equal."""
    inside, first, every = [], [], True
    for block in log.padded():
        lists, scores = shown_lists(log, block), block.of(own_scores(log), -np.inf)
        ranked = np.argsort(-scores, axis=1, kind="stable")
        rank = np.argsort(ranked, axis=1)
        real = lists.at >= 0
        stands = np.take_along_axis(rank, np.maximum(lists.at, 0), 1)
        inside.append(np.where(real, stands < real.sum(1, keepdims=True), 0).sum(1) / real.sum(1))
        first.append(stands[:, 0] == 0)
        mine = np.take_along_axis(scores, np.maximum(lists.at, 0), 1)
        bar = np.take_along_axis(scores, ranked[:, : lists.at.shape[1]], 1)
        every = every and bool((mine == bar)[real].all())  # ties may stand either way
    return float(np.concatenate(inside).mean()), float(np.concatenate(first).mean()), every


def _some(requests: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return requests if len(requests) <= most else np.sort(rng.choice(requests, most, replace=False))
