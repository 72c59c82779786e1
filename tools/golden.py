"""Write the golden artefacts of this version: small ones of every kind, for later versions to read.

    python tools/golden.py              # into tests/golden/VERSION, in place of what is there

`keys.json` in that folder has, for each kind, its format and the keys that the format stands for: every key of its JSON
and YAML files, columns and types of its tables and arrays, names of its tensors. tests/test_golden.py makes the
artefacts again and compares: a key that changed without a new format fails. Once a version is released, its folder
stays as it is.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import torch

import localpolicy as lp
from localpolicy.data import manifest as data_manifest
from localpolicy.model import policy as model_policy
from localpolicy.ranker import layer
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_yaml, write_json, write_text
from localpolicy.serving import database, exports, rollout
from localpolicy.serving.filters import Filter
from localpolicy.serving.log import Log
from localpolicy.serving.records import Feedback, Request, Shown, new_id
from localpolicy.simulation import truth
from localpolicy.simulation.foreign_ranker import ForeignRanker, RankerConfig
from localpolicy.study import arms
from localpolicy.training import checkpoint
from localpolicy.version import __version__
from localpolicy.worlds import loop as loops

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "golden"
KEYS = "keys.json"
START = 1_700_000_000_000  # of the log, in milliseconds
TINY: dict[str, Any] = {
    "width": 8, "blocks": 1, "heads": 1, "epochs": 1, "length": 4, "batch_size": 64, "device": "cpu", "dropout": 0.0,
}  # fmt: skip
HISTORIES = [[], [3], [5, 1]]
EVALUATED = ("test.", "validation.")  # in arm.json

# Kind -> its format, and its files below a golden folder.
KINDS: dict[str, tuple[int, str]] = {
    "world": (truth.FORMAT.current, "world/truth"),
    "data set": (data_manifest.FORMAT.current, "data"),
    "run": (model_policy.FORMAT.current, "runs"),
    "checkpoint": (checkpoint.FORMAT.current, "stopped/checkpoint"),
    "export": (exports.FORMAT.current, "exports"),
    "layer": (layer.FORMAT.current, "layer"),
    "rollout plan": (rollout.FORMAT.current, "rollout.json"),
    "log": (database.VERSION, "log"),
    "sweep": (arms.FORMAT.current, "sweep/figures"),
    "loop": (loops.FORMAT.current, "loop"),
}


def make(folder: Path) -> None:
    """Write one artefact of every kind into the new folder `folder`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    lp.simulate("bandit", out=folder / "world", sequences=300, items=8, changes=["contexts=10"])
    data = lp.prepare("events", [folder / "world" / "events.parquet"], out=folder / "data")
    runs = folder / "runs"
    mle = lp.train(data, "mle", out=runs / "mle", **TINY)
    lp.train(data, "lpi_cb", out=runs / "lpi", seed=1, **TINY)
    lp.train(data, "popularity", out=runs / "popularity")
    _stopped(data, folder / "stopped")
    for name in ("mle", "popularity"):
        lp.export(runs / name, out=folder / "exports" / name)
    _layer(folder / "layer")
    rollout.plan(folder / "rollout.json", stages=["shadow", "50", "100"])
    _log(folder / "log")
    lp.sweep(
        data,
        "reward_weighted",
        over=["learning_rate=0.01"],
        out=folder / "sweep",
        processes=1,
        against=[mle.folder],
        **TINY,
    )
    shutil.rmtree(folder / "sweep" / "runs")
    config = lp.loop_config("bandit", items=8, sequences=60, objectives=("mle",), dials=("contexts=10",),
                            changes=tuple(f"{_setting(name)}={value}" for name, value in TINY.items()))  # fmt: skip
    lp.loop(config, out=folder / "loop", rounds=1, processes=1)
    for made in (folder / "loop").rglob("round-*"):
        shutil.rmtree(made / "data", ignore_errors=True)
        shutil.rmtree(made / "run", ignore_errors=True)
    for made in (folder / "loop").glob("*/start/data"):  # a data set, as the one above
        shutil.rmtree(made)
    write_json(folder / "answers.json", answers(folder))
    torch.set_num_threads(threads)


def answers(folder: Path) -> dict[str, Any]:
    """What the artefacts of a folder answer when they are read: rounded figures."""
    from localpolicy.runs.baselines import BaselineRun
    from localpolicy.serving.recommender import Recommender

    policies: dict[str, Any] = {name: Run(folder / "runs" / name).policy() for name in ("mle", "lpi")}
    policies["popularity"] = BaselineRun(folder / "runs" / "popularity")
    served = {name: Recommender(folder / "exports" / name) for name in ("mle", "popularity")}
    ranked = layer.Layer(folder / "layer").rerank(
        [{"item": 3, "score": 0.5, "price": 2.0}, {"item": 5, "score": 0.1, "price": 1.0}],
        k=1,
        rng=np.random.default_rng(0),
    )
    return {
        "data": lp.Prepared(folder / "data").manifest["counts"],
        "runs": {name: _lists(policy.recommend(HISTORIES, 3)) for name, policy in policies.items()},
        "exports": {name: one.recommend(HISTORIES, 3, sample=False).items for name, one in served.items()},
        "layer": [ranked.items, [round(value, 4) for value in ranked.propensities]],
    }


