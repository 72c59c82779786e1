"""An `mle` step on a GPU, and those of RecTools' and RePlay's SASRec with full softmax, on the same sequences.

    python benchmarks/gpu_peers.py [--rectools PYTHON] [--replay PYTHON] [--items 48255] [--sequences 25600]

Peers train through their own fit loops, timed from the end of a warm-up to the end of the last step; ours is timed as
in gpu_step.py, and once as plain PyTorch with every sequence filled up to 20. Prints milliseconds per step of 256
sequences and ratios. A peer whose Python is not given is left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import torch
from gpu_step import measure
from peers.clock import Settings, write
from peers.ours import prepared
from training import HERE, PEERS, sequences

OURS = ("fused-bf16", "fused", "padded")


def peer(python: str, script: str, folder: Path) -> tuple[float, str]:
    """Milliseconds per step, and what was trained."""
    out = folder / "result.json"
    command = [python, str(HERE / "peers" / script), str(folder), str(out)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    result = json.loads(out.read_text())
    taken = 1000 * result["seconds_timed"] / result["steps_timed"]
    return taken, f"{result['version']}, {result['catalogue']:,} items, loss {result['loss']}"


def main() -> None:
    """Time each library in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=48_255)
    parser.add_argument("--sequences", type=int, default=25_600)
    for name in PEERS:
        parser.add_argument(f"--{name}", help="its Python")
    given = parser.parse_args()
    settings = Settings(items=given.items, device="cuda", warm=20)
    arrays = sequences(given.sequences, settings)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.items:,} items, mle, ms per step")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, settings, arrays)
        data = prepared(folder / "data", arrays, given.items)
        first = None
        for way in OURS:
            taken, _ = measure(data, "mle", way, folder / way, settings.batch, width=settings.width, profile=False)
            first = first or taken
            print(f"{way:12} {taken:8.3f} {taken / first:7.1f}", flush=True)
        torch.cuda.empty_cache()
        assert first is not None
        for name, script in PEERS.items():
            if getattr(given, name) is None:
                continue
            try:
                taken, said = peer(getattr(given, name), script, folder)
                print(f"{name:12} {taken:8.3f} {taken / first:7.1f}  {said}", flush=True)
            except RuntimeError as error:
                print(f"{name:12} failed: {error}", flush=True)


if __name__ == "__main__":
    main()
