"""Time and memory of preparing a YooChoose-sized log, and of the same preparation in Polars streaming.

    python benchmarks/prepare.py --polars VENV/bin/python --markdown table.md
    python benchmarks/prepare.py --polars VENV/bin/python --clicks 1_000_000
    python benchmarks/prepare.py --polars VENV/bin/python --raw data/yoochoose

A log of each wanted size (1, 10, 33 and 100 million clicks by default) is made by `lpi simulate yoochoose` where no
raw folder is given. Polars lives in a virtual environment of its own (`pip install polars numpy`), so that it is no
dependency of ours. Each preparation is a process of its own; its peak memory is the largest resident set the kernel
saw. Both filter sessions, index items, split, sort and write the same flat arrays; the arrays are compared. Ours also
checks every row, digests inputs and outputs. "of CPU" is the time that a busy machine stretches least.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

CLICKS = [1_000_000, 10_000_000, 33_000_000, 100_000_000]
CLICKS_PER_SESSION = 3.57  # of `lpi simulate yoochoose`
ARRAYS = ("offsets", "item", "event", "time")


def ours(raw: Path, out: Path, memory: str) -> None:
    from localpolicy.data.prepare import prepare

    prepare("yoochoose", [raw], out=out, memory=memory)


def spark(raw: Path, out: Path, memory: str) -> None:
    from localpolicy.data.prepare import prepare

    prepare("yoochoose", [raw], out=out, engine="spark", spark_master="local[*]")


def polars(raw: Path, out: Path, memory: str) -> None:
    """The same preparation, as a user of Polars would write it: lazy scans, the streaming engine, Parquet between."""
    import numpy as np
    import polars as pl

    def scan(name: str, columns: list[str], code: int) -> pl.LazyFrame:
        schema = dict.fromkeys(columns, pl.String) | {"session": pl.Int64, "item": pl.Int64}
        log = pl.scan_csv(raw / name, has_header=False, schema=schema)
        stamp = pl.col("time").str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ").dt.epoch("ms")
        return log.select("session", "item", time=stamp, event=pl.lit(code, pl.UInt8))

    out.mkdir()
    loaded = out / "loaded.parquet"
    clicks = scan("yoochoose-clicks.dat", ["session", "time", "item", "category"], 0)
    buys = scan("yoochoose-buys.dat", ["session", "time", "item", "price", "quantity"], 1)
    pl.concat([clicks, buys]).sink_parquet(loaded)
    events = pl.scan_parquet(loaded)
    sessions = events.filter(pl.col("event") == 0).group_by("session").len().filter(pl.col("len") > 2)
    kept = sessions.select("session").collect(engine="streaming")
    digests = [hashlib.md5(f"0:{session}".encode()).hexdigest()[:8] for session in kept["session"]]
    splits = [0 if digest < "cccccccc" else 1 if digest < "e6666666" else 2 for digest in digests]
    kept = kept.with_columns(split=pl.Series(splits, dtype=pl.UInt8))
    events = events.join(kept.lazy(), on="session")
    by_count = events.group_by("item").len().sort(["len", "item"], descending=[True, False])
    items = by_count.with_row_index("index").collect(engine="streaming")
    events = events.join(items.lazy().select("item", "index"), on="item")
    ordered = events.sort(["split", "session", "time", "event", "item"])
    for number, name in enumerate(("train", "validation", "test")):
        part = ordered.filter(pl.col("split") == number).select("session", "index", "event", "time")
        table = part.collect(engine="streaming")
        starts = np.flatnonzero(np.diff(table["session"].to_numpy(), prepend=-1))
        (out / name).mkdir()
        np.save(out / name / "offsets.npy", np.append(starts, len(table)).astype(np.int64))
        np.save(out / name / "item.npy", table["index"].to_numpy().astype(np.int32))
        np.save(out / name / "event.npy", table["event"].to_numpy())
        np.save(out / name / "time.npy", table["time"].to_numpy())
        reward = np.array([0.2, 1.0], dtype=np.float32)
        np.save(out / name / "reward.npy", reward[table["event"].to_numpy()])


WAYS = {"localpolicy": ours, "polars": polars, "spark": spark}


def measured(python: str, way: str, raw: Path, out: Path, memory: str) -> tuple[float, float, float]:
    """Seconds, seconds of CPU and peak GiB of one preparation in a process of its own."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [python, __file__, "--way", way, "--raw", str(raw), "--out", str(out), "--memory", memory]
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{way} failed")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def same_arrays(one: Path, other: Path) -> bool:
    import numpy as np

    files = [f"{split}/{name}.npy" for split in ("train", "validation", "test") for name in ARRAYS]
    return all(
        np.array_equal(np.load(one / file, mmap_mode="r"), np.load(other / file, mmap_mode="r")) for file in files
    )


