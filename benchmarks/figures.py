"""Which figure follows the truth on logs of actions without propensities? Simulated shops answer.

    python benchmarks/figures.py --out FILE.jsonl [--only TEXT] [--seeds 3] [--processes 2]
    python benchmarks/figures.py --table FILE.jsonl

An interaction log of a shop says what people clicked and bought, not what they were shown. On each log policies of
every kind are trained (two seeds of `mle`, `reward_weighted`, `pg`, `sqn`, `sac`, the paper's LPI, LPI in closed form
along its dial) and measured by figures that such a log allows, as are three simple baselines. The truth is what
each earns in the shop: showing one item drawn from its distribution (`sampled`), or one of its twenty best drawn by the
weights of nDCG (`listed`), which is what ranks can speak of.

Two questions. Does a figure order policies as the truth does (rank correlation, mean over logs)? And if a figure finds
one of two policies significantly better, how often does the truth find significantly the opposite (a false verdict), or
the same?
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from collect import collect, read
from scipy import stats

from localpolicy.data.batches import Windows
from localpolicy.data.store import Prepared
from localpolicy.measure.answers import Choices, choices_of, log_probability, snips
from localpolicy.measure.position_metrics import Scores, answered, reward_weighted
from localpolicy.measure.score import score
from localpolicy.measure.significance import paired
from localpolicy.measure.truth import PolicyAgent, histories, world_numbers
from localpolicy.model.baselines import BASELINES
from localpolicy.model.deployable import Deployable
from localpolicy.runs.config import Config
from localpolicy.simulation import StoreWorld, write_prepared
from localpolicy.simulation.store_config import StoreConfig
from localpolicy.simulation.store_world import Chooser
from localpolicy.training.train import train
from localpolicy.worlds.scenarios import SCENARIOS

SHOPS: dict[str, tuple[str, ...]] = {
    "shop": (),
    "unlike products": ("item_quality=2",),
    "no bait": ("bait=0",),
    "no repeats": ("repeats=0",),
    "strong tastes": ("taste=2",),
    "tastes alike": ("taste=0.2",),
    "logged by popularity": ("quality=0", "repeats=0"),
    "good logging policy": ("quality=2",),
    "frequent purchases": ("purchase_base=-1",),
    "flat popularity": ("popularity=1", "category_tail=0.2"),
}
ITEMS, SEQUENCES, STEPS, PLACES = 200, 4_000, 20, 20
TRAINED: dict[str, dict[str, Any]] = {
    "mle": {"name": "mle"},
    "mle, seed 1": {"name": "mle"},
    "reward_weighted": {"name": "reward_weighted"},
    "pg": {"name": "pg"},
    "sqn": {"name": "sqn"},
    "sac": {"name": "sac"},
    "paper's LPI β=1": {"name": "lpi_rl_weighted", "beta": 1.0},
    "paper's LPI β=0.2": {"name": "lpi_rl_weighted", "beta": 0.2},
    "lpi": {"name": "lpi_rl"},
}
DIALS = (2.0, 0.7, 0.3)  # β of LPI, in spreads of the advantage, whatever its calibration says
MODES = ("sampled", "listed")
MU = "mle, seed 1"  # stands for μ̂ where a figure weights by it
ESTIMATES = ("mle", MU)  # their mean is what the gate weights by
CAP = 30.0
WORTH, TOGETHER = "reward per answer, by rows", "worth and number of answers, by rows"
FIRST_WORTH, FIRST_TOGETHER = "reward per answer", "worth and number of answers"  # the gate's: both must say so


def measure(task: tuple[str, int], *, episodes: int, epochs: int) -> dict[str, Any]:
    """One log: figures and truths of all policies, and what each pair's tests say."""
    name, number = task
    seed, began = 1_000 + list(SHOPS).index(name) + 100 * number, time.perf_counter()
    world = StoreWorld(StoreConfig().with_changes([f"items={ITEMS}", *SHOPS[name]]), seed=seed)
    with tempfile.TemporaryDirectory() as scratch:
        write_prepared(world, Path(scratch) / "data", sequences=SEQUENCES, seed=seed, interactions=True)
        data = Prepared(Path(scratch) / "data")
        policies = {
            **trained(data, Path(scratch), seed, epochs),
            **{each: fit(data) for each, fit in BASELINES.items()},
        }
        windows = Windows(data, "test", Config.parse(_settings(seed, epochs)).data)
        references = {each: policies[each] for each in ESTIMATES}
        asked = partial(score, windows=windows, events=data.events, references=references, floor=False)
        scored = {called: asked(policy) for called, policy in policies.items()}
        unseen = {called: asked(policy, unseen=True) for called, policy in policies.items()}
        counts = np.asarray(data.catalogue["count"].to_numpy())
    ranks = float(scored["mle"].metric("nDCG@20").mean())
    figures = {called: all_figures(scores, counts, ranks) for called, scores in scored.items()}
    meetings = {called: choices_of(called, scores) for called, scores in unseen.items()}
    for called, by in figures.items():
        by.update(first_figures(meetings[called], meetings["mle"]))
    earned = {
        mode: {called: visits(policy, world, mode, episodes) for called, policy in policies.items()} for mode in MODES
    }
    line: dict[str, Any] = {"shop": name, "number": number, "seed": seed}
    line["truth"] = {mode: {called: float(each.mean()) for called, each in by.items()} for mode, by in earned.items()}
    line["figures"] = {called: {figure: float(values.mean()) for figure, (values, _) in by.items()}
                       for called, by in figures.items()}  # fmt: skip
    line["pairs"] = [
        {
            "pair": [first, second],
            **{mode: sign(earned[mode][first], earned[mode][second], np.arange(episodes)) for mode in MODES},
            **{figure: sign(figures[first][figure][0], figures[second][figure][0], figures[first][figure][1])
               for figure in figures[first]},
        }
        for first, second in itertools.combinations(policies, 2)
    ]  # fmt: skip
    line["seconds"] = round(time.perf_counter() - began, 1)
    return line


