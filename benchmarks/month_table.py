"""Why new items do not enter in a month of the daily round: `month.py` as tables, one thing changed at a time.

    python benchmarks/month_table.py [--seeds 6] [--first 10] [--days 30] [--only TEXT]

The world is that of `month.py`: four kinds of visitor, 6,000 lists of three a day, tastes that drift, two new items
every fifth day. Networks are replaced by tables of kinds and items, so that no critic, no calibration and no fit is in
question: μ̂ is the mean of what was served in the window, floor included, and the critic a mean, shrunk to its item's.
All else is the round's: π ∝ μ̂ exp(Â/β) for the same multiples of Â's spread, β by the largest lower bound of the value
on a twentieth of the lists, with a least effective sample; a gate on three tenths of them, one-sided at 5 %, by the
paired difference to what is deployed; a deploy serves two days later. One thing is changed in each row.

Values of a list are estimated under a cascade (products of the ratios of the places above) or by places: each item by
its chance to be in the list, under the candidate and under all that was served.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from month import BUYS, ITEMS, KINDS, MEAN_REWARD, NEW_EVERY, PLACES, World, drawn_value

from localpolicy.training.beta_selection import MULTIPLES

SPLIT = (0.6, 0.65, 0.7)  # of the lists: the critic's, none (they choose epochs), β's; the rest are the gate's
PRIOR = 10.0  # answers that a mean is shrunk by
FEW = 3_000  # shows from which an item is known
TRACE = 1e-6  # of an item that nothing served knows
BETA_Z, GATE_Z = 2.5, 1.645  # eight multiples at once; one candidate


@dataclass(frozen=True)
class Round:
    """The settings of a daily round."""

    floor: float = 0.05
    days: int = 3
    least: float = 0.1  # effective share of the lists that β needs
    beta: Literal["estimate", "truth"] = "estimate"
    gate: Literal["estimate", "truth"] = "estimate"
    estimate: Literal["cascade", "places"] = "cascade"
    few_first: bool = (
        False  # the floor shows items with FEW shows six times as often, and new ones from their first day
    )


class Day(NamedTuple):
    """What was served on a day, and what it earned."""

    law: np.ndarray  # [KINDS, V] of the first place, without the floor
    floor_law: np.ndarray  # [V]
    kind: np.ndarray
    items: np.ndarray  # [lists, PLACES]
    propensity: np.ndarray
    reward: np.ndarray
    split: np.ndarray


def draw(
    law: np.ndarray, floor: float, floor_law: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Lists without replacement: each place (1 - ε) π(a) / Σ π(open) + ε u(a) / Σ u(open); and its propensities."""
    rows, open_ = np.arange(len(law)), np.ones(law.shape, bool)
    items, chance = np.zeros((len(law), PLACES), int), np.zeros((len(law), PLACES))
    for place in range(PLACES):
        own, even = np.where(open_, law, 0), open_ * floor_law
        each = (1 - floor) * own / np.maximum(own.sum(1, keepdims=True), 1e-300) + floor * even / even.sum(
            1, keepdims=True
        )
        upto = each.cumsum(1)
        taken = (upto > rng.random((len(law), 1)) * upto[:, -1:]).argmax(1)
        items[:, place], chance[:, place] = taken, each[rows, taken]
        open_[rows, taken] = False
    return items, chance


def inclusion(law: np.ndarray, floor: float, even: np.ndarray) -> np.ndarray:
    """P(item in a list of three) under the law of `draw`: [V]."""
    first = (1 - floor) * law + floor * even / even.sum()
    second = (1 - floor) * law / np.maximum(1 - law, 1e-15)[:, None] + floor * even / (even.sum() - even)[:, None]
    pair = first[:, None] * second
    np.fill_diagonal(pair, 0.0)
    own = (1 - floor) * pair / np.maximum(1 - law[:, None] - law, 1e-15)
    spread = floor * pair / np.maximum(even.sum() - even[:, None] - even, 1e-15)
    third = law * (own.sum() - own.sum(0) - own.sum(1)) + even * (spread.sum() - spread.sum(0) - spread.sum(1))
    return np.asarray(first + pair.sum(0) + third)


def wider(law: np.ndarray, width: int, fill: float) -> np.ndarray:
    """The law over more items, of which it hardly shows those it did not know."""
    more = np.pad(law, ((0, 0), (0, width - law.shape[1])), constant_values=fill)
    return np.asarray(more / more.sum(1, keepdims=True))


class Value(NamedTuple):
    """Value of a list, its influences by list, and the effective share of the lists."""

    mean: float
    influence: np.ndarray
    effective: float