def made(folder: Path, clicks: int) -> Path:
    """Simulated log of about `clicks` clicks."""
    options = ["--sequences", str(round(clicks / CLICKS_PER_SESSION)), "--out", str(folder), "--force"]
    command = [sys.executable, "-m", "localpolicy", "simulate", "yoochoose", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def compared(raw: Path, ways: dict[str, str], scratch: Path, *, memory: str, repeats: int) -> Iterator[dict[str, Any]]:
    """Measurements of each way in turn, so that a busy machine disturbs all of them equally."""
    for repeat in range(repeats):
        for way, python in ways.items():
            out = scratch / way
            shutil.rmtree(out, ignore_errors=True)
            seconds, cpu, peak = measured(python, way, raw, out, memory)
            events = sum(json.loads((scratch / "localpolicy" / "manifest.json").read_text())["rows"].values())
            same = same_arrays(scratch / "localpolicy", out)
            figures = {"events": events, "way": way, "seconds": seconds, "cpu_seconds": cpu, "peak_gib": peak}
            print(
                f"{events:>12,} {way:12} {seconds:>8.1f} {cpu:>7.1f} {peak:>9.2f}   {'same' if same else 'DIFFER'}",
                flush=True,
            )
            yield {**figures, "same": same, "repeat": repeat}
    for way in ways:
        shutil.rmtree(scratch / way)


def table(results: list[dict[str, Any]], ways: Iterable[str]) -> str:
    """Medians as Markdown; the ratio is of seconds, with that of CPU behind it."""

    def median(events: int, way: str, what: str) -> float:
        found = [row[what] for row in results if (row["events"], row["way"]) == (events, way)]
        return statistics.median(found) if found else float("nan")

    def cell(events: int, way: str) -> str:
        seconds, cpu, peak = (median(events, way, what) for what in ("seconds", "cpu_seconds", "peak_gib"))
        return "–" if math.isnan(seconds) else f"{seconds:.1f} s ({cpu:.1f} of CPU), {peak:.2f} GiB"

    def ratio(events: int, what: str) -> str:
        times = median(events, "polars", what) / median(events, "localpolicy", what)
        return "–" if math.isnan(times) else f"{times:.2f}"

    lines = [f"| events | {' | '.join(ways)} | Polars : ours, of CPU |", f"|--:|{'--:|' * len(list(ways))}--:|"]
    for events in sorted({row["events"] for row in results}):
        cells = [cell(events, way) for way in ways]
        ratios = f"{ratio(events, 'seconds')}, {ratio(events, 'cpu_seconds')}"
        lines.append(f"| {events / 1e6:.2f} M | {' | '.join(cells)} | {ratios} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, help="a folder with YooChoose's files")
    parser.add_argument("--clicks", type=int, nargs="*", default=CLICKS, help="simulate so many")
    parser.add_argument("--polars", help="the Python of a virtual environment with polars and numpy")
    parser.add_argument(
        "--polars-most", type=int, default=40_000_000, help="clicks beyond which ours is measured alone"
    )
    parser.add_argument("--spark", action="store_true", help="measure Spark in local mode too")
    parser.add_argument("--memory", default="1GB", help="DuckDB's limit")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="where logs and results go (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write every figure")
    parser.add_argument("--markdown", type=Path, help="write the table of medians")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        WAYS[options.way](options.raw, options.out, options.memory)
        return
    ways = {"localpolicy": sys.executable}
    ways |= {"polars": options.polars} if options.polars else {}
    ways |= {"spark": sys.executable} if options.spark else {}
    results: list[dict[str, Any]] = []
    print(f"{'events':>12} {'way':12} {'seconds':>8} {'of CPU':>7} {'peak GiB':>9}   arrays")
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        scratch = Path(folder)
        for clicks in [0] if options.raw else options.clicks:
            raw = options.raw or made(scratch / "raw", clicks)
            chosen = {way: python for way, python in ways.items() if way != "polars" or clicks <= options.polars_most}
            results += compared(raw, chosen, scratch, memory=options.memory, repeats=options.repeats)
    print(f"\n{table(results, list(ways))}")
    if options.markdown:
        options.markdown.write_text(table(results, list(ways)))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
