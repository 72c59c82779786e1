"""Lists per second of `lpi recommend`, RecTools and RePlay: the same histories, catalogue, width, length and k.

    python benchmarks/lists.py rectools=/path/to/python replay=/path/to/python

Each peer needs an environment of its own. Networks are hardly trained: only the time of lists is measured, after one
round that warms up, in turns, with one thread each: by the clock, and by CPU time, which other work on the machine
disturbs less. Ours reads Parquet and writes Parquet; RecTools begins with its
data set and ends with its frame, both in memory; RePlay reads Parquet and ends with a frame in memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PEERS = Path(__file__).parent / "peers"
SETTINGS = {"items": 17_000, "width": 64, "length": 20, "k": 20, "batch": 1024, "threads": 1}


def histories(people: int, out: Path) -> None:
    """Ten events each, most recent last; the first people have seen every item, so that all are known."""
    rng = np.random.default_rng(0)
    item = rng.integers(0, SETTINGS["items"], 10 * people)
    item[: SETTINGS["items"]] = np.arange(SETTINGS["items"])
    person = np.repeat(np.arange(people), 10)
    pq.write_table(pa.table({"sequence_id": person, "item_id": item}), out)
    np.savez(out.with_suffix(".npz"), person=person, item=item)  # for an environment without pyarrow


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("peers", nargs="*", help="name=python")
    arguments.add_argument("--people", type=int, default=20_000)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    pythons = {"ours": sys.executable, **dict(peer.split("=", 1) for peer in given.peers)}
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "histories.parquet"
        histories(given.people, table)
        (Path(folder) / "settings.json").write_text(json.dumps(SETTINGS))
        seconds: dict[str, list[list[float]]] = {name: [] for name in pythons}
        for _ in range(given.rounds):
            for name, python in pythons.items():
                done = subprocess.run(
                    [python, str(PEERS / f"{name}_lists.py"), folder], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    raise SystemExit(done.stderr[-3000:])
                seconds[name].append([float(number) for number in done.stdout.split()[-2:]])
                print(f"{name}: {seconds[name][-1]} s", file=sys.stderr, flush=True)
    ours = np.median(seconds["ours"], axis=0)
    for name, times in seconds.items():
        clock, cpu = np.median(times, axis=0)
        print(
            f"{name:10} {given.people / clock:8,.0f} lists/s   {given.people / cpu:8,.0f} per CPU second   "
            f"ours is {clock / ours[0]:.2f} and {cpu / ours[1]:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
