"""What item features bring on public data: ids alone, attributes, shuffled attributes, items nobody has seen.

    python benchmarks/features.py prepare beauty --raw data/amazon-5core --out features/beauty
    python benchmarks/features.py one features/beauty --variant attributes --seed 0 --set id_dropout=0.2

`prepare` writes three data sets under OUT: `true`, `shuffled` (each item has another's attributes) and `cold` (a tenth
of the items is taken out of all but the last events of the sequences, so that only the test split knows them).
`world` reads two loops of `lpi loop bandit --dial features=2 --dial new_items=0.4`, one with `--set model.features=[]`:

    python benchmarks/features.py world loops/with loops/without

Leave-one-out over the whole catalogue, items of the history not ranked; the figures go to a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy import stats

import localpolicy.data.item_features as item_features
import localpolicy.training.setup as setup
from localpolicy.data.batches import Windows
from localpolicy.data.item_features import ItemFeatures
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.measure.truth import PolicyAgent
from localpolicy.runs.run import Run
from localpolicy.simulation import BanditWorld, load_world
from localpolicy.training.train import train

SETTINGS: dict[str, Any] = {
    "split": "last",
    "keep_log": False,
    "columns": {"sequence_id": "user_id"},
    "event": "click",
    "force": True,
}


def make(name: str, raw: Path, out: Path) -> None:
    """The three data sets."""
    log, items = (
        pq.read_table(raw / f"{name}_sequences.parquet"),
        pq.read_table(raw / f"{name}_item_attributes.parquet"),
    )
    prepare(log, out=out / "true", items=items, **SETTINGS)
    order = np.random.default_rng(1).permutation(len(items))
    column = next(each for each in items.column_names if each != "item_id")
    mixed = items.set_column(
        items.column_names.index(column), column, items[column].combine_chunks().take(pa.array(order))
    )
    prepare(log, out=out / "shuffled", items=mixed, **SETTINGS)
    ids = items["item_id"].to_numpy()
    cold = np.random.default_rng(2).permutation(ids)[: len(ids) // 10]
    user, item = log["user_id"].to_numpy(), log["item_id"].to_numpy()
    last = np.append(user[1:] != user[:-1], True)
    prepare(log.filter(pa.array(last | ~np.isin(item, cold))), out=out / "cold", items=items, **SETTINGS)


@torch.no_grad()
def measured(
    network: Any, data: Prepared, split: str, device: str, table: Any = None, bias: Any = None
) -> dict[str, Any]:
    """nDCG@10 and log-likelihood, of all positions, of those whose item training shows, and of the others."""
    windows = Windows(data, split, _window(network), device=device)
    rows, b = network.embedding if table is None else table, network.heads["policy"].bias if bias is None else bias
    known = torch.from_numpy(data.known_items).to(device)
    gains, logps, warm, mass = [], [], [], []
    for batch in windows.in_order(1024):
        hidden = network.hidden_without_dropout(batch)[batch.scored]
        logits = hidden @ rows.T + b
        target = batch.item[batch.scored]
        logp = torch.log_softmax(logits, 1)
        logps.append(logp.gather(1, target[:, None]).squeeze(1))
        mass.append(logp.exp()[:, ~known].sum(1))
        row, seen = batch.row, batch.previous_item
        inside = seen >= 0
        at_target = logits.gather(1, target[:, None])
        logits[row[inside], seen[inside]] = -torch.inf
        logits.scatter_(1, target[:, None], at_target)
        rank = (logits > at_target).sum(1)
        gains.append(torch.where(rank < 10, 1 / torch.log2(rank + 2.0), 0.0))
        warm.append(known[target])
    gain, logp, is_warm, held = (torch.cat(each) for each in (gains, logps, warm, mass))
    say = {
        "ndcg": float(gain.mean()),
        "logp": float(logp.mean()),
        "n": len(gain),
        "mass": float(held.mean()),
        "most": float(held.max()),
    }
    if not bool(is_warm.all()):
        say |= {
            "warm": float(gain[is_warm].mean()),
            "cold": float(gain[~is_warm].mean()),
            "n_cold": int((~is_warm).sum()),
            "logp_warm": float(logp[is_warm].mean()),
        }
    return say


def _window(network: Any) -> Any:
    from localpolicy.data.config import WindowConfig

    return WindowConfig(length=network.length)


@torch.no_grad()
def cold_rows(policy: Any, folder: Path, columns: list[str], data: Prepared, device: str) -> dict[str, Any]:
    """Ways to give rows to items that training never shows."""
    from safetensors.torch import load_file

    network = policy.network
    state = {name: tensor.to(device) for name, tensor in load_file(folder / "policy.safetensors").items()}
    known_np = data.known_items
    known = torch.from_numpy(known_np).to(device)
    fitted = ItemFeatures.fit(data.catalogue, columns, known_np)
    encoded = fitted.encode(data.catalogue)
    x = torch.zeros(data.n_items, encoded.n_features, device=device)
    item = np.repeat(np.arange(data.n_items), np.diff(encoded.offsets))
    x.index_put_(
        (torch.from_numpy(item).to(device), torch.from_numpy(encoded.row).to(device)),
        torch.from_numpy(encoded.weight).to(device),
        accumulate=True,
    )
    said = x @ state["features.weight"]
    rows, bias = state["embedding"], state["heads.policy.bias"]
    results: dict[str, Any] = {}
    for shift in (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0):
        for split in ("test",):
            own, alone = rows.clone(), bias.clone()
            own[~known], alone[~known] = said[~known], (x @ state["features.policy"])[~known] + shift
            results[f"xW {shift:+g}"] = measured(network, data, split, device, own, alone)
    idf = torch.log(known.sum() / x[known].gt(0).sum(0).clamp(min=1.0))
    spaces = {"raw": x * idf, "learnt": said}
    for name, space in spaces.items():
        unit = torch.nn.functional.normalize(space, dim=1)
        near = unit[~known] @ unit[known].T
        for k, heat in ((5, 0.05), (20, 0.05), (50, 0.05), (20, 0.2)):
            value, at = near.topk(k, dim=1)
            share = torch.softmax(value / heat, 1)
            mixed, b = rows.clone(), bias.clone()
            mixed[~known] = (share[:, :, None] * rows[known][at]).sum(1)
            weight = torch.zeros(int(known.sum()), device=device).index_add_(0, at.flatten(), share.flatten())
            for shift in (-1.0, 0.0, 0.5, 1.0):
                b[~known] = (share * bias[known][at]).sum(1) + shift
                found = measured(network, data, "test", device, mixed, b)
                results[f"near {name} k={k} heat={heat} {shift:+g}"] = {**found, "bound": float(weight.max())}
    # What validation says: known items as if they were cold, by both ways.
    return results


def one(given: argparse.Namespace) -> None:
    """Train one run and measure it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    changes = {name: json.loads(value) for name, value in (each.split("=", 1) for each in given.changes)}
    for name, module in (("OF_FEATURES", setup), ("POWER", item_features)):
        if name in changes:
            setattr(module, name, changes.pop(name))
    data = Prepared(given.out / given.data)
    began = time.perf_counter()
    name = (
        "-".join([given.data, given.variant, *given.changes, str(given.seed)])
        .replace("=", "")
        .replace(".", "_")
        .replace('"', "")
        .replace("[", "")
        .replace("]", "")
    )
    features = [] if given.variant == "ids" else item_features.learnt_columns(data.catalogue)
    run = train(
        data, "mle", out=given.runs / name, force=True, seed=given.seed, device=device, features=features, **changes
    )
    seconds = time.perf_counter() - began
    policy = run.policy()
    policy.network.to(device)
    line = {
        "set": str(given.out),
        "data": given.data,
        "variant": given.variant,
        "changes": given.changes,
        "seed": given.seed,
        "seconds": round(seconds, 1),
        "epochs": run.manifest["epochs"],
        "steps": run.manifest["steps"],
    }
    for split in ("validation", "test"):
        line[split] = measured(policy.network, data, split, device)
    if given.data == "cold" and features:
        line["ways"] = cold_rows(policy, run.folder, features, data, device)
    with given.json.open("a") as file:
        file.write(json.dumps(line) + "\n")


