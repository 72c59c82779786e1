"""Verdicts and times of `lpi go` on real logs: each as a file on the command line, and as a frame in Python.

    python benchmarks/real_logs.py DATA --out FILE.jsonl [--only TEXT ...] [--minutes 2] [--processes 2] [--busy 4]
    python benchmarks/real_logs.py --table FILE.jsonl

DATA is a folder of public logs (Amazon 5-core, MovieLens latest-small, Open Bandit's sample, RetailRocket), the same as
for `public.py`. From MovieLens come a log of watch ratios (its ratings, with noise), of clicks alone, with times in
milliseconds, and without times in two orders. Each command has two cores of its own; `--busy N` lets N loops run on the
same two cores, to see whether the minutes are kept under load.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from collect import read


def movielens(data: Path) -> pa.Table:
    """User, film, rating, time."""
    return pq.read_table(data / "movielens-latest-small-2016" / "ratings.parquet")


def watched(data: Path) -> pa.Table:
    """Watch ratios as the only reward."""
    log = movielens(data)
    noise = 0.15 * np.random.default_rng(0).standard_normal(len(log))
    ratio = np.clip(log["rating"].to_numpy() / 5 + noise, 0.01, 2).round(3)
    return log.drop_columns("rating").append_column("watch_ratio", pa.array(ratio))


def in_milliseconds(data: Path) -> pa.Table:
    """The same ratings with another name and unit of time."""
    log = movielens(data)
    return log.drop_columns("timestamp").append_column("time_ms", pc.multiply(log["timestamp"], 1000))


def untimed(*order: str) -> Callable[[Path], pa.Table]:
    """Ratings without times, their rows in this order."""
    return lambda data: movielens(data).sort_by([(name, "ascending") for name in order]).drop_columns("timestamp")


def buyers(data: Path) -> pa.Table:
    """What buyers did, with names for the events' codes."""
    log = pq.read_table(data / "retailrocket" / "retail_beh_buyer_sequences.parquet")
    visit = pc.binary_join_element_wise(log["split"].cast(pa.string()), log["seq_id"].cast(pa.string()), "-")
    names = pa.array(["view", "addtocart", "transaction"])
    return pa.table({"visit": visit, "item_id": log["item_id"], "action": names.take(log["event"].combine_chunks())})


LOGS: dict[str, Callable[[Path], pa.Table]] = {
    "beauty": lambda data: pq.read_table(data / "amazon-5core" / "beauty_sequences.parquet"),
    "toys": lambda data: pq.read_table(data / "amazon-5core" / "toys_sequences.parquet"),
    "ratings": movielens,
    "watch ratios": watched,
    "clicks alone": lambda data: movielens(data).drop_columns("rating"),
    "time in ms": in_milliseconds,
    "no time": untimed("user_id", "timestamp"),
    "no time, sorted": untimed("user_id", "movie_id"),
    **{
        f"open bandit {policy} {part}": lambda data, policy=policy, part=part: pq.read_table(  # type: ignore[misc]
            data / "open-bandit-small" / f"{policy}_{part}.parquet"
        )
        for policy in ("random", "bts")
        for part in ("all", "men", "women")
    },
    "buyers": buyers,
    "buyers, codes": lambda data: pq.read_table(data / "retailrocket" / "retail_beh_buyer_sequences.parquet"),
    "views": lambda data: pq.read_table(data / "retailrocket" / "cotrec_train_view_sequences.parquet"),
}
IN_PYTHON = """
import sys
import pandas
import localpolicy as lp
if __name__ == "__main__":
    frame, out, minutes = sys.argv[1:]
    print(lp.go(pandas.read_parquet(frame), out=out, minutes=float(minutes)).answer)
"""
PINNED = """
import os, sys
os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
os.execv(sys.executable, sys.argv[2:])
"""
BUSY = "import time; end = time.time() + 3600\nwhile time.time() < end: pass"


