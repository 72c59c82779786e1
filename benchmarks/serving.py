"""How fast lists are made: a drawn list against one read of the item table, and an export against eager PyTorch.

    python benchmarks/serving.py lists --items 1000000     p50 of one drawn list of 20, and of one read of the table;
                                                           int8 and drawn8: the same of an export with --int8
    python benchmarks/serving.py export --items 50000      top 20 at batch 1: onnxruntime and eager PyTorch
    python benchmarks/serving.py load --seconds 300        the service: its peak, then 70 % of it for a while
    python benchmarks/serving.py load EXPORT               the same for an export or a run of yours
    python benchmarks/serving.py rerank --log /dev/shm     /v1/rerank with a critic, 500 candidates: one client, then
                                                           many; a log in memory leaves out the flush of the disk

Times of one call each, in turns, so that a busy machine slows both equally; ratios are of medians, by the clock and by
CPU time. The latter counts all threads: compare it with one thread each (OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1).
"""

import argparse
import http.client
import json
import os
import re
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

JSON = {"content-type": "application/json"}


def untrained(items: int, folder: Path, *, width: int = 64, int8: bool = False) -> Any:
    """A policy with random weights, and its export."""
    import pyarrow as pa
    import torch

    from localpolicy.model.config import ModelConfig
    from localpolicy.model.deployable import Origin
    from localpolicy.model.network import Network
    from localpolicy.model.policy import Policy
    from localpolicy.runtime.files import sha256
    from localpolicy.serving.exports import write_description
    from localpolicy.serving.graph import write_graph

    torch.manual_seed(0)
    network = Network(ModelConfig(width=width, tied=False), items=items, events=2, length=20)
    table = pa.table({"index": np.arange(items), "item_id": np.arange(items), "count": np.ones(items, np.int64)})
    policy = Policy(network, Origin("mle", "impressions", ["none", "click"], None), table)
    folder.mkdir()
    write_graph(policy, folder / "policy.onnx", int8=int8)
    (folder / "items.json").write_text(json.dumps(list(range(items))))
    (folder / "counts.json").write_text(json.dumps([1] * items))
    about = {"format": 1, "version": "0" * 16, "events": ["none", "click"], "length": 20, "graphs": ["policy"],
             "int8": int8}  # fmt: skip
    files = {file.name: sha256(file) for file in sorted(folder.iterdir())}
    write_description(folder, {**about, "objective": "mle", "files": files, "samples": []})
    return policy


