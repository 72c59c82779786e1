"""Seconds of training until the test split's nDCG@10 reaches a bar, by default .05 on Amazon Beauty.

    python benchmarks/time_to_quality.py --raw data/amazon-5core --out quality [--device cuda] [--minutes 5]
    python benchmarks/time_to_quality.py --raw … --out … --rectools rectools-env/bin/python      and RecTools' SASRec

Leave-one-out as in `public.py`: the last event of every sequence is the test, items that it held before are not ranked.
Ours is `mle` with no setting given, and the weights are those that a run would keep (averaged). Time runs from the
first step, validations included; what this script measures after each epoch is left out, on both sides. The bar is
looked at on the test split: this times a method, it chooses nothing. RecTools has the shape and batch that ours chose.
Every epoch's seconds and nDCG@10 go to OUT/NAME.json as they are measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from public import SETS

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.divergence import Reference
from localpolicy.measure.evaluate import measure
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.runs.config import Config
from localpolicy.runs.run import Run
from localpolicy.training.average import averaged
from localpolicy.training.setup import resolve
from localpolicy.training.trainer import Trainer

FIGURE = "nDCG@10"


class Reached(Exception):
    """Long enough."""


def ours(data: Prepared, out: Path, *, device: str, bar: float, minutes: float, epochs: int | None) -> dict[str, Any]:
    """Train until the bar is reached; the curve."""
    train = {"device": device, **({} if epochs is None else {"epochs": epochs})}
    config = resolve(Config.parse({"objective": {"name": "mle"}, "train": train}), data)
    trainer = Trainer.start(data, Run(out / "run"), config)
    protocol = EvaluateConfig(exclude_seen=True, metrics=(FIGURE,), batch_size=1024)
    curve: list[dict[str, float]] = []
    validated, began, spent = trainer._validated, time.perf_counter(), 0.0

    def watched(done: Any, log: Any, *, epoch: int) -> Any:
        nonlocal spent
        result = validated(done, log, epoch=epoch)
        paused = time.perf_counter()
        with averaged(trainer.optimiser):
            mine = Candidate("mle", trainer.policy(), Reference("mle", "mle"))
            found = measure(mine, data, window=config.data, config=protocol)
        figure = float(found.metrics["all"][FIGURE].mean)
        curve.append({"epoch": epoch, "seconds": paused - began - spent, FIGURE: figure})
        spent += time.perf_counter() - paused
        (out / "ours.json").write_text(json.dumps(facts))
        print(f"ours: epoch {epoch}, {curve[-1]['seconds']:.1f} s, {FIGURE} {figure:.4f}", flush=True)
        if figure >= bar or curve[-1]["seconds"] > 60 * minutes:
            raise Reached
        return result

    chosen = {"width": config.model.width, "blocks": config.model.blocks, "heads": config.model.heads,
              "dropout": config.model.dropout, "length": config.data.length, "batch": config.train.batch_size,
              "rate": config.train.learning_rate, "seed": 0}  # fmt: skip
    facts: dict[str, Any] = {"bar": bar, "device": device, "settings": chosen, "curve": curve}
    trainer._validated = watched  # type: ignore[method-assign]
    with suppress(Reached):
        trainer.train(resume=False)
    return facts


def rectools(python: str, data: Prepared, out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Metrics by epoch of RecTools' SASRec, in its own environment."""
    for split in ("train", "test"):
        np.save(out / f"{split}.offsets.npy", np.asarray(data[split].offsets))
        np.save(out / f"{split}.item.npy", np.asarray(data[split].arrays["item"]))
    (out / "settings.json").write_text(json.dumps({**settings, "items": data.n_items}))
    script = Path(__file__).parent / "peers" / "rectools_quality.py"
    subprocess.run([python, str(script), str(out)], check=True)
    found: dict[str, Any] = json.loads((out / "rectools.json").read_text())
    return found


def said(name: str, facts: dict[str, Any]) -> str:
    """One line of a table."""
    curve = facts["curve"]
    reached = next((point for point in curve if point[FIGURE] >= facts["bar"]), None)
    best = max(curve, key=lambda point: point[FIGURE])
    when = "not reached" if reached is None else f"{reached['seconds']:.1f} s, epoch {reached['epoch']}"
    return f"| {name} | {when} | {best[FIGURE]:.4f} | {curve[-1]['seconds'] / len(curve):.2f} |"


def main() -> None:
    """Prepare, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="beauty", choices=SETS)
    parser.add_argument("--raw", type=Path, help="folder of the raw file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--bar", type=float, default=0.05)
    parser.add_argument("--minutes", type=float, default=10.0, help="most minutes of training, each")
    parser.add_argument("--epochs", type=int, help="most epochs (default: ours as by default)")
    parser.add_argument("--rectools", metavar="PYTHON", help="of the environment that RecTools is installed in")
    given = parser.parse_args()
    about, folder = SETS[given.set], given.out / "data"
    if not (folder / "manifest.json").exists():
        if given.raw is None:
            parser.error("--raw is missing: name the folder of the raw file")
        prepare(given.raw / about.file, out=folder, split="last", keep_log=False, **about.settings)
    data = Prepared(folder)
    limits = {"bar": given.bar, "minutes": given.minutes}
    facts = {"ours (mle, no setting given)": ours(data, given.out, device=given.device, epochs=given.epochs, **limits)}
    if given.rectools is not None:
        (mine,) = facts.values()
        settings = {**mine["settings"], **limits, "epochs": given.epochs or 200, "device": given.device}
        facts["RecTools' SASRec, the same shape"] = rectools(given.rectools, data, given.out, settings)
    print(f"| {given.set} | to {FIGURE} {given.bar} | best seen | seconds per epoch |\n|---|---|--:|--:|")
    for name, each in facts.items():
        print(said(name, each))


if __name__ == "__main__":
    main()
