"""Our plain sequence model compared with two peers' SASRec and item neighbours: one split, one judge.

    python benchmarks/sequence_models.py buyers|views FOLDER --out OUT [--rectools PYTHON] [--replay PYTHON]

FOLDER holds RetailRocket's sequences as Parquet: `retail_beh_buyer_sequences` (views and carts of buyers; an item put
into the cart is a purchase, as in the paper) or `cotrec_{train,test}_view_sequences`. Sequences are split 80/10/10 at
random. Each peer is fitted on the training split by its own fit loop with the same shape, learning rate, batch size and
full softmax, keeps its best epoch on the validation split, and writes its 20 best items after every prefix of the test
sequences; these lists are judged by our evaluation, as the lists of any recommender are. Ours is `mle` with the same
shape and otherwise its defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.data.config import WindowConfig
from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.divergence import Reference
from localpolicy.measure.estimate import mean_estimate
from localpolicy.measure.evaluate import measure
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.model.baselines import ItemNeighbours
from localpolicy.model.deployable import Deployable
from localpolicy.model.list_policy import read_list_policy
from localpolicy.runs.config import config_of
from localpolicy.training.train import train

PEERS = Path(__file__).parent / "peers"
FILES = {
    "buyers": ("retail_beh_buyer_sequences",),
    "views": ("cotrec_train_view_sequences", "cotrec_test_view_sequences"),
}
EVENTS = np.array(["click", "purchase"])  # 0 a view, 1 an item put into the cart; 2, a transaction, repeats the cart
SHAPE: dict[str, Any] = {  # of all of them
    "width": 64, "blocks": 1, "heads": 1, "dropout": 0.2, "length": 50, "batch": 128, "rate": 1e-3,
    "epochs": 40, "patience": 4, "seed": 0,
}  # fmt: skip
FIGURES = ("HR@20", "nDCG@20")


def main() -> None:
    """Fit all of them on one data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(FILES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rectools", type=Path, help="the Python of its environment")
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=f"of {', '.join(SHAPE)}")
    parser.add_argument("--ours", action="append", default=[], metavar="KEY=VALUE", help="another `mle`, as tied=false")
    parser.add_argument("--most", type=int, help="sequences, for a quick try")
    given = parser.parse_args()
    shape = SHAPE | {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in given.set)}
    given.out.mkdir(parents=True, exist_ok=True)
    log = interactions_of(given.folder, given.kind, given.most)
    data = prepare(log, out=given.out / "data", rewards="click=0.2,purchase=1")
    _export(data, given.out, shape | {"accelerator": "gpu" if given.device == "cuda" else "cpu"})
    fitting = {}
    for name in ("rectools", "replay"):
        if python := getattr(given, name):
            with (given.out / f"{name}.log").open("w") as log:
                command = [str(python), str(PEERS / f"{name}_ranking.py"), str(given.out)]
                fitting[name] = subprocess.Popen(command, stdout=log, stderr=log, env=_environment(name))
    shown: dict[str, Deployable] = {}
    for changes in [{}, *({key: json.loads(value)} for key, value in (pair.split("=", 1) for pair in given.ours))]:
        began = time.perf_counter()
        named = {"length", "epochs", "patience", "seed", "width", "blocks", "heads", "dropout"}
        settings = {name: value for name, value in shape.items() if name in named}
        settings |= {
            "batch_size": shape["batch"],
            "learning_rate": shape["rate"],
            "device": given.device,
            "capture": False,
            **changes,
        }
        name = "mle" + "".join(f" {key}={value}" for key, value in changes.items())
        run = train(data, out=given.out / name.replace(" ", "-"), config=config_of("mle", **settings))
        shown[name] = run.policy()
        shown[name].network.to(given.device)  # type: ignore[attr-defined]
        print(f"{name}: epoch {run.manifest['selected']['epoch']}, {time.perf_counter() - began:.0f} s", flush=True)
    shown["item-kNN"] = ItemNeighbours.fit(data)
    for name, process in fitting.items():
        if process.wait() == 0:
            shown[name] = read_list_policy(_lists(data, given.out, name), data, "test")
            print((given.out / f"{name}.json").read_text(), flush=True)
        else:
            print(f"{name} failed:", *(given.out / f"{name}.log").read_text().splitlines()[-5:], sep="\n", flush=True)
    config = EvaluateConfig(metrics=FIGURES)
    window = WindowConfig(length=shape["length"])
    results = {
        name: measure(Candidate(name, policy, Reference(name, name)), data, window=window, config=config)
        for name, policy in shown.items()
    }
    print(f"{given.kind}: {data.manifest['counts']}")
    print(json.dumps(shape))
    for line in table(results):
        print(line)