def _lists(lists: Any) -> list[list[Any]]:
    return [[row["history"], row["item"], round(row["probability"], 4)] for row in lists.to_arrow().to_pylist()]


def _setting(name: str) -> str:
    group = {"length": "data", "width": "model", "blocks": "model", "heads": "model", "dropout": "model"}
    return f"{group.get(name, 'train')}.{name}"


def _stopped(data: lp.Prepared, folder: Path) -> None:
    """A run that was stopped after its first epoch: its checkpoint is there, and its manifest is not."""
    with patch.object(checkpoint.Checkpoints, "clear", lambda _: None):
        lp.train(data, "mle", out=folder, seed=2, **TINY)
    (folder / "manifest.json").unlink()


def _layer(folder: Path) -> None:
    shop = ForeignRanker(RankerConfig(items=20, people=200, candidates=6, places=2), seed=1)
    rng = np.random.default_rng(1)
    requests = shop.requests(600, rng)
    lists = shop.lists(requests, rng)
    tables = shop.tables(requests, lists, shop.clicks(requests, lists, rng))
    lp.improve(*tables, items=shop.items(), out=folder, critics=("logistic",))


def _log(folder: Path) -> None:
    """A log of the service, as SQL, and the Parquet file of one like it that was rotated."""
    with TemporaryDirectory() as place:
        file = Path(place) / "log.db"
        log, ids = Log(file), [new_id(START + hour * 3_600_000) for hour in range(3)]
        try:
            for hour, name in enumerate(ids):
                time = START + hour * 3_600_000
                record = Request(
                    id=name, time=time, person=f"p{hour}", history=((3, "click"),), items=[1, 2],
                    propensities=[0.5, 0.25], policy="abc",
                    beta=0.5, mode="drawn", floor=0.01, item_filter=Filter(), deferred=False, share=1.0,
                )  # fmt: skip
                for each in (
                    record,
                    Shown(name, 2, time + 10),
                    Feedback(f"a{hour}", name, 1, "click", None, time + 20, False),
                ):
                    log.append(each).result()
        finally:
            log.close()
        lp.rotate(file, out=folder, upto=START + 3_600_000)
        connection = sqlite3.connect(file)
        write_text(folder / "log.sql", "\n".join(connection.iterdump()) + "\n")
        connection.close()


# ---------------------------------------------------------------------- keys


def keys_of(folder: Path) -> dict[str, Any]:
    """Format, and keys by file, of each kind of artefact in a golden folder."""
    found = {}
    for kind, (number, where) in KINDS.items():
        path, files = folder / where, dict[str, set[str]]()
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                files.setdefault(_plain(file.relative_to(path)), set()).update(_keys(file))
        found[kind] = {"format": number, "keys": {name: sorted(keys) for name, keys in files.items() if keys}}
    return found


def _plain(name: Path) -> str:
    return re.sub(r"[0-9a-f]{8,}|[0-9]+", "#", str(name))


def _keys(file: Path) -> Iterator[str]:
    if file.suffix in (".json", ".jsonl"):
        lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        for line in lines:
            yield from _nested(json.loads(line))
    elif file.suffix == ".yaml":
        yield from _nested(read_yaml(file))
    elif file.suffix == ".parquet":
        yield from (f"{field.name} ({field.type})" for field in pq.read_schema(file))
    elif file.suffix == ".npy":
        array = np.load(file, mmap_mode="r")
        yield f"{array.dtype}, {array.ndim}"
    elif file.suffix == ".npz":
        with np.load(file) as arrays:
            yield from (f"{name} ({arrays[name].dtype}, {arrays[name].ndim})" for name in arrays.files)
    elif file.suffix == ".safetensors":
        content = file.read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        yield from (f"{name} ({about['dtype']})" for name, about in header.items() if name != "__metadata__")
    elif file.suffix == ".sql":
        yield from (line.strip() for line in file.read_text().splitlines() if not line.startswith("INSERT"))


def _nested(content: Any, before: str = "") -> Iterator[str]:
    """Paths of the values. Of an evaluation within a study only the first parts: whoever resumes reads no more."""
    if before.count(".") > 1 and before.startswith(EVALUATED):
        yield before
    elif isinstance(content, dict):
        for name, value in content.items():
            yield from _nested(value, f"{before}.{name}" if before else str(name))
    elif isinstance(content, list):
        for value in content[:3]:
            yield from _nested(value, f"{before}[]")
        if not content:
            yield f"{before} (list)"
    else:
        yield f"{before} ({'number' if type(content) in (int, float) else type(content).__name__})"


def main() -> None:
    """Write the folder of this version."""
    target = FOLDER / __version__
    with TemporaryDirectory() as place:
        made = Path(place) / "made"
        made.mkdir()
        make(made)
        write_json(made / KEYS, keys_of(made))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    print(f"{target.relative_to(FOLDER.parents[1])}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
