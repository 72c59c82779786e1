"""Why a critic fails on a log of clicks and purchases: what it knows of held-out actions, and what would help it.

    python benchmarks/critic_signal.py buyers [--seeds 3] [--device cuda] [--json FILE]

μ̂ is trained first. Then critics, each a network with μ̂'s shape, which differ in start, loss and what they learn about
actions that nobody took. Each is kept at its best epoch by its correlation with the reward on validation, and read on
the test split. `taken`: correlation with the reward of held-out taken actions; `within`: the same after each context's
mean under μ̂ is taken off, which alone moves a policy; `new` and `seen`: on items that the sequence had not, or had,
met before; `others`: the score that another person's context with the same last item gives to the taken item. `tilt`:
π ∝ μ̂ exp(t Â/sd(Â)), nDCG@20 of purchases and clicks beyond μ̂, with standard errors by sequence.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import localpolicy as lp
from localpolicy.data.batches import Windows, epoch_order
from localpolicy.data.store import Prepared
from localpolicy.measure.estimate import credible_means, mean_estimate
from localpolicy.model.readout import returns_to_go
from localpolicy.training.critic_quality import calibrate
from localpolicy.types import Batch

GAMMA, BATCH, TILTS, NEGATIVES = 0.5, 32, (0.25, 0.5, 1.0), 20


class Way(NamedTuple):
    """How one critic is made."""

    loss: str = "reward"  # reward, return, td, class
    start: str = "warm"  # from μ̂'s weights, or scratch
    shared: bool = False  # on the policy's network, with its likelihood
    negatives: float = 0.0  # weight of items that were not taken, drawn by popularity, with the lowest target
    pessimism: float = 0.0  # weight of log Σ exp q - q(taken)


WAYS = {
    "TD max, on the policy's network (SQN)": Way("td", shared=True),
    "reward, on the policy's network": Way("reward", shared=True),
    "TD max, alone": Way("td"),
    "return, alone": Way("return"),
    "reward, alone": Way(),
    "reward, from scratch": Way(start="scratch"),
    "classification": Way("class"),
    "classification, negatives .1": Way("class", negatives=0.1),
    "classification, negatives 1": Way("class", negatives=1.0),
    "reward, pessimism .1": Way(pessimism=0.1),
    "classification, pessimism .1": Way("class", pessimism=0.1),
}


class Critic(nn.Module):
    """Scores of all items: e_a · P h + b_a + v · h + c, on a network of its own."""

    def __init__(self, network: Any, *, start: str) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        for parameter in self.network.parameters():
            parameter.requires_grad_(True)
            if start == "scratch" and parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        width, items = self.network.table.shape[1], len(self.network.table)
        self.projection = nn.Parameter(torch.zeros(width, width))
        self.bias = nn.Parameter(torch.zeros(items))
        self.context = nn.Parameter(torch.zeros(width + 1))

    def rows(self, hidden: Tensor) -> Tensor:
        """[N, V]."""
        level = hidden @ self.context[:-1] + self.context[-1]
        table: Tensor = self.network.table
        return hidden @ self.projection.T @ table.T + self.bias + level[:, None]


def batches(windows: Windows, *, seed: int, epoch: int) -> Iterator[Batch]:
    order = epoch_order(len(windows), seed=seed, epoch=epoch).to(windows.device)
    for start in range(0, len(order), BATCH):
        yield windows.cut(order[start : start + BATCH])


def loss_of(critic: Critic, way: Way, batch: Batch, *, low: float, high: float, popular: Tensor) -> Tensor:
    """The mean loss of one batch."""
    hidden = critic.network.hidden(batch)[batch.scored]
    items, reward = batch.item[batch.scored], batch.credited[batch.scored].float()
    rows = critic.rows(hidden)
    taken = rows.gather(1, items[:, None]).squeeze(1)
    if way.loss == "class":
        loss = F.binary_cross_entropy_with_logits(taken, (reward - low) / (high - low))
    else:
        target = reward
        if way.loss == "return":
            target = returns_to_go(batch, gamma=GAMMA)[batch.scored].float()
        if way.loss == "td":
            best = rows.detach().max(1).values
            same = batch.row[batch.scored][1:] == batch.row[batch.scored][:-1]
            target = reward + GAMMA * F.pad(torch.where(same, best[1:], 0.0), (0, 1))
        loss = F.mse_loss(taken, target)
    if way.negatives:
        drawn = popular[torch.randint(len(popular), (len(items), NEGATIVES), device=items.device)]
        others = rows.gather(1, drawn)
        wrong = F.softplus(others) if way.loss == "class" else others.square()
        loss = loss + way.negatives * torch.where(drawn == items[:, None], 0.0, wrong).mean()
    if way.pessimism:
        loss = loss + way.pessimism * (rows.logsumexp(1) - taken).mean()
    if way.shared:
        loss = loss + F.cross_entropy(F.linear(hidden, *head_of(critic.network)), items)
    return loss


def head_of(network: Any) -> tuple[Tensor, Tensor]:
    """The weights and biases of the policy's head."""
    head = network.head("policy")
    return head.weight, head.bias


