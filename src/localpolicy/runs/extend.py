"""`extend`: new items for a run, without training."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from localpolicy.model.extension import Extension
from localpolicy.model.policy import FORMAT, Policy
from localpolicy.model.weights import load_weights, save_weights, without_features
from localpolicy.runs.folder import LIKELIEST
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json, write_json
from localpolicy.runtime.folders import refuse_occupied, whole_folder

LOG = logging.getLogger(__name__)
CHANGED = ("format", "files", "policy_sha256", "peak_memory_bytes", "versions")  # of the manifest: `finish` writes them


def extend(run: Run | Path | str, items: Any, *, out: Path | str, force: bool = False) -> Run:
    """Extend a run by the new items of the table `items` (a file or a frame), in the folder `out`.

    Rows of items that the run knows stay what they are, bit for bit.
    """
    source, out = run if isinstance(run, Run) else Run(run), Path(out)
    refuse_occupied(out, force=force)
    manifest = source.manifest
    policy = source.policy()
    extension = Extension(policy.items, policy.network, items)
    with whole_folder(out, force=force) as folder:
        made = Run(folder)
        for name in ("policy.safetensors", LIKELIEST, "last.safetensors"):
            if not (source.folder / name).exists():
                continue
            source.refuse_altered(name)
            learnt, _ = without_features(load_weights(source.folder / name))
            network = Policy.load(source.folder, weights=name).network
            save_weights({**extension.state(network, learnt), **learnt}, folder / name)
        about = FORMAT.upgraded(read_json(source.folder / "policy.json"), source.folder)
        write_json(folder / "policy.json", {**about, "network": extension.described(about["network"])})
        pq.write_table(extension.items, folder / "items.parquet")
        for name in ("config.yaml", "metrics.jsonl"):
            source.refuse_altered(name)
            shutil.copyfile(source.folder / name, folder / name)
        older = {
            "run": str(source.folder),
            "policy_sha256": manifest["policy_sha256"],
            "trained": source.trained_sha256,
            "new_items": extension.n_new,
        }
        kept = {key: value for key, value in manifest.items() if key not in CHANGED}
        data = {**manifest["data"], **Run(out).data_location(Path(manifest["data"]["path"]))}
        made.finish({**kept, "data": data, "extended": older})
    if extension.known_already:
        LOG.info("%s of the table's items are known already, and keep their rows", f"{extension.known_already:,}")
    LOG.info("%s new items added to %s", f"{extension.n_new:,}", f"{policy.n_items:,}")
    return Run(out)