def interactions_of(folder: Path, kind: str, most: int | None = None) -> pa.Table:
    """All sequences of the files, numbered on, in the files' order."""
    columns: dict[str, list[np.ndarray]] = {"sequence_id": [], "item_id": [], "event": []}
    first = 0
    for name in FILES[kind]:
        table = pq.read_table(folder / f"{name}.parquet")
        identity = table["seq_id"].to_numpy()
        if "split" in table.column_names:
            identity = identity + 1_000_000 * table["split"].to_numpy().astype(np.int64)
        number = first + np.concatenate([[0], (np.diff(identity) != 0).cumsum()])
        event = table["event"].to_numpy() if "event" in table.column_names else np.zeros(len(table), np.int8)
        kept = (event < len(EVENTS)) & (True if most is None else number < first + most)
        first = int(number.max()) + 1
        for key, values in zip(columns, (number, table["item_id"].to_numpy(), EVENTS[event.clip(max=1)]), strict=True):
            columns[key].append(values[kept])
    found = {name: np.concatenate(parts) for name, parts in columns.items()}
    return pa.table({**found, "timestamp": np.arange(len(found["item_id"]))})


def _export(data: Prepared, folder: Path, settings: dict[str, Any]) -> None:
    """What the peers read: every split's sequences in our numbering, and the settings."""
    for split in ("train", "validation", "test"):
        np.save(folder / f"{split}.offsets.npy", np.asarray(data[split].offsets))
        np.save(folder / f"{split}.item.npy", np.asarray(data[split].arrays["item"]))
    (folder / "settings.json").write_text(json.dumps({**settings, "items": data.n_items}))


def _lists(data: Prepared, folder: Path, name: str) -> Path:
    """A peer's lists in the form in which any recommender's can be given to `lpi compare`."""
    sequence, after, items = (np.load(folder / f"{name}.{part}.npy") for part in ("sequence", "after", "items"))
    identity = np.asarray(data.sequence_ids("test"))[sequence]
    each = items.shape[1]
    columns = {
        "sequence_id": np.repeat(identity, each),
        "after": np.repeat(after, each),
        "item_id": data.catalogue["item_id"].to_numpy()[items.ravel()],
        "rank": np.tile(np.arange(1, each + 1), len(items)),
    }
    path = folder / f"{name}.lists.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def _environment(name: str) -> dict[str, str]:
    """A peer's modules, where they lie in a folder and not in an environment."""
    path = os.environ.get(f"{name.upper()}_PATH", "")
    return {**{key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, "PYTHONPATH": path}


def table(results: dict[str, Evaluation]) -> list[str]:
    """Every model's figures, and how far ours is ahead of it, with errors by sequence."""
    ours = results["mle"]
    columns = [f"{group}.{figure}" for group in ours.metrics if group in ("purchase", "all") for figure in FIGURES]
    lines = ["| model | " + " | ".join(columns) + " | " + " | ".join(f"ours less, {name}" for name in columns) + " |"]
    lines.append("|---|" + "--:|" * 2 * len(columns))
    for name, result in results.items():
        cells = [f"{result.estimate(column).mean:.4f} ± {result.estimate(column).se:.4f}" for column in columns]
        for column in columns:
            mine, sequence = ours.values(column)
            ahead = mean_estimate(mine - result.values(column)[0], sequence)
            cells.append("" if name == "mle" else f"{ahead.mean:+.4f} ± {ahead.se:.4f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