def under_cascade(law: np.ndarray, log: Day) -> Value:
    """Σ_j E[W_j r_j] / E[W_j], W_j the product of π/μ of place j and of all above."""
    rows, left, weight = np.arange(len(log.kind)), np.ones(len(log.kind)), np.ones(len(log.kind))
    mean, influence = 0.0, np.zeros(len(log.kind))
    for place in range(PLACES):
        share = law[log.kind, log.items[rows, place]]
        weight = weight * share / np.maximum(left, 1e-12) / log.propensity[:, place]
        left = left - share
        reward, total = log.reward[:, place], weight.mean()
        here = (weight * reward).mean() / total
        mean, influence = mean + here, influence + weight * (reward - here) / total
    return Value(float(mean), influence, float(weight.sum() ** 2 / (weight @ weight) / len(weight)))


def by_places(law: np.ndarray, log: Day, shown: np.ndarray) -> Value:
    """PLACES · E[Σ_j W_j r_j] / E[Σ_j W_j], W_j = P_π(item in list) / P_μ(item in list)."""
    even, kind = np.ones(law.shape[1]), log.kind[:, None]
    weight = np.stack([inclusion(each, 0.0, even) for each in law])[kind, log.items] / shown[kind, log.items]
    total = weight.sum(1).mean() / PLACES
    mean = (weight * log.reward).sum(1).mean() / total
    influence = ((weight * log.reward).sum(1) - mean * weight.sum(1) / PLACES) / total
    return Value(float(mean), influence, float(weight.sum() ** 2 / (weight**2).sum() / weight.size))


def chosen(log: Day, low: float, high: float) -> Day:
    """The log's lists of a split."""
    rows = (log.split >= low) & (log.split < high)
    return log._replace(**{name: getattr(log, name)[rows] for name in Day._fields[2:]})


def month(
    seed: int, how: Round, *, days: int = 30, visits: int = 6_000, drift: float = 0.12
) -> Iterator[dict[str, float]]:
    """Play it: one entry a day."""
    world, rng = World(seed, drift=drift, floor=how.floor), np.random.default_rng([seed, 7])
    first = np.exp(0.8 * world.z)
    deployed = first / first.sum(1, keepdims=True)
    serving, logs, shows = [(1, deployed)], list[Day](), np.zeros(0)
    for day in range(1, days + 1):
        world.pass_day(new=2 if day % NEW_EVERY == 0 else 0)
        count, worth = world.items, world.worth
        live = [law for since, law in serving if since <= day][-1]
        if how.few_first:
            live = wider(live, count, 1e-9)
        shows = np.pad(shows, (0, count - len(shows)))
        even = np.where(shows < FEW, 1.2, 0.2)[: live.shape[1]] if how.few_first else np.ones(live.shape[1])
        kind = rng.integers(KINDS, size=visits)
        items, propensity = draw(live[kind], how.floor, even, rng)
        answered = rng.random(items.shape) < worth[kind[:, None], items]
        reward = np.where(answered, np.where(rng.random(items.shape) < BUYS, 1.0, 0.2), 0.0)
        shows += np.bincount(items.ravel(), minlength=count)
        logs = [*logs, Day(live, even, kind, items, propensity, reward, rng.random(visits))][-how.days :]
        log = Day(live, even, *(np.concatenate([getattr(each, name) for each in logs]) for name in Day._fields[2:]))
        candidate = night(deployed, logs, log, how, count, truth=lambda law: true_value(law, world))
        old = wider(deployed, count, 1e-9)
        better = true_value(candidate.law, world) / true_value(old, world) - 1
        proven = candidate.gain_low > 0
        waits = serving[-1][0] > day + 1
        deploys = (proven if how.gate == "estimate" else better > 0) and not waits
        yield {
            "value": float(MEAN_REWARD * worth[kind[:, None], items].sum(1).mean() / world.best()),
            "new": float(live[:, ITEMS:].sum() / KINDS), "deploys": float(deploys),
            "false": float(deploys and better <= 0), "refused": float(not proven and better > 0.01),
        }  # fmt: skip
        if deploys:
            deployed = candidate.law
            serving.append((day + 2, deployed))


def true_value(law: np.ndarray, world: World) -> float:
    """The mean reward of a list, drawn now."""
    return float(np.mean([drawn_value(p, MEAN_REWARD * w, world.floor) for p, w in zip(law, world.worth, strict=True)]))


