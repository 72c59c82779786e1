"""Table 3 of the paper on real logs of clicks and purchases, and the ablation of why: all parts on one machine.

    python benchmarks/real_table3.py --data buyers --second films --out table3 [--minutes 8] [--processes 10]

Each part is one `lpi paper table3` in a folder of its own under --out, with the figures it needs to continue; parts
run side by side, in their order, as far as the processes reach. --pack FILE collects the figures of all parts every
half minute, and --unpack FILE begins from such a file. `--data` and `--second` are prepared folders; next to the
first, folders of its name with `-click0` and `-click1` hold it with other rewards of a click, and one with `-store` the
answers in a simulated store. A part without its data is left out. --set is passed on to every part.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

# In an order that has the comparison first where time is short.
EVERY = "--only mle,sac,sqn,lpi_observed,lpi_observed_dial,reward_weighted,lpi_observed_td,lpi_rl,pg,ips_pg"
PAPER = "--only mle,reward_weighted,pg,ips_pg,sqn,sac,lpi_rl,lpi_observed"  # on the paper's network
SHORT = "--only mle,sqn,sac,lpi_observed --rates 0.001 --lambdas 1 --betas 1.5 --seeds 3 --network ours"
KNOWN = "--only mle,sac,lpi_observed_dial,reward_weighted --rates 0.001 --lambdas 1 --seeds 2 --network ours --truth"
PARTS = {  # name: data ("" is --data, "2" --second, else a suffix of --data), processes, options
    "ours": ("", 8, f"{EVERY} --network ours --keep runs"),  # runs: for observed_dial.py
    "paper": ("", 2, PAPER),
    "stops": ("", 2, f"{PAPER} --set train.epochs=400 --set train.patience=12"),
    "second": ("2", 5, f"{EVERY} --network ours"),
    "plain": ("", 3, SHORT),
    "length20": ("", 3, f"{SHORT} --set data.length=20"),
    "untied": ("", 3, f"{SHORT} --set model.tied=false"),
    "click0": ("-click0", 3, SHORT),
    "click1": ("-click1", 3, SHORT),
    "epochs8": ("", 3, f"{SHORT} --set train.epochs=8 --set train.patience=null"),
    "by-likelihood": ("", 3, f"{SHORT} --set train.select=logp"),
    "by-purchases": ("", 3, f"{SHORT} --set train.select=purchase.nDCG@20"),
    "length5": ("", 3, f"{SHORT} --set data.length=5"),
    "truth": ("-store", 3, f"{KNOWN} --betas 1.5,3,6"),
    "length20-untied": ("", 3, f"{SHORT} --set data.length=20 --set model.tied=false"),
}


@dataclass
class Part:
    """A part at work."""

    name: str
    processes: int
    process: subprocess.Popen[bytes]


def main() -> None:
    """Start the parts in turn, and pack what they have found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--second", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--seeds", type=int, help="instead of each part's own")
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--unpack", type=Path)
    given = parser.parse_args()
    end = time.time() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    if given.unpack is not None:
        with tarfile.open(given.unpack) as archive:
            archive.extractall(given.out, filter="data")
    run(given, end)


def run(given: argparse.Namespace, end: float) -> None:
    """The parts, as many at a time as there are processes for."""
    waiting, working, packed = given.parts.split(","), list[Part](), time.time()
    while waiting or working:
        for part in [part for part in working if part.process.poll() is not None]:
            working.remove(part)
            print(f"{time.strftime('%X')} {part.name}: exit code {part.process.returncode}", flush=True)
        free = given.processes - sum(part.processes for part in working)
        while waiting and free > 0 and time.time() < end - 20:
            begun = begin(waiting.pop(0), given, free, end)
            if begun is not None:
                working.append(begun)
                free -= begun.processes
        if not working and time.time() >= end - 20:
            break
        if given.pack and time.time() > packed + 30:
            pack(given.out, given.pack)
            packed = time.time()
        time.sleep(0.5)
    if given.pack:
        pack(given.out, given.pack)


def begin(name: str, given: argparse.Namespace, free: int, end: float) -> Part | None:
    """One part, with no more processes than are free; None without its data."""
    where, processes, options = PARTS[name]
    data = given.second if where == "2" else given.data.with_name(given.data.name + where)
    if data is None or not data.exists():
        return None
    processes = min(processes, free)
    out = given.out / name
    command = [sys.executable, "-m", "localpolicy", "paper", "table3", "--data", str(data), "--out", str(out)]
    command += ["--processes", str(processes), "--device", given.device, "--keep", "figures", *options.split()]
    for change in given.set:
        command += ["--set", change]
    if given.seeds:
        command += ["--seeds", str(given.seeds)]
    if given.minutes < 1e6:
        command += ["--minutes", f"{max(0.1, (end - time.time()) / 60):.2f}"]
    out.mkdir(parents=True, exist_ok=True)
    print(f"{time.strftime('%X')} {name}: {' '.join(command[2:])}", flush=True)
    with (out / "log").open("ab") as log:
        return Part(name, processes, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))


def pack(out: Path, file: Path) -> None:
    """The figures and the tables of all parts, without weights."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}")
    with tarfile.open(partial, "w:gz") as archive:
        for path in sorted(out.rglob("*")):
            parts = path.relative_to(out).parts
            wanted = "figures" in parts or (len(parts) == 2 and path.is_file())
            if wanted and path.is_file() and not path.name.startswith("."):
                archive.add(path, str(path.relative_to(out)))
    partial.replace(file)


if __name__ == "__main__":
    main()