class Held(NamedTuple):
    """Positions of a split."""

    sequence: np.ndarray
    reward: np.ndarray
    q: np.ndarray
    mean: np.ndarray  # Σ_a μ̂(a|x) q(x,a)
    seen: np.ndarray  # whether the sequence had met the item
    others: np.ndarray  # q of another person's context with the same last item; NaN where there is none
    ranks: dict[float, np.ndarray]  # by t, of the taken item under the tilted policy


@torch.no_grad()
def read(critic: Critic, mle: Any, windows: Windows, last: dict[int, Tensor], *, spread: float | None) -> Held:
    """All positions of a split; `last`: by item, hidden states of training contexts that end with it."""
    critic.eval()
    columns: dict[str, list[Tensor]] = defaultdict(list)
    for batch in windows.in_order(64):
        at, items = batch.scored, batch.item[batch.scored]
        rows = critic.rows(critic.network.hidden_without_dropout(batch)[at])
        logits = mle(batch)
        mu = logits.softmax(1)
        q, mean = rows.gather(1, items[:, None]).squeeze(1), (mu * rows).sum(1)
        columns["sequence"].append(batch.owners[batch.row[at]])
        columns["reward"].append(batch.credited[at].float())
        columns["q"].append(q)
        columns["mean"].append(mean)
        columns["seen"].append(seen_before(batch)[at])
        others = torch.full_like(q, torch.nan)
        for place, (before, item) in enumerate(zip(batch.previous_item[at].tolist(), items.tolist(), strict=True)):
            if before in last:
                others[place] = critic.rows(last[before]).mean(0)[item]
        columns["others"].append(others)
        if spread is not None:
            for tilt in (0.0, *TILTS):
                scores = logits + tilt * (rows - mean[:, None]) / spread
                own = scores.gather(1, items[:, None])
                columns[f"rank {tilt}"].append(1 + (scores > own).sum(1) + 0.5 * ((scores == own).sum(1) - 1))
    joined = {name: torch.cat(parts).cpu().numpy() for name, parts in columns.items()}
    ranks = {tilt: joined.pop(f"rank {tilt}") for tilt in (0.0, *TILTS)} if spread is not None else {}
    return Held(**joined, ranks=ranks)


def seen_before(batch: Batch) -> Tensor:
    """[M] whether an earlier token of the row has the same item."""
    seen, known = torch.zeros(len(batch.item), dtype=torch.bool), set[tuple[int, int]]()
    for place, pair in enumerate(zip(batch.row.tolist(), batch.item.tolist(), strict=True)):
        seen[place] = pair in known
        known.add(pair)
    return seen.to(batch.item.device)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    good = ~np.isnan(a)
    a, b = a[good], b[good]
    return float(np.corrcoef(a, b)[0, 1]) if len(a) > 2 and a.std() > 0 and b.std() > 0 else 0.0


def figures(held: Held, *, high: float) -> dict[str, Any]:
    """Correlations, calibration and tilts of one critic on the test split."""
    seen = held.seen.astype(bool)
    advantage = held.q - held.mean
    slope = calibrate(held.reward, held.mean, held.q, held.sequence)
    found: dict[str, Any] = {
        "taken": correlation(held.q, held.reward),
        "within": correlation(advantage, held.reward),
        "new": correlation(held.q[~seen], held.reward[~seen]),
        "within, new": correlation(advantage[~seen], held.reward[~seen]),
        "seen": correlation(held.q[seen], held.reward[seen]),
        "others": correlation(held.others, held.reward),
        "slope": slope.slope, "slope low": slope.low,
    }  # fmt: skip
    gains = {t: 1 / np.log2(ranks + 1) * (ranks <= 20) for t, ranks in held.ranks.items()}
    for tilt in TILTS:
        for event, here in (("purchase", held.reward == high), ("click", held.reward != high)):
            gain = mean_estimate((gains[tilt] - gains[0.0])[here], held.sequence[here])
            found[f"tilt {tilt} {event}"] = [gain.mean, gain.se]
    return found