class Candidate(NamedTuple):
    """A night's candidate, and the gate's lower bound of its gain."""

    law: np.ndarray
    gain_low: float


def night(
    deployed: np.ndarray, logs: Sequence[Day], log: Day, how: Round, count: int, *, truth: Callable[[np.ndarray], float]
) -> Candidate:
    """μ̂, the critic, β and the gate."""
    learnt, held_out, test = (chosen(log, *ends) for ends in ((0, SPLIT[0]), SPLIT[1:], (SPLIT[2], 1)))
    cell = (learnt.kind[:, None] * count + learnt.items).ravel()
    n, paid = (np.bincount(cell, weights=w, minlength=KINDS * count).reshape(KINDS, count)
               for w in (np.ones(len(cell)), learnt.reward.ravel()))  # fmt: skip
    item = (paid.sum(0) + PRIOR * paid.sum() / n.sum()) / (n.sum(0) + PRIOR)
    critic = (paid + PRIOR * item) / (n + PRIOR)
    laws = [wider((1 - how.floor) * each.law + how.floor * each.floor_law / each.floor_law.sum(), count, TRACE)
            for each in logs]  # fmt: skip
    logging = np.mean(laws, axis=0)
    shown = 0.0 if how.estimate == "cascade" else np.mean([
        np.pad([inclusion(p, how.floor, each.floor_law) for p in each.law], ((0, 0), (0, count - each.law.shape[1])))
        for each in logs
    ], axis=0)  # fmt: skip

    def value(law: np.ndarray, rows: Day) -> Value:
        return under_cascade(law, rows) if how.estimate == "cascade" else by_places(law, rows, np.maximum(shown, 1e-12))

    def low(found: Value) -> float:
        return found.mean - BETA_Z * float(found.influence.std() / np.sqrt(len(found.influence)))

    advantage = critic - (logging * critic).sum(1, keepdims=True)
    spread = advantage[held_out.kind[:, None], held_out.items].std()
    best, most = logging, truth(logging) if how.beta == "truth" else low(value(logging, held_out))
    for multiple in MULTIPLES:
        tilt = advantage / (multiple * spread)
        law = logging * np.exp(tilt - tilt.max())
        law /= law.sum(1, keepdims=True)
        found = value(law, held_out)
        if how.beta == "truth" or found.effective >= how.least:
            reached = truth(law) if how.beta == "truth" else low(found)
            best, most = (law, reached) if reached > most else (best, most)
    new, old = value(best, test), value(wider(deployed, count, 1e-9), test)
    gap = new.influence - old.influence
    return Candidate(best, new.mean - old.mean - GATE_Z * float(gap.std()) / len(gap) ** 0.5)


NOW = Round()
WEEK = replace(NOW, days=7)
ROUNDS = {
    "as it is: floor .05, three days": NOW,
    "no floor": replace(NOW, floor=0.0),
    "floor .1": replace(NOW, floor=0.1),
    "seven days": WEEK,
    "28 days": replace(NOW, days=28),
    "seven days, the floor to new items first": replace(WEEK, few_first=True),
    "seven days, effective share .03": replace(WEEK, least=0.03),
    "seven days, the gate knows the truth": replace(WEEK, gate="truth"),
    "seven days, β by the truth": replace(WEEK, beta="truth"),
    "seven days, both by the truth": replace(WEEK, beta="truth", gate="truth"),
    "seven days, by places": replace(WEEK, estimate="places"),
    "seven days, by places, share .03": replace(WEEK, estimate="places", least=0.03),
    "the same, the floor to new items first": replace(WEEK, estimate="places", least=0.03, few_first=True),
}


def main() -> None:
    """Play every round on every seed, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=10, help="the first seed")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--only", default="", help="rounds whose name holds this text")
    given = parser.parse_args()
    print(
        "| changed | value of a list, of the best list's, days 11 to 30 | day 30 | first places of new items then "
        "| deploys; of what is worse | better by 1 %, not deployed |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    for name, how in ROUNDS.items():
        if given.only not in name:
            continue
        played = [list(month(seed, how, days=given.days)) for seed in range(given.first, given.first + given.seeds)]
        late = np.mean([entry["value"] for days in played for entry in days[10:] or days])
        last = {key: np.mean([days[-1][key] for days in played]) for key in ("value", "new")}
        total = {key: sum(entry[key] for days in played for entry in days) for key in ("deploys", "false", "refused")}
        print(f"| {name} | {late:.3f} | {last['value']:.3f} | {last['new']:.1%} | {total['deploys']:.0f}; "
              f"{total['false']:.0f} | {total['refused']:.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