def pinned(cores: set[int], *words: str) -> list[str]:
    """A call of Python on these cores alone."""
    return [sys.executable, "-c", PINNED, ",".join(map(str, cores)), sys.executable, *words]


def judge(name: str, data: Path, *, minutes: float, cores: set[int], busy: int) -> dict[str, Any]:
    """One log: the command, then the same in Python."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, table = Path(scratch), LOGS[name](data)
        stem = name.replace(" ", "_").replace(",", "")
        pq.write_table(table, folder / f"{stem}.parquet")
        log = folder / f"{stem}.parquet"
        if not name.startswith("open bandit"):
            log = folder / f"{stem}.csv"
            pa.csv.write_csv(table, log)
        line: dict[str, Any] = {"log": name, "rows": len(table), "minutes": minutes, "busy": busy}
        loops = [subprocess.Popen(pinned(cores, "-c", BUSY)) for _ in range(busy)]
        try:
            words = pinned(cores, "-m", "localpolicy", "go", str(log), "--out", str(folder / "go"), "--yes")
            began = time.monotonic()
            done = subprocess.run([*words, "--minutes", str(minutes)], capture_output=True, text=True, check=False)
            line |= {"exit": done.returncode, "seconds": round(time.monotonic() - began, 1)}
            line["said"] = [each for each in done.stderr.splitlines() if each.startswith(("note", "error"))]
            if (folder / "go" / "verdict.json").exists():
                verdict = json.loads((folder / "go" / "verdict.json").read_text())
                line |= {"answer": verdict["answer"], "sentence": verdict["sentence"], "read": verdict["read"]}
                line["checks"] = [
                    f"{each['figure']}: {each['outcome']}: {each['because']}" for each in verdict.get("checks", ())
                ]
            if not busy:
                words = pinned(
                    cores, "-c", IN_PYTHON, str(folder / f"{stem}.parquet"), str(folder / "py"), str(minutes)
                )
                done = subprocess.run(words, capture_output=True, text=True, check=False)
                line["in Python"] = (done.stdout.splitlines() or [done.stderr[-300:]])[-1]
        finally:
            for loop in loops:
                loop.kill()
    return line


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """A row per log."""
    yield "| log | rows | minutes | busy loops | seconds | times the minutes | exit | answer | in Python |"
    yield "|---|--:|--:|--:|--:|--:|--:|---|---|"
    for line in lines:
        times = line["seconds"] / (60 * line["minutes"])
        late = " (said first)" if any("even the least" in note for note in line["said"]) else ""
        yield (
            f"| {line['log']} | {line['rows']:,} | {line['minutes']:g} | {line['busy']} | {line['seconds']:.0f} | "
            f"{times:.2f}{late} | {line['exit']} | {line.get('sentence', '')} | {line.get('in Python', '')} |"
        )


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, help="a line of JSON for each log, as they end")
    parser.add_argument("--table", type=Path, help="show the lines of such a file")
    parser.add_argument("--only", nargs="*", default=[""], help="logs whose name holds one of these texts")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--processes", type=int, default=1, help="logs at a time, each on two cores")
    parser.add_argument("--busy", type=int, default=0, help="loops beside each")
    given = parser.parse_args()
    if given.table is not None:
        print(*table(read(given.table)), sep="\n")
        return
    cores, free = sorted(os.sched_getaffinity(0)), Queue[set[int]]()
    for number in range(given.processes):
        free.put({cores[(2 * number) % len(cores)], cores[(2 * number + 1) % len(cores)]})

    def work(name: str) -> None:
        mine = free.get()
        line = judge(name, given.data, minutes=given.minutes, cores=mine, busy=given.busy)
        free.put(mine)
        with given.out.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(work, [name for name in LOGS if any(text in name for text in given.only)]))
    print(*table(read(given.out)), sep="\n")


if __name__ == "__main__":
    main()