def in_turns(repeats: int, **calls: Callable[[], object]) -> dict[str, np.ndarray]:
    """Median seconds of each call: by the clock, and of the CPU."""
    times: dict[str, list[np.ndarray]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            begin = np.array([time.perf_counter(), time.process_time()])
            call()
            times[name].append(np.array([time.perf_counter(), time.process_time()]) - begin)
    return {name: np.median(values, axis=0) for name, values in times.items()}


def said(seconds: np.ndarray, ratio: np.ndarray) -> str:
    return f"{1000 * seconds[0]:8.2f} ms, CPU {1000 * seconds[1]:8.2f} ms   {ratio[0]:.2f}, by CPU time {ratio[1]:.2f}"


def lists(items: int, repeats: int, threads: int) -> None:
    from localpolicy.serving.recommender import Recommender

    with tempfile.TemporaryDirectory() as folder:
        untrained(items, Path(folder) / "export")
        untrained(items, Path(folder) / "int8", int8=True)
        made, rounded = (Recommender(Path(folder) / name, threads=threads) for name in ("export", "int8"))
    table, state = np.random.default_rng(0).standard_normal((items, 64), np.float32), np.ones(64, np.float32)
    history = [list(range(20))]
    found = in_turns(
        repeats, read=lambda: table @ state, scores=lambda: made.logits(history),
        drawn=lambda: made.recommend(history, 20), top=lambda: made.recommend(history, 20, sample=False),
        int8=lambda: rounded.logits(history), drawn8=lambda: rounded.recommend(history, 20),
    )  # fmt: skip
    for name, seconds in found.items():
        print(f"{name:8} {said(seconds, seconds / found['read'])} of one read of the table")


def export(items: int, repeats: int, threads: int) -> None:
    import torch

    from localpolicy.serving.recommender import Recommender

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        policy = untrained(items, Path(folder) / "export")
        made = Recommender(Path(folder) / "export", threads=threads)
    history = [list(range(20))]
    found = in_turns(
        repeats, eager=lambda: policy.recommend(history, 20),
        exported=lambda: made.recommend(history, 20, sample=False),
    )  # fmt: skip
    for name, seconds in found.items():
        print(f"{name:8} {said(seconds, found['eager'] / seconds)} times as fast as eager PyTorch")


def load(run: Path | None, seconds: float, clients: int, items: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if run is None:
            run = Path(folder) / "export"
            untrained(items, run)
        with served(run, Path(folder) / "log.db") as (process, port):
            known = _known_items(port)
            rng = np.random.default_rng(0)
            asked = [
                _question("recommend", {"history": [known[one] for one in rng.integers(0, len(known), 10)], "k": 10})
                for _ in range(500)
            ]
            _phase(port, clients, 2.0, rate=None, questions=asked)  # imports and caches
            spent = _cpu(process.pid)
            peak = _phase(port, clients, min(20.0, seconds), rate=None, questions=asked)
            print(
                f"peak      {_said(peak)}, {1000 * (_cpu(process.pid) - spent) / len(peak['times']):.2f} ms of CPU each"
            )
            before = _memory(process.pid)
            steady = _phase(port, clients, seconds, rate=0.7 * len(peak["times"]) / peak["seconds"], questions=asked)
            print(f"70 %      {_said(steady)}")
            print(f"memory    {before:.0f} MiB before, {_memory(process.pid):.0f} MiB after")


def rerank(seconds: float, clients: int, log: Path | None, candidates: int = 500) -> None:
    from localpolicy.ranker.improve import improve
    from localpolicy.simulation.foreign_ranker import ForeignRanker

    world, rng = ForeignRanker(seed=1), np.random.default_rng(1)
    requests = world.requests(3000, rng)
    lists = world.lists(requests, rng)
    tables = world.tables(requests, lists, world.clicks(requests, lists, rng))
    bodies: dict[str, list[bytes]] = {"objects": [], "columns": []}
    for _ in range(50):
        item = rng.choice(world.config.items, candidates, replace=False)
        context = {"weekend": "yes", "thrift": 0.3, "keen": -1.0}
        asked = {"k": 10, "person": f"p{rng.integers(1000)}", "context": context}
        columns = {"item": [f"i{one}" for one in item], "score": rng.normal(size=candidates).tolist(),
                   "price": world.price[item].tolist(), "new": world.new[item].tolist(),
                   "category": [f"c{one}" for one in world.category[item]]}  # fmt: skip
        objects = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        bodies["objects"].append(_question("rerank", {**asked, "candidates": objects}))
        bodies["columns"].append(_question("rerank", {**asked, "candidates": columns}))
    with tempfile.TemporaryDirectory(dir=log) as folder:
        result = improve(*tables, items=world.items(), out=Path(folder) / "layer", critics=("logistic",))
        for (form, questions), workers in product(bodies.items(), (1, 2)):
            size = np.mean([len(one) for one in questions]) / 1000
            print(f"candidates as {form}, bodies of {size:.0f} kB, {workers} workers")
            database = Path(folder) / f"{form}{workers}.db"
            with served(result.folder, database, "--workers", str(workers)) as (process, port):
                while not _phase(port, 1, 2.0, rate=None, questions=questions)["times"]:
                    pass  # workers still import
                for count in (1, clients):
                    spent, own = _cpu(process.pid), time.process_time()
                    phase = _phase(port, count, seconds, rate=None, questions=questions)
                    number = len(phase["times"]) / 1000
                    service, client = (_cpu(process.pid) - spent) / number, (time.process_time() - own) / number
                    print(f"{count:3} clients   {_said(phase)}; ms of CPU each: {service:.2f}, client {client:.2f}")


@contextmanager
def served(run: Path, log: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A service and its port; it ends with the block."""
    command = [sys.executable, "-m", "localpolicy", "serve", str(run), "--log", str(log), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        addresses = (re.search(r"http://127\.0\.0\.1:(\d+)", line) for line in process.stderr)
        yield process, int(next(address for address in addresses if address)[1])
    finally:
        process.terminate()
        process.wait()


def _memory(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def _known_items(port: int) -> list[Any]:
    """Some items of the served catalogue, by asking for a list: histories are made of them."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/recommend", json.dumps({"history": [], "k": 10}), JSON)
    items: list[Any] = json.loads(connection.getresponse().read())["items"]
    connection.close()
    return items


def _phase(port: int, clients: int, seconds: float, rate: float | None, questions: list[bytes]) -> dict[str, Any]:
    """Ask for `seconds`: each client again at once, or together at `rate` per second.

    One thread and a selector, so that the clients take little of the cores that they measure. At a rate, an answer's
    time runs from when it was due, not from when a connection was free for it.
    """
    ready = selectors.DefaultSelector()
    idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(clients)]
    for connection in idle:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ready.register(connection, selectors.EVENT_READ)
    everyone, begun, came = tuple(idle), dict.fromkeys(idle, 0.0), dict.fromkeys(idle, b"")
    times: list[float] = []
    errors, asked, began = 0, 0, time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        due = now if rate is None else began + asked / rate
        while idle and due <= now:
            connection = idle.pop()
            begun[connection] = due
            connection.sendall(questions[asked % len(questions)])
            asked += 1
            due = now if rate is None else began + asked / rate
        for key, _ in ready.select(min(max(due - now, 0.0) if idle else 1.0, began + seconds - now)):
            connection = key.fileobj  # type: ignore[assignment]
            came[connection] += connection.recv(1 << 16)
            head, _, body = came[connection].partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            if length is None or len(body) < int(length[1]):
                continue
            times.append(time.perf_counter() - begun[connection])
            errors += not head.startswith(b"HTTP/1.1 200 ")
            came[connection] = b""
            idle.append(connection)
    for connection in everyone:
        connection.close()
    return {"times": times, "errors": errors, "seconds": time.perf_counter() - began}


def _question(verb: str, asked: dict[str, Any]) -> bytes:
    body = json.dumps(asked).encode()
    head = f"POST /v1/{verb} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _cpu(pid: int) -> float:
    """CPU seconds of a process and its workers so far."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK") + sum(_cpu(int(one)) for one in workers)


def _said(phase: dict[str, Any]) -> str:
    half, most = np.percentile(phase["times"], [50, 99])
    return (
        f"{len(phase['times']) / phase['seconds']:6.0f} lists/s, p50 {1000 * half:.1f} ms, p99 {1000 * most:.1f} ms "
        f"({most / half:.1f} times), {phase['errors']} errors in {len(phase['times']):,}"
    )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=["lists", "export", "load", "rerank"])
    arguments.add_argument("run", nargs="?", type=Path)
    arguments.add_argument("--items", type=int, default=50_000)
    arguments.add_argument("--repeats", type=int, default=40)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--seconds", type=float, default=300)
    arguments.add_argument("--clients", type=int, default=64)
    arguments.add_argument("--log", type=Path, help="folder of the log of `rerank`")
    given = arguments.parse_args()
    if given.what == "load":
        load(given.run, given.seconds, given.clients, given.items)
    elif given.what == "rerank":
        rerank(given.seconds, given.clients, given.log)
    else:
        {"lists": lists, "export": export}[given.what](given.items, given.repeats, given.threads)
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
