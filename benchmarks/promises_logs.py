"""Promises on harder logs: people who choose, amounts, delayed rewards, dependence, drift, wrong propensities.

Cells of `promises.py`; each has a world of its own, small enough to know the truth exactly. What people chose
themselves is judged by the gate's own checks on first meetings, with the log's exact policy, and what was randomised by
the checks of values and returns, so that nothing is estimated but the gain.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from luce_lists import LuceWorld
from promises import RULES, Row, at_gain, evaluation, tilted
from promises import World as Table

from localpolicy.data.first_meetings import earned_by_meeting, met_before
from localpolicy.judge.checks.answers import answers_checks
from localpolicy.judge.checks.propensities import propensity_check
from localpolicy.judge.checks.returns import by_return
from localpolicy.judge.checks.value import value_check
from localpolicy.judge.claims import Claim, check
from localpolicy.judge.verdict import Gate
from localpolicy.measure.answers import Choices, answers
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.later import later_effect, returns_of
from localpolicy.measure.metrics import ndcg
from localpolicy.measure.returns import Visits

EVERY = 10  # logs of one world


def normalised(weights: np.ndarray) -> np.ndarray:
    """Each row as probabilities."""
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def answer(kind: str, checks: list[Claim], new: Any = None) -> str:
    """The gate's answer on such a log."""
    return Gate(checks, new, None, RULES, kind=kind).answer


