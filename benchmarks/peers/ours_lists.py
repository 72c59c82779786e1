"""`lpi recommend`, Parquet to Parquet: ours_lists.py FOLDER. Run by benchmarks/lists.py."""

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import torch

import localpolicy as lp

folder = Path(sys.argv[1])
settings = json.loads((folder / "settings.json").read_text())
torch.set_num_threads(settings["threads"])
if not (folder / "run").exists():
    rows = pq.read_table(folder / "histories.parquet").slice(0, settings["items"] + 2000)
    events = rows.append_column("event", [["click"] * len(rows)])
    data = lp.prepare("events", events, out=folder / "data", min_events=0)
    changes = [f"model.width={settings['width']}", f"data.length={settings['length']}", "train.device=cpu"]
    lp.train(data, out=folder / "run", config=lp.configure(changes=[*changes, "objective.name=mle", "train.epochs=1"]))
pq.write_table(pq.read_table(folder / "histories.parquet").slice(0, 20_000), folder / "warm.parquet")
lp.recommend(folder / "run", histories=folder / "warm.parquet", out=folder / "warm-lists.parquet", k=settings["k"])
begin, spent = time.perf_counter(), time.process_time()
lp.recommend(folder / "run", histories=folder / "histories.parquet", out=folder / "ours.parquet", k=settings["k"])
print(time.perf_counter() - begin, time.process_time() - spent)
