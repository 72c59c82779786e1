"""Our defaults on public data against popularity, item-kNN and published figures: leave-one-out, whole catalogue.

    python benchmarks/public.py beauty --raw data/amazon-5core --out public/beauty
    python benchmarks/public.py retailrocket-views --raw data/retailrocket --out public/views --seeds 3

No training setting is given. Of every sequence the last event is the test; items that it held before are not ranked.
`--raw` holds the raw file; a data set under OUT/data is taken as it is. The table goes to OUT/public.md,
every run's figures to OUT/public.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.measure.evaluate import evaluate
from localpolicy.measure.evaluation import Evaluation
from localpolicy.runs.baselines import fit_baseline
from localpolicy.training.train import train

METRICS = ("HR@5", "HR@10", "HR@20", "nDCG@5", "nDCG@10", "nDCG@20")
BASELINES = ("popularity", "item-knn")


@dataclass(frozen=True)
class Public:
    """One data set: its file, how it is read, and what others have published on the same protocol."""

    file: str
    settings: dict[str, Any]
    published: dict[str, dict[str, float]] = field(default_factory=dict)  # by source, by metric


REVIEWS = {"columns": {"sequence_id": "user_id"}, "event": "click"}
S3REC = "Zhou et al. 2020 (S3-Rec), as reported by Rajput et al. 2023"
SASREC = "Kang and McAuley 2018 (SASRec), as reported by Rajput et al. 2023"
TIGER = "Rajput et al. 2023 (TIGER)"
ESASREC = "RecTools' eSASRec study, the best there"
SETS = {
    "beauty": Public(
        "beauty_sequences.parquet",
        REVIEWS,
        {
            SASREC: {"HR@5": 0.0387, "nDCG@5": 0.0249, "HR@10": 0.0605, "nDCG@10": 0.0318},
            S3REC: {"HR@5": 0.0387, "nDCG@5": 0.0244, "HR@10": 0.0647, "nDCG@10": 0.0327},
            TIGER: {"HR@5": 0.0454, "nDCG@5": 0.0321, "HR@10": 0.0648, "nDCG@10": 0.0384},
            ESASREC: {"nDCG@10": 0.0531},
        },
    ),
    "toys": Public(
        "toys_sequences.parquet",
        REVIEWS,
        {
            SASREC: {"HR@5": 0.0463, "nDCG@5": 0.0306, "HR@10": 0.0675, "nDCG@10": 0.0374},
            S3REC: {"HR@5": 0.0443, "nDCG@5": 0.0294, "HR@10": 0.0700, "nDCG@10": 0.0376},
            TIGER: {"HR@5": 0.0521, "nDCG@5": 0.0371, "HR@10": 0.0712, "nDCG@10": 0.0432},
            ESASREC: {"nDCG@10": 0.0580},
        },
    ),
    "movielens-small": Public(
        "ratings.parquet",
        {
            "columns": {"sequence_id": "user_id", "item_id": "movie_id", "event": "rating"},
            "rewards": ">=4=1,>=3=0.5,*=0",
        },
    ),
    "retailrocket-views": Public(
        "cotrec_train_view_sequences.parquet", {"columns": {"sequence_id": "seq_id"}, "event": "click"}
    ),
}


def measured(evaluation: Evaluation) -> dict[str, float]:
    """The figures of all positions, and their mean log-likelihood."""
    figures = {name: float(evaluation.metrics["all"][name].mean) for name in METRICS}
    return {**figures, "logp": float(evaluation.scores.logp.mean())}


def main() -> None:
    """Prepare, fit, train, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--raw", type=Path, help="folder of the raw file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    about = SETS[given.set]
    folder = given.out / "data"
    if not (folder / "manifest.json").exists():
        if given.raw is None:
            parser.error("--raw is missing: name the folder of the raw file")
        prepare(given.raw / about.file, out=folder, split="last", keep_log=False, **about.settings)
    data = Prepared(folder)
    protocol = {"split": "test", "exclude_seen": True, "metrics": METRICS, "batch_size": 1024}
    rows: dict[str, list[dict[str, float]]] = {}
    for name in BASELINES:
        fit_baseline(name, data, out=given.out / name, force=True)
        scored = evaluate(given.out / name, data=data, config=protocol, device=given.device)
        rows[name] = [measured(scored)]
    changes = dict(change.split("=", 1) for change in given.changes)
    settings = {name: json.loads(value) for name, value in changes.items()}
    ours, facts = rows.setdefault("ours (mle, no setting given)", []), []
    for seed in range(given.seeds):
        began = time.perf_counter()
        out = given.out / f"mle-seed={seed}"
        run = train(data, "mle", out=out, force=True, seed=seed, device=given.device, **settings)
        seconds = time.perf_counter() - began
        ours.append(measured(evaluate(run, data=data, config=protocol, device=given.device)))
        manifest = run.manifest
        facts.append({"seconds": round(seconds, 1), "epochs": manifest["epochs"], "auto": manifest.get("auto")})
    device = torch.cuda.get_device_name() if torch.cuda.is_available() and given.device != "cpu" else "CPU"
    text = table(given.set, data, about, rows, facts, device)
    (given.out / "public.md").write_text(text)
    content = {"set": given.set, "device": device, "rows": rows, "published": about.published, "runs": facts}
    (given.out / "public.json").write_text(json.dumps(content, indent=1))
    print(text)


def table(
    name: str, data: Prepared, about: Public, rows: dict[str, list[dict[str, float]]], facts: list[Any], device: str
) -> str:
    """Markdown: mean and standard deviation over seeds where there are several."""
    counts = data.manifest["counts"]
    events = sum(counts["events"].values())
    epochs = ", ".join(str(fact["epochs"]) for fact in facts)
    seconds = np.mean([fact["seconds"] for fact in facts])
    lines = [
        f"## {name}",
        "",
        f"{counts['sequences']:,} sequences, {counts['items']:,} items, {events:,} events; {len(facts)} seeds, {epochs}"
        f" epochs, {seconds:.0f} s a run on {device}.",
        "",
        f"| | {' | '.join(METRICS)} | log-likelihood |",
        f"|---|{'--:|' * (len(METRICS) + 1)}",
    ]
    for who, figures in rows.items():
        cells = [_cell([each[metric] for each in figures], 4) for metric in METRICS]
        lines.append(f"| {who} | {' | '.join(cells)} | {_cell([each['logp'] for each in figures], 3)} |")
    for who, published in about.published.items():
        cells = [f"{published[metric]:.4f}" if metric in published else "" for metric in METRICS]
        lines.append(f"| {who} | {' | '.join(cells)} | |")
    return "\n".join(lines) + "\n"


def _cell(values: list[float], digits: int) -> str:
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