def new_items(folder: Path, arm: str) -> dict[str, list[float]]:
    """J of round 1 by seed, and share, reward and number of its new items, and of known ones of equal reward."""
    figures: dict[str, list[float]] = {}
    for seed in sorted(folder.glob("seed-*")):
        world = load_world(seed / "start" / "data")
        assert isinstance(world, BanditWorld)
        share_XV = world.table(PolicyAgent(Run(seed / arm / "round-01" / "run").policy(), world))
        first, now, often = world.on_sale(0), world.on_sale(1), world.context_probabilities
        mass, worth = often @ share_XV, (often @ world.reward)[:now]
        new, good = np.arange(now) >= first, worth >= np.quantile(worth, 2 / 3)
        held = share_XV[:, first:now].sum(1)
        for name, value in {
            "J": world.value(share_XV),
            "mass of the new": mass[first:now].sum(),
            "most relative to the others in a context": (held / (1 - held)).max(),
            "J where new ones are shown": often
            @ (share_XV * world.reward)[:, first:now].sum(1)
            / mass[first:now].sum(),
            "a good new one, of a good known one": mass[:now][new & good].mean() / mass[:now][~new & good].mean(),
        }.items():
            figures.setdefault(name, []).append(float(value))
    return figures


def world(given: argparse.Namespace) -> None:
    """Both loops, and their J by round paired by seed."""
    for folder in (given.told, given.untold):
        for name, values in new_items(folder, given.arm).items():
            print(f"{folder.name}: {name}: {np.mean(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})")
    seeds = sorted(given.told.glob("seed-*"))
    for number in range(1, 100):
        at = [Path(given.arm) / f"round-{number:02d}" / "round.json"] * len(seeds)
        pairs = [
            [
                json.loads((folder / seed.name / each).read_text())["truth"]["mean"]
                for folder in (given.told, given.untold)
            ]
            for seed, each in zip(seeds, at, strict=True)
            if all((folder / seed.name / each).exists() for folder in (given.told, given.untold))
        ]
        if len(pairs) < 2:
            return
        more = np.array([told - untold for told, untold in pairs])
        error = float(stats.t.ppf(0.975, len(more) - 1) * more.std(ddof=1) / np.sqrt(len(more)))
        print(
            f"round {number}: J {np.mean(pairs, 0).round(4)}, more by features {more.mean():+.4f} ± {error:.4f} (95 %)"
        )


def main() -> None:
    """Make the data sets, or train one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    made = verbs.add_parser("prepare")
    made.add_argument("name", choices=("beauty", "toys"))
    made.add_argument("--raw", type=Path, required=True)
    made.add_argument("--out", type=Path, required=True)
    trained = verbs.add_parser("one")
    trained.add_argument("out", type=Path)
    trained.add_argument("--data", default="true", choices=("true", "shuffled", "cold"))
    trained.add_argument("--variant", default="attributes", choices=("ids", "attributes"))
    trained.add_argument("--seed", type=int, default=0)
    trained.add_argument("--runs", type=Path, default=Path("runs"))
    trained.add_argument("--json", type=Path, default=Path("features.jsonl"))
    trained.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE")
    looped = verbs.add_parser("world")
    looped.add_argument("told", type=Path, help="a loop whose policies use the item table")
    looped.add_argument("untold", type=Path, help="the same without")
    looped.add_argument("--arm", default="lpi_cb")
    given = parser.parse_args()
    if given.verb == "prepare":
        make(given.name, given.raw, given.out)
    else:
        (one if given.verb == "one" else world)(given)


if __name__ == "__main__":
    main()