def _settings(seed: int, epochs: int) -> dict[str, Any]:
    store = SCENARIOS["store"].settings
    return {**store, "train": {**store["train"], "epochs": epochs, "seed": seed, "device": "cpu"}}


def trained(data: Prepared, folder: Path, seed: int, epochs: int) -> dict[str, Deployable]:
    """Every policy, LPI also along its dial."""
    policies: dict[str, Deployable] = {}
    for called, objective in TRAINED.items():
        settings = _settings(seed + (called == MU), epochs)
        run = train(
            data, out=folder / called.replace(" ", "-"), config=Config.parse({**settings, "objective": objective})
        )
        policies[called] = run.policy()
        if called == "lpi":
            spread = run.manifest["improvement"]["calibration"]["spread"]
            for multiple in DIALS:
                policy = run.policy()
                policy.network.slope = 1.0
                policies[f"lpi, β {multiple:g} spreads"] = policy.dialled(multiple * spread)
    return policies


def all_figures(scores: Scores, counts: np.ndarray, ranks: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Values whose mean is the figure, and the sequence of each; `ranks` is the nDCG@20 of `mle`."""
    ndcg, reward = scores.metric("nDCG@20"), scores.reward.astype(np.float64)
    bought, fresh = scores.event == scores.events.index("purchase"), ~scores.repeat
    worth, by = reward / reward.mean(), scores.sequence
    ratio = np.minimum(np.exp(scores.logp - scores.logp_reference[MU]), CAP)
    value = (ratio * reward).sum() / ratio.sum()
    known = [scores.logp_reference[each].astype(np.float64) for each in ESTIMATES]
    by_mean = np.minimum(np.exp(scores.logp - np.logaddexp(*known)) * len(known), CAP)
    worth_of_one = (by_mean * reward).sum() / by_mean.sum()
    answers = worth_of_one + by_mean * (reward - worth_of_one) / by_mean.mean()

    def rarely(power: float) -> np.ndarray:
        weight = reward * (counts.mean() / counts[scores.item]) ** power
        return np.asarray(weight / weight.mean() * ndcg)

    return {
        "nDCG@20 of all": (ndcg, by),
        "nDCG@20 of purchases": (ndcg[bought], by[bought]),
        "reward-weighted nDCG@20": (reward_weighted(scores, "nDCG@20", answered(scores)), by[answered(scores)]),
        "the same, MRR": (reward_weighted(scores, "MRR", answered(scores)), by[answered(scores)]),
        "the same, HR@1": (reward_weighted(scores, "HR@1", answered(scores)), by[answered(scores)]),
        "the same, new items": ((worth * ndcg)[fresh], by[fresh]),
        "nDCG@20 of purchases, new items": (ndcg[bought & fresh], by[bought & fresh]),
        "reward-weighted, by rarity^½": (rarely(0.5), by),
        "reward-weighted, by rarity": (rarely(1.0), by),
        "reward-weighted, by rarity, new items": (rarely(1.0)[fresh], by[fresh]),
        "log-likelihood": (scores.logp.astype(np.float64), by),
        "reward-weighted log-likelihood": (worth * scores.logp, by),
        "SNIPS with μ̂": (value + ratio * (reward - value) / ratio.mean(), by),
        "IPS with μ̂": (ratio * reward, by),
        WORTH: (answers, by),
        TOGETHER: (answers / reward.mean() + ndcg / ranks, by),
    }


def first_figures(mine: Choices, old: Choices) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Figures over first meetings, as in the gate but for its refusals."""
    log = log_probability(mine, ESTIMATES)
    assert log is not None
    values = snips(mine, log)
    gains = values / old.reward.mean() + mine.ranks / old.ranks.mean()
    return {FIRST_WORTH: (values, mine.sequence), FIRST_TOGETHER: (gains, mine.sequence)}


def visits(policy: Deployable, world: StoreWorld, mode: str, episodes: int) -> np.ndarray:
    """Mean reward per impression of each visit: the same shoppers and luck for every policy."""
    shown = PolicyAgent(policy, world) if mode == "sampled" else listed(policy, world)
    return np.asarray(world.rollouts(shown, episodes, STEPS, 0).per_episode)


def listed(policy: Deployable, world: StoreWorld) -> Chooser:
    """Shows one of the best items, place j drawn with weight 1 / log2(j + 1)."""
    number = world_numbers(policy, world.n_items)
    weight = 1 / np.log2(np.arange(PLACES) + 2)

    def choose(items: np.ndarray, events: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        place = np.searchsorted(np.cumsum(weight / weight.sum()), rng.random(len(items))).clip(max=PLACES - 1)
        with torch.no_grad():
            rows = policy.logits(histories(policy, items, events, world.events, world.n_items))
            best = rows.chunk(0, rows.shape[1]).topk(PLACES, dim=1).indices.numpy()
        return np.asarray(number[best[np.arange(len(items)), place]])

    return choose


def sign(first: np.ndarray, second: np.ndarray, clusters: np.ndarray) -> int:
    """1 or -1 where a paired test at 5 % tells them apart, else 0."""
    return paired(first, second, clusters).sign


# ---------------------------------------------------------------------- results


def table(lines: list[dict[str, Any]], mode: str) -> Iterator[str]:
    """A row per figure: rank correlation over all policies and over trained ones, and its verdicts on pairs."""
    figures = list(lines[0]["figures"]["mle"])
    head = "rank correlation: all | trained | worst shop | verdicts | true | false"
    yield f"| figure ({mode}, {len(lines)} logs) | {head} |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for figure in figures:
        every, ours = ([correlation(line, figure, mode, names) for line in lines] for names in (None, BASELINES))
        shops = {line["shop"] for line in lines}
        worst = min(
            np.mean([each for each, line in zip(every, lines, strict=True) if line["shop"] == shop]) for shop in shops
        )
        told = [(pair[figure], pair[mode]) for line in lines for pair in line["pairs"] if pair[figure]]
        right, wrong = shares(told)
        yield (
            f"| {figure} | {np.mean(every):+.2f} | {np.mean(ours):+.2f} | {worst:+.2f} | {len(told):,} | {right:.0%} | "
            f"{wrong:.0%} |"
        )
    pairs = [pair for line in lines for pair in line["pairs"]]
    for worth, both in ((WORTH, TOGETHER), (FIRST_WORTH, FIRST_TOGETHER)):
        told = [(pair[worth], pair[mode]) for pair in pairs if pair[worth] and pair[worth] == pair[both]]
        right, wrong = shares(told)
        yield f"| {worth}, and {both} | | | | {len(told):,} | {right:.0%} | {wrong:.0%} |"


def shares(verdicts: list[tuple[int, int]]) -> tuple[float, float]:
    """Shares of the verdicts that the truth confirms, and that it contradicts."""
    agree = np.array([found * true for found, true in verdicts])
    right, wrong = (float(np.mean(agree == way)) if verdicts else np.nan for way in (1, -1))
    return right, wrong


def correlation(line: dict[str, Any], figure: str, mode: str, without: Iterable[str] | None) -> float:
    """Spearman's, over the policies of one log."""
    names = [name for name in line["figures"] if name not in (without or ())]
    mine, true = [line["figures"][name][figure] for name in names], [line["truth"][mode][name] for name in names]
    return float(stats.spearmanr(mine, true).statistic)


def by_pair(lines: list[dict[str, Any]], figure: str, mode: str) -> Iterator[str]:
    """Table of the figure's verdicts on each pair and of the truth, which shows its false verdicts."""
    yield f"| {figure}, {mode} | better / worse / undecided | true | false |"
    yield "|---|--:|--:|--:|"
    for pair in [tuple(pair["pair"]) for pair in lines[0]["pairs"]]:
        told = [(each[figure], each[mode]) for line in lines for each in line["pairs"] if tuple(each["pair"]) == pair]
        said = [sum(way == one for one, _ in told) for way in (1, -1, 0)]
        right, wrong = (sum(one * true == way for one, true in told) for way in (1, -1))
        yield f"| {pair[0]} against {pair[1]} | {' / '.join(map(str, said))} | {right} | {wrong} |"


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a line of JSON for each log, as they end")
    parser.add_argument("--table", type=Path, help="show the lines of such a file")
    parser.add_argument("--pairs", help="with --table: the verdict of this figure on each pair")
    parser.add_argument("--only", default="", help="shops whose name holds this text")
    parser.add_argument("--seeds", type=int, default=3, help="logs of each shop")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=4_096, help="visits behind the truth")
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    if given.table is not None:
        lines = read(given.table)
        for mode in MODES:
            print(*(by_pair(lines, given.pairs, mode) if given.pairs else table(lines, mode)), "", sep="\n")
        return
    tasks = [(name, number) for number in range(given.seeds) for name in SHOPS if given.only in name]
    work = partial(measure, episodes=given.episodes, epochs=given.epochs)
    lines = collect(work, tasks, processes=given.processes, out=given.out)
    for mode in MODES:
        print(*table(lines, mode), "", sep="\n")


if __name__ == "__main__":
    main()