def study(
    data: Prepared, *, seed: int, device: str, epochs: int, ways: list[str], folder: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and figures of plain predictors, then of all critics, of one seed."""
    torch.manual_seed(seed)
    select = "1.0*purchase.nDCG@20 + 0.2*click.nDCG@20"
    short: dict[str, Any] = {} if epochs > 2 else {"epochs": 1, "width": 8, "batch_size": 256, "length": 10}
    run = lp.train(data, lp.MLE(), out=folder / "mle", seed=seed, device=device, select=select, **short)
    network = run.policy().network.to(device)
    weight, bias = (part.detach().clone() for part in head_of(network))

    @torch.no_grad()
    def mle(batch: Batch) -> Tensor:
        return F.linear(network.hidden_without_dropout(batch)[batch.scored], weight, bias)

    config = run.config.data
    train, validation, test = (Windows(data, split, config, device=device) for split in ("train", "validation", "test"))
    low, high = (pick(data.manifest["rewards"].values()) for pick in (min, max))
    popular = train.arrays["item"].long()
    yield "plain predictors", plain(train, test, data.n_items)
    for name in ways:
        way = WAYS[name]
        critic = Critic(network, start=way.start).to(device)
        steps = torch.optim.AdamW(critic.parameters(), lr=1e-3 if way.start == "scratch" or way.shared else 3e-4)
        best, kept, stopped = -1.0, critic.state_dict(), 0
        for epoch in range(epochs):
            critic.train()
            for batch in batches(train, seed=seed, epoch=epoch):
                steps.zero_grad()
                loss_of(critic, way, batch, low=low, high=high, popular=popular).backward()
                steps.step()
            held = read(critic, mle, validation, {}, spread=None)
            if (score := correlation(held.q, held.reward)) > best:
                best, kept = score, copy.deepcopy(critic.state_dict())
                stopped = epoch + 1
        critic.load_state_dict(kept)
        held = read(critic, mle, validation, {}, spread=None)
        spread = float((held.q - held.mean).std()) or 1.0
        found = figures(read(critic, mle, test, contexts(critic, train), spread=spread), high=high)
        yield name, found | {"epoch": stopped, "validation": best}


@torch.no_grad()
def contexts(critic: Critic, train: Windows) -> dict[int, Tensor]:
    """By item: hidden states (five at most) of training contexts that end with it."""
    critic.eval()
    last: dict[int, list[Tensor]] = defaultdict(list)
    for batch in train.in_order(64):
        hidden = critic.network.hidden_without_dropout(batch)
        for place, before in enumerate(batch.previous_item.tolist()):
            if len(last[before]) < 5:
                last[before].append(hidden[place])
    return {item: torch.stack(rows) for item, rows in last.items() if rows}


def plain(train: Windows, test: Windows, items: int) -> dict[str, float]:
    """Correlations with the reward of what needs no network: the item's mean reward, whether it was met before."""
    known: dict[str, list[np.ndarray]] = defaultdict(list)
    for split, windows in (("train", train), ("test", test)):
        for batch in windows.in_order(64):
            at = batch.scored
            for name, column in (("item", batch.item), ("reward", batch.credited), ("seen", seen_before(batch)),
                                 ("again", batch.item == batch.previous_item)):  # fmt: skip
                known[f"{split} {name}"].append(column[at].cpu().numpy())
    joined = {name: np.concatenate(parts) for name, parts in known.items()}
    means = credible_means(joined["train item"], joined["train reward"].astype(float), n_items=items)
    reward, new = joined["test reward"], ~joined["test seen"]
    of_item = means[joined["test item"]]
    return {
        "item's mean reward": correlation(of_item, reward),
        "item's mean reward, new": correlation(of_item[new], reward[new]),
        "met before": correlation(joined["test seen"].astype(float), reward),
        "the item just met": correlation(joined["test again"].astype(float), reward),
        "share of purchases met before": float(joined["test seen"][reward == reward.max()].mean()),
        "share of clicks met before": float(joined["test seen"][reward != reward.max()].mean()),
    }  # fmt: skip


def main() -> None:
    """Seeds in turn; what is known so far is written after each critic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="ways whose name holds this")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    ways = [name for name in WAYS if given.only in name]
    found: dict[int, dict[str, Any]] = {seed: {} for seed in range(given.seeds)}
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"device": given.device, "epochs": given.epochs, "ways": ways}
        for seed in range(given.seeds):
            for name, each in study(Prepared(given.data), seed=seed, folder=Path(folder) / str(seed), **options):
                found[seed][name] = each
                print(seed, name, json.dumps(each), flush=True)
                if given.json:
                    given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