def drawn(law: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An item of each row [n, V] of probabilities."""
    return np.asarray((law.cumsum(1) > rng.random((len(law), 1))).argmax(1))


# ---------------------------------------------------------------------- what people chose themselves

ITEMS, VIEW = 70, 0.2


def asked(mu: np.ndarray, policy: np.ndarray, person: np.ndarray, item: np.ndarray, event: np.ndarray,
          reward: np.ndarray) -> tuple[str, Claim]:  # fmt: skip
    """The answer on rows of what people did, and the check on the reward per answer."""
    columns = [torch.from_numpy(each) for each in (person, item, event, reward)]
    first = ~met_before(columns[0], columns[1]).numpy()
    earned = earned_by_meeting(*columns).numpy()[first]
    taken, owner, log_mu = item[first], person[first], np.log(mu)[item[first]]

    def of(name: str, law: np.ndarray) -> Any:
        logp = np.log(law)
        ranks = ndcg((logp[None] > logp[taken][:, None]).sum(1) + 1, 20)
        choices = Choices(name, logp[taken], {"mu": log_mu}, earned, ranks, owner, True)
        return answers(choices, log_mu, RULES.refusals)

    checks = answers_checks(of("new", policy), of("old", mu), check("gain", "yes", ""), RULES)
    return answer("rewards", checks), checks[0]


def hidden_intent(repeats: int, seed: int = 0) -> Iterator[Row]:
    """A moment's intent that no column records sends people to popular items, and makes them buy what they view.

    No item sells better to the person it is shown to, or the popular ones sell worse: no candidate gains.
    """
    for strength, odds in (("weak", 0.9), ("medium", 1.8), ("strong", 2.7)):
        said: Counter[str] = Counter()
        rng = np.random.default_rng([40, round(10 * odds), seed])
        for number in range(repeats):
            popular = rng.dirichlet(np.ones(ITEMS))
            sought = np.isin(np.arange(ITEMS), np.argsort(-popular)[:14])
            by_intent = normalised(popular * np.where(sought, [[0.7], [8.0]], 1))
            mu = 0.35 * by_intent[1] + 0.65 * by_intent[0]
            base = np.where(sought & bool(number % 2), -2.0, -1.6)
            policy = tilted(mu[None], rng.uniform(0.3, 1.0) * sought[None])[0]
            intent = (rng.random(1_500) < 0.35).astype(int)
            item = drawn(by_intent[intent], rng)
            chance = 1 / (1 + np.exp(-base[item] - odds * (intent - 0.45)))
            reward = VIEW + (rng.random(len(item)) < chance)
            said[asked(mu, policy, np.arange(1_500) // 5, item, np.zeros_like(item), reward)[0]] += 1
        world = f"{strength} hidden intent, views and purchases"
        yield Row("deploys what gains nothing", world, said["deploy"], repeats, "0", said["cannot tell"])
        yield Row("says test online of what gains nothing", world, said["test online"], repeats, "–")


def chosen(name: str, *, again: float, second: float, price: float, count: int) -> Callable[[int, int], Iterator[Row]]:
    """People choose what to view, and nothing hidden drives it: rates of *test online* by the true gain.

    `again` further views of an item, which bring nothing; `second`: the share of purchases that follow a second view;
    `price`: spread of log-normal prices, which views do not bring (0: the reward of each purchase is 1, of a view 0.2).
    """
    view, met = (0.0 if price else VIEW), 5

    def cell(repeats: int, seed: int = 0) -> Iterator[Row]:
        rng = np.random.default_rng([41, round(10 * again), round(10 * second), round(10 * price), seed])
        said: dict[str, Counter[str]] = {"same": Counter(), "better": Counter()}
        asked_of: Counter[str] = Counter()
        for _ in range(repeats):
            mu = normalised(rng.dirichlet(np.full(ITEMS, 1.5)) + 1e-4)
            buys = 1 / (1 + np.exp(1.6 - rng.standard_normal(ITEMS)))
            prices = np.exp(price * rng.standard_normal(ITEMS))
            table, noise = Table(mu[None], (buys * prices + view)[None], np.ones(1)), rng.standard_normal((1, ITEMS))
            for what, gain in (("same", -0.002), ("better", 0.2)):
                found = at_gain(table, (0.5 if gain < 0 else 0.15) * noise, gain)
                if found is None:
                    continue
                asked_of[what] += 1
                policy = found[0]
                person = np.repeat(np.arange(count), met)
                item = rng.choice(ITEMS, p=mu, size=len(person))
                rows = _rows(person, item, buys, prices, rng, again=again, second=second, view=view)
                told, worth = asked(mu, policy, *rows)
                said[what][told] += 1
                said[what]["told"] += worth.low is not None
        for what, promise, promised in (("same", "says test online of what gains nothing", "≤ 5 %"),
                                        ("better", "says test online of a gain of 20 %", "–")):  # fmt: skip
            times, logs = said[what], asked_of[what]
            yield Row(promise, f"{name}: {count:,} people", times["test online"], logs, promised,
                      logs - times["told"])  # fmt: skip

    return cell


def _rows(person: np.ndarray, item: np.ndarray, buys: np.ndarray, prices: np.ndarray, rng: np.random.Generator, *,
          again: float, second: float, view: float) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Rows in the order of time: a view, further views, and a purchase after the first or the second."""
    bought = rng.random(len(item)) < buys[item]
    late = bought & (rng.random(len(item)) < second)
    views = 1 + np.maximum(rng.poisson(again, len(item)), late)
    meeting = np.repeat(np.arange(len(item)), views + bought)
    place = np.arange(len(meeting)) - np.repeat(np.cumsum(views + bought) - views - bought, views + bought)
    sale = bought[meeting] & (place == 1 + late[meeting])
    paid = np.where(sale, prices[item[meeting]], view)
    return person[meeting], item[meeting], sale.astype(np.int64), paid


# ---------------------------------------------------------------------- randomised logs


class Rates:
    """What the check on the value says, log after log."""

    def __init__(self) -> None:
        self.logs = self.refused = self.yes = self.told = self.held = 0

    def add(self, claim: Claim, truth: float, *, doubted: bool = False) -> None:
        self.logs += 1
        self.yes += claim.outcome == "yes" and not doubted
        self.refused += claim.low is None
        if claim.low is not None and claim.high is not None:
            self.told += 1
            self.held += claim.low <= truth <= claim.high

    def rows(self, world: str, *, gains: bool, covers: bool = True) -> Iterator[Row]:
        """Rows of false deploys, or of detected gains, and of coverage."""
        promise, promised = ("detects a gain of 20 %", "≥ 80 %") if gains else ("deploys what gains nothing", "≤ 5 %")
        yield Row(promise, world, self.yes, self.logs, promised, self.refused)
        if covers:
            yield Row("interval holds the truth", world, self.held, self.told, "≥ 93 %", self.refused)


def judged(context: np.ndarray, item: np.ndarray, reward: np.ndarray, mu: np.ndarray, policy: np.ndarray,
           sequence: np.ndarray | None = None) -> Evaluation:  # fmt: skip
    """Single decisions as the gate reads them; `mu` [n, V] or [X, V] is what was logged."""
    p = mu[np.arange(len(item)), item] if len(mu) == len(item) else mu[context, item]
    return evaluation(
        "new", np.arange(len(item)) if sequence is None else sequence, reward, item=item, propensity=p,
        logp_open=np.log(policy[context, item]), history=np.ones(len(item), np.int64),
    )  # fmt: skip


Draw = Callable[[Table, np.ndarray, np.random.Generator], tuple[Evaluation, float]]


def randomised(name: str, draw: Draw, key: int, *, rate: float = 0.15, noise: float = 0.5) -> Any:
    """Both rates and coverage of single decisions, drawn and judged by `draw`, which gives the true difference too."""

    def cell(repeats: int, seed: int = 0) -> Iterator[Row]:
        rng, found = np.random.default_rng([42, key, seed]), {-0.002: Rates(), 0.2: Rates()}
        for number in range(repeats):
            if number % EVERY == 0:
                world = Table.drawn(rng, k=1, rate=rate)
                around = noise * rng.standard_normal(world.mu.shape)
            for gain, rates in found.items():
                policy = at_gain(world, around if gain < 0 else 0.3 * around, gain)
                if policy is not None:
                    new, truth = draw(world, policy, rng)
                    rates.add(value_check(new, None, RULES), truth)
        for gain, rates in found.items():
            yield from rates.rows(name, gains=gain > 0)

    return cell


def of_persons(world: Table, policy: np.ndarray, rng: np.random.Generator) -> tuple[Evaluation, float]:
    """Ten decisions of each of 300 people, who differ in how much they answer (gamma of shape 1) and where they are."""
    people, each = 300, 10
    keen, home = np.minimum(rng.gamma(1, 1, people), 4.0), rng.integers(len(world.mu), size=people)
    person = np.repeat(np.arange(people), each)
    stays = rng.random(len(person)) < 0.7
    context = np.where(stays, home[person], rng.integers(len(world.mu), size=len(person)))
    item = drawn(world.mu[context], rng)
    reward = rng.random(len(item)) < np.minimum(world.reward[context, item] * keen[person], 1)
    levels = np.minimum(-np.log(1 - (np.arange(2_000) + 0.5) / 2_000), 4.0)
    mean = np.minimum(world.reward[..., None] * levels, 1).mean(-1)
    truth = float(((policy - world.mu) * mean).sum(1).mean())
    return judged(context, item, reward.astype(float), world.mu, policy, person), truth


def of_prices(world: Table, policy: np.ndarray, rng: np.random.Generator) -> tuple[Evaluation, float]:
    """12,000 decisions; a purchase brings a log-normal amount of mean 1."""
    context = rng.integers(len(world.mu), size=12_000)
    item = drawn(world.mu[context], rng)
    bought = rng.random(len(item)) < world.reward[context, item]
    paid = bought * rng.lognormal(-0.5, 1.0, len(item))
    return judged(context, item, paid, world.mu, policy), world.value(policy) - world.value(world.mu)


def of_drift(world: Table, policy: np.ndarray, rng: np.random.Generator) -> tuple[Evaluation, float]:
    """3,000 decisions while rewards and μ change from one half to one and a half times what they are on average."""
    when = np.linspace(-1, 1, 20)
    turn = np.sign(np.random.default_rng(round(1e6 * float(world.reward[0, 0]))).standard_normal(world.reward.shape))
    laws = np.stack([tilted(world.mu, 0.5 * each * turn) for each in when])
    pays = np.stack([np.clip(world.reward * (1 + 0.5 * each * turn), 0, 1) for each in when])
    slot = np.repeat(np.arange(20), 150)
    context = rng.integers(len(world.mu), size=len(slot))
    item = drawn(laws[slot, context], rng)
    reward = rng.random(len(item)) < pays[slot, context, item]
    truth = float(((policy - laws) * pays).sum(2).mean())
    return judged(context, item, reward.astype(float), laws[slot, context], policy), truth


def drift(repeats: int, seed: int = 0) -> Iterator[Row]:
    """Of a log that changes: what truly gains nothing, or 15 % and more, is counted by its truth."""
    rng, rates = np.random.default_rng([43, seed]), {"loses": Rates(), "gains": Rates()}
    for number in range(2 * repeats):
        if number % EVERY == 0:
            world = Table.drawn(rng, k=1, rate=0.15)
            around = 0.4 * rng.standard_normal(world.mu.shape)
        policy = at_gain(world, around, float(rng.choice([-0.05, 0.0, 0.2, 0.3])))
        if policy is None:
            continue
        new, truth = of_drift(world, policy, rng)
        what = "loses" if truth <= 0 else "gains" if truth >= 0.15 * world.value(world.mu) else None
        if what is not None:
            rates[what].add(value_check(new, None, RULES), truth)
    yield from rates["loses"].rows("a log that drifts: 3,000 decisions", gains=False)
    gains = rates["gains"]
    yield Row("detects a gain of 15 % and more", "a log that drifts: 3,000 decisions", gains.yes, gains.logs, "≥ 80 %",
              gains.refused)  # fmt: skip


def clones(repeats: int, seed: int = 0) -> Iterator[Row]:
    """The policy that wrote the log, estimated again from 4,000 decisions of another log."""
    rng, rates, worse, false = np.random.default_rng([44, seed]), Rates(), 0, 0
    for _ in range(repeats):
        world = Table.drawn(rng, k=1, rate=0.15)
        context = rng.integers(len(world.mu), size=4_000)
        counts = np.ones_like(world.mu)
        np.add.at(counts, (context, drawn(world.mu[context], rng)), 1)
        clone = normalised(counts)
        truth = world.value(clone) - world.value(world.mu)
        context = rng.integers(len(world.mu), size=3_000)
        item = drawn(world.mu[context], rng)
        reward = rng.random(len(item)) < world.reward[context, item]
        claim = value_check(judged(context, item, reward.astype(float), world.mu, clone), None, RULES)
        rates.add(claim, truth)
        worse += truth <= 0
        false += truth <= 0 and claim.outcome == "yes"
    name = "a clone of μ, estimated again"
    yield Row("deploys what gains nothing", name, false, worse, "≤ 5 %", rates.refused)
    yield Row("deploys a clone, whatever its truth", name, rates.yes, rates.logs, "–", rates.refused)
    yield Row("interval holds the truth", name, rates.held, rates.told, "≥ 93 %", rates.refused)


def temperatures(repeats: int, seed: int = 0) -> Iterator[Row]:
    """Logged propensities are those of μ at another temperature; μ̂ was estimated from 20,000 other decisions."""
    for power in (0.7, 1.3, 1.0):
        rng, rates, found = np.random.default_rng([45, round(10 * power), seed]), Rates(), 0
        for number in range(repeats):
            if number % EVERY == 0:
                world = Table.drawn(rng, k=1, rate=0.15)
                around = 0.5 * rng.standard_normal(world.mu.shape)
            policy = at_gain(world, around, -0.002)
            if policy is None:
                continue
            context = rng.integers(len(world.mu), size=20_000)
            counts = np.ones_like(world.mu)
            np.add.at(counts, (context, drawn(world.mu[context], rng)), 1)
            estimate, stated = normalised(counts), normalised(world.mu**power)
            context = rng.integers(len(world.mu), size=4_000)
            item = drawn(world.mu[context], rng)
            reward = rng.random(len(item)) < world.reward[context, item]
            new = judged(context, item, reward.astype(float), stated, policy)
            p = stated[context, item]
            weights = {"new": policy[context, item] / p, "μ̂": estimate[context, item] / p}
            accused = propensity_check(weights, np.arange(len(item))).outcome != "yes"
            claim = value_check(new, None, RULES)
            found += accused or claim.low is None
            rates.add(claim, 0.0, doubted=accused)
        world_name = "true propensities" if power == 1 else f"propensities of μ^{power}"
        yield Row("deploys what gains nothing", world_name, rates.yes, rates.logs, "≤ 5 %", rates.refused)
        accuses = "accuses true propensities" if power == 1 else "finds wrong propensities, or refuses"
        yield Row(accuses, world_name, found, rates.logs, "≤ 5 %" if power == 1 else "–")


# ---------------------------------------------------------------------- lists, and visits


def item_below(repeats: int, seed: int = 0) -> Iterator[Row]:
    """Lists of three of 14 items: a better item further down takes 65 % of the clicks. The truth is enumerated."""
    rng, items, rates = np.random.default_rng([46, seed]), 14, {-0.002: Rates(), 0.2: Rates()}
    every = np.array(list(itertools.permutations(range(items), 3)))
    attention = 1 / np.arange(1, 4) ** 0.7

    def clicks(quality: np.ndarray, shown: np.ndarray) -> np.ndarray:
        chance = np.take_along_axis(quality, shown, 1)
        below = np.stack([chance[:, place + 1 :].max(1, initial=0) for place in range(3)], 1)
        return np.asarray(chance * attention * np.where(below > chance, 0.35, 1.0))

    def value(policy: np.ndarray, quality: np.ndarray) -> float:
        total = 0.0
        for law, pays in zip(policy, quality, strict=True):
            chosen = law[every]
            chance = (chosen / (1 - np.cumsum(chosen, 1) + chosen)).prod(1)
            total += float(chance @ clicks(np.broadcast_to(pays, (len(every), items)), every).sum(1))
        return total / len(policy)

    for number in range(repeats):
        if number % EVERY == 0:
            mu = normalised(np.exp(0.7 * rng.standard_normal((4, items))))
            quality = np.clip(0.15 * np.exp(0.7 * rng.standard_normal(mu.shape)), 0, 0.9)
            noise, base, policies = 0.2 * rng.standard_normal(mu.shape), value(mu, quality), {}
            for gain in rates:
                low, high = -3.0, 3.0
                for _ in range(14):
                    middle = (low + high) / 2
                    reached = value(tilted(mu, noise + middle * quality / quality.std()), quality)
                    low, high = (middle, high) if reached < (1 + gain) * base else (low, middle)
                policies[gain] = tilted(mu, noise + low * quality / quality.std())
        for gain, policy in policies.items():
            context = rng.integers(len(mu), size=2_500)
            shown = np.argsort(-(np.log(mu)[context] + rng.gumbel(size=(2_500, items))), 1)[:, :3]
            reward = rng.random(shown.shape) < clicks(quality[context], shown)
            chances = [(taken := law[context[:, None], shown]) / (1 - taken.cumsum(1) + taken) for law in (mu, policy)]
            new = evaluation(
                "new", np.repeat(np.arange(2_500), 3), reward.ravel().astype(float), item=shown.ravel(),
                history=np.tile(np.arange(1, 4), 2_500), propensity=chances[0].ravel(),
                above=np.tile(np.arange(3), 2_500), logp_open=np.log(chances[1]).ravel(),
            )  # fmt: skip
            rates[gain].add(value_check(new, None, RULES), value(policy, quality) - base)
    for gain, found in rates.items():
        yield from found.rows("lists of 3, an item below takes clicks", gains=gain > 0)


def one_click(places: int, *, total: float, spread: float, noise: float, count: int = 3_000) -> Any:
    """A person clicks at most one of a list's items (Luce's choice), so that every click depends on all of them.

    A gain of 20 % is asked of this number of lists, and of that which has an effective sample of about 600.
    """

    def cell(repeats: int, seed: int = 0) -> Iterator[Row]:
        rng = np.random.default_rng([48, places, round(10 * total), seed])
        rates: dict[tuple[float, bool], Rates] = {(-0.05, False): Rates(), (-0.002, False): Rates()}
        rates |= {(0.2, False): Rates(), (0.2, True): Rates()}
        for number in range(repeats):
            if number % EVERY == 0:
                world = LuceWorld.drawn(rng, places=places, total=total, spread=spread)
                around, base = noise * rng.standard_normal(world.mu.shape), world.value(world.mu)
                policies = {
                    gain: _at_gain(world, (0.3 if gain > 0 else 1.0) * around, (1 + gain) * base)
                    for gain in (-0.05, -0.002, 0.2)
                }
                truths = {gain: world.value(policy) - base for gain, policy in policies.items()}
                weight = np.prod(world.ratios(policies[0.2], *world.log(4_000, rng)[:2]), axis=1)
                enough = 600 * len(weight) * (weight**2).sum() / weight.sum() ** 2
            for (gain, more), found in rates.items():
                if (gain == -0.002 and truths[gain] > 0) or (more and enough > 20_000):
                    continue
                context, shown, reward = world.log(round(enough) if more else count, rng)
                lists = len(shown)
                new = evaluation(
                    "new", np.repeat(np.arange(lists), places), reward.ravel(), item=shown.ravel(),
                    history=np.tile(np.arange(1, places + 1), lists), above=np.tile(np.arange(places), lists),
                    propensity=world.chances(world.mu, context, shown).ravel(),
                    logp_open=np.log(world.chances(policies[gain], context, shown)).ravel(),
                )  # fmt: skip
                found.add(value_check(new, None, RULES), truths[gain])
        for (gain, more), found in rates.items():
            size = "effective sample 600" if more else f"{count:,} lists"
            name = f"one click per list of {places}, Σ v {total:g}: {size}, true {gain:+.1%}"
            yield from found.rows(name, gains=gain > 0)

    return cell


def _at_gain(world: LuceWorld, noise: np.ndarray, aim: float) -> np.ndarray:
    """The policy μ exp(noise + c v) of about this value."""
    low, high = -4.0, 4.0
    for _ in range(12):
        middle = (low + high) / 2
        reached = world.value(tilted(world.mu, noise + middle * world.pull / world.pull.std()))
        low, high = (middle, high) if reached < aim else (low, middle)
    return tilted(world.mu, noise + low * world.pull / world.pull.std())


def delayed(repeats: int, seed: int = 0) -> Iterator[Row]:
    """What pays comes a step later: bait pays at once, doors lead where everything pays."""
    rng, groups, items, steps, count = np.random.default_rng([47, seed]), 6, 30, 8, 2_500
    said = {"loses": Rates(), "gains": Rates()}
    for number in range(2 * repeats):
        if number % EVERY == 0:
            group = rng.permutation(items) % groups
            pay = np.full((groups, items), 0.02)
            bait = np.isin(group, (0, 1, 2))
            pay[:, bait] += 0.12 * rng.random((groups, int(bait.sum())))
            pay[5], pay[:5, group == 5] = 0.6 + 0.3 * rng.random(items), 0.0
            mu = normalised(np.exp(0.8 * rng.standard_normal((groups, items))))
            later = np.zeros(groups)
            for _ in range(steps // 2):
                later = (mu * (pay + later[group])).sum(1)
        ahead = pay if number % 2 else pay + later[group]  # the next reward, or what a visit earns
        ahead = (ahead - ahead.mean(1, keepdims=True)) / ahead.std()
        policy = tilted(mu, rng.uniform(0.1, 0.8) * ahead + 0.2 * rng.standard_normal(mu.shape))

        def value(law: np.ndarray, pay: np.ndarray = pay, group: np.ndarray = group) -> float:
            found = np.zeros(groups)
            for _ in range(steps):
                found = (law * (pay + found[group])).sum(1)
            return float(found.mean())

        def visits(number: int, mu: np.ndarray = mu, pay: np.ndarray = pay, group: np.ndarray = group) -> Any:
            state, columns = rng.integers(groups, size=number), []
            for _ in range(steps):
                item = drawn(mu[state], rng)
                columns.append((state, item, (rng.random(number) < pay[state, item]).astype(float)))
                state = group[item]
            made = (np.stack(each, 1).ravel() for each in zip(*columns, strict=True))
            return np.repeat(np.arange(number), steps), *made

        sequence, state, item, reward = visits(4 * count // 5)
        known = Visits.of(sequence, item, reward)
        effect = later_effect(known, mu[state, item], n_items=items)
        sequence, state, item, reward = visits(count // 5)
        new = judged(state, item, reward, mu, policy, sequence)
        found = returns_of(new.scores, None, known, effect, n_items=items)
        base, true = value(mu), value(policy)
        what = "loses" if true <= base else "gains" if true >= 1.2 * base else None
        if what is not None:
            said[what].add(by_return(value_check(new, None, RULES), found, RULES)[0], true - base)
    world = f"delayed reward: {count // 5} visits of {steps} judged"
    yield from said["loses"].rows(world, gains=False, covers=False)
    yield from said["gains"].rows(world, gains=True, covers=False)


CELLS: dict[str, Callable[[int, int], Iterator[Row]]] = {
    "intent": hidden_intent,
    "chosen": chosen("views and purchases", again=0.0, second=0.0, price=0.0, count=1_500),
    "second": chosen("purchases after a second view", again=0.0, second=0.5, price=0.0, count=1_500),
    "repeats": chosen("many repeats", again=2.0, second=0.3, price=0.0, count=1_500),
    "amounts": chosen("amounts paid", again=0.5, second=0.3, price=0.8, count=3_000),
    "prices": randomised("prices as rewards: 12,000 decisions", of_prices, 1),
    "persons": randomised("ten dependent decisions of 300 people", of_persons, 2),
    "drift": drift,
    "clones": clones,
    "temperatures": temperatures,
    "below": item_below,
    "luce4": one_click(4, total=0.7, spread=0.8, noise=0.25),
    "luce4keen": one_click(4, total=1.5, spread=0.8, noise=0.25),
    "luce10": one_click(10, total=0.7, spread=1.2, noise=0.12),
    "delayed": delayed,
}
