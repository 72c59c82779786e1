"""`export`: writes a run, or a simple baseline, as a folder that `Recommender` answers from.

The export is compared with PyTorch on real histories before it counts as complete.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from localpolicy.catalogue.dense import divergence
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, LocalPolicyError, RunError
from localpolicy.logits import DenseLogits
from localpolicy.model.baselines import Baseline, ItemNeighbours, LastItem
from localpolicy.model.catalogue_mapping import context_length
from localpolicy.model.factors import Factors
from localpolicy.model.histories import answered_event, batch_from, index_of
from localpolicy.model.lists import names_of
from localpolicy.model.policy import Policy
from localpolicy.runs.baselines import is_baseline, load_baseline
from localpolicy.runs.run import Run
from localpolicy.runtime.files import sha256
from localpolicy.runtime.folders import refuse_occupied, whole_folder
from localpolicy.serving.exports import ARRAYS, COUNTS, FORMAT, ITEMS, NAMES, write_description
from localpolicy.serving.graph import write_graph
from localpolicy.serving.recommender import MOST_SCORES, Recommender

LOG = logging.getLogger(__name__)
TOLERANCE = 1e-4  # largest difference of log-probabilities between PyTorch and the graph, in nats
CHECKED = 64  # histories compared
SAMPLES = 8  # histories stored in the export with their lists
PLACES = 20
BETA = 0.5  # β of the comparison of the dial
MOST_JS = 1e-3  # largest mean JS, in nats, between a policy and the same with rounded rows


class Compared(NamedTuple):
    """Comparison of an export with PyTorch: differences, and the export's lists."""

    largest_difference: float  # of log-probabilities
    js: float  # mean over histories, in nats
    lists: list[list[Any]]  # the export's


def export(run: Run | Path | str, *, out: Path | str, int8: bool = False, force: bool = False) -> Recommender:
    """Write the policy, and its dial if it has one, as ONNX graphs; raise RunError if they differ from PyTorch.

    With `int8` items' rows are rounded to bytes (see `graph`). What is served is then another policy, with a version of
    its own: its propensities are as exact, and export.json says how far it is from the run. A simple baseline has no
    graph: its few arrays are written as they are.
    """
    out = Path(out)
    refuse_occupied(out, force=force)
    source = run if isinstance(run, Run) else Run(run)
    policy = load_baseline(source.folder) if is_baseline(source.folder) else source.policy()
    if int8 and not isinstance(policy, Policy):
        raise ConfigError(f"{source.folder} is a simple baseline, which has no rows to round: export it without int8.")
    histories, events = _histories(source, policy)
    with whole_folder(out, force=force) as folder:
        about: dict[str, Any] = {
            "format": FORMAT.current,
            "version": f"{source.version}-int8" if int8 else source.version,
            "int8": int8,
            "policy_sha256": source.manifest["policy_sha256"],
            "policy_json_sha256": sha256(source.folder / "policy.json"),
            "objective": policy.origin.objective,
            "kind": policy.origin.kind,
            "events": policy.origin.events,
            "length": context_length(policy),
            "items": len(policy.items),
            "samples": [],
            **(_write_graphs(policy, folder, int8) if isinstance(policy, Policy) else _write_baseline(policy, folder)),
        }
        _dump(folder / ITEMS, policy.items["item_id"].to_pylist())
        if (names := names_of(policy.items)) is not None:
            _dump(folder / NAMES, names)
        _dump(folder / COUNTS, policy.items["count"].to_pylist())
        about["files"] = {file.name: sha256(file) for file in sorted(folder.iterdir())}
        write_description(folder, about)
        LOG.info("comparing %d histories with PyTorch", len(histories))
        compared = _compare(policy, Recommender(folder), histories, events)
        about |= {"largest_difference": compared.largest_difference, "js": compared.js}
        about |= {"most_js": MOST_JS} if int8 else {"tolerance": TOLERANCE}
        # Only made-up histories are stored: an export is copied to places where no person could be erased.
        made_up = _made_up(policy, max(2, min(SAMPLES, MOST_SCORES // len(policy.items))))
        lists = _compare(policy, Recommender(folder), *made_up).lists
        about["samples"] = [
            {"history": history, "events": given, "top": top}
            for history, given, top in zip(*made_up, lists, strict=True)
        ]
        write_description(folder, about)
    return Recommender(out)


def _write_graphs(policy: Policy, folder: Path, int8: bool) -> dict[str, Any]:
    """Write the policy's graph, and the dial's if it has one; return their names."""
    graphs = ["policy", *(["dial"] if policy.critic and policy.origin.estimates_logging else [])]
    for name in graphs:
        LOG.info("writing %s.onnx", name)
        write_graph(policy, folder / f"{name}.onnx", dial=name == "dial", int8=int8)
    return {"graphs": graphs}


def _write_baseline(policy: Baseline, folder: Path) -> dict[str, Any]:
    """Write the baseline's arrays; return its settings as `BaselineScorer` reads them."""
    arrays: dict[str, Any] = {"share": policy.share.numpy()}
    settings: dict[str, Any] = {"codes": [], "depth": 0, "decay": 1.0, "background": 1.0}
    if isinstance(policy, LastItem):
        settings |= {"codes": policy.codes, "depth": 1, "background": policy.background}
    elif isinstance(policy, ItemNeighbours):
        settings |= {name: getattr(policy, name) for name in settings}
        similar = policy.similar
        arrays |= {"data": similar.data, "indices": similar.indices, "indptr": similar.indptr}
    elif isinstance(policy, Factors):
        settings |= {name: getattr(policy, name) for name in ("codes", "depth", "temperature", "alpha", "ridge")}
        arrays["factors"] = policy.factors.numpy()
    np.savez(folder / ARRAYS, **arrays)
    # A history without events counts as answered, because a baseline skips what was shown and not answered.
    return {"graphs": [], "baseline": settings, "default_event": answered_event(policy.origin.events)}


def _dump(path: Path, content: list[Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def _compare(
    policy: Policy | Baseline, made: Recommender, histories: list[list[Any]], events: list[list[str]]
) -> Compared:
    """Compare an export with PyTorch; raise RunError if lists differ or rounded rows move the policy too far."""
    largest = js = 0.0
    for beta in (BETA, None) if made.has_dial else (None,):
        theirs = _log_probabilities(policy, histories, events, beta).double()
        ours = torch.log_softmax(torch.from_numpy(made.logits(histories, events, beta=beta)).double(), dim=1)
        largest = max(largest, float((theirs - ours).abs().max()))
        js = max(js, float(divergence(DenseLogits(theirs), DenseLogits(ours))[0].mean()))
    k = min(PLACES, made.n_items)
    lists = made.recommend(histories, k, events=events, sample=False)
    if made.int8:
        if not js <= MOST_JS:
            raise RunError(f"rounded rows move this policy by JS {js:.1e} nats (at most {MOST_JS:g} is allowed); "
                           "nothing was written. Export it without int8.")  # fmt: skip
        return Compared(largest, js, lists.items)
    if not largest <= TOLERANCE:
        raise RunError(f"the exported graph differs from PyTorch by {largest:.1e} nats (at most {TOLERANCE:g} is "
                       "allowed); nothing was written.")  # fmt: skip
    best = theirs.topk(k, dim=1)
    # Another item at a place is the same list where both are equally good up to the tolerance: rounding swaps those.
    gap = (theirs.gather(1, torch.from_numpy(lists.indices)) - best.values).abs().max()
    if not gap <= 2 * TOLERANCE:
        raise RunError(f"the exported graph gives other lists than PyTorch (by {gap:.1e} nats); nothing was written.")
    return Compared(largest, js, lists.items)


def _log_probabilities(
    policy: Policy | Baseline, histories: list[list[Any]], events: list[list[str]], beta: float | None
) -> torch.Tensor:
    """log π(·|x) [B, V], computed by PyTorch."""
    if isinstance(policy, Policy):
        return policy.dialled(beta).log_probabilities(histories, events)
    batch = batch_from(histories, events, index=index_of(policy.items), names=policy.origin.events)
    return torch.log_softmax(policy.logits(batch).chunk(0, len(policy.items)), dim=1)


def _histories(source: Run, policy: Policy | Baseline) -> tuple[list[list[Any]], list[list[str]]]:
    """Return real histories if the run's data set is available, else random ones. One is empty."""
    histories: list[list[Any]] = [[]]
    events: list[list[str]] = [[]]
    ids, names = policy.items["item_id"].to_pylist(), policy.origin.events
    count = max(2, min(CHECKED, MOST_SCORES // len(ids)))
    data = _data(source, policy)
    if data is None:
        return _made_up(policy, count)
    split = data["test"] if len(data["test"]) else data["train"]
    for number in range(min(count - 1, len(split))):
        part = slice(int(split.offsets[number]), int(split.offsets[number + 1]))
        histories.append([ids[index] for index in split.arrays["item"][part]])
        events.append([names[code] for code in split.arrays["event"][part]])
    return histories, events


def _made_up(policy: Policy | Baseline, count: int) -> tuple[list[list[Any]], list[list[str]]]:
    """Return histories of random items of the catalogue. The first is empty."""
    histories: list[list[Any]] = [[]]
    events: list[list[str]] = [[]]
    ids, names, rng = policy.items["item_id"].to_pylist(), policy.origin.events, np.random.default_rng(0)
    for _ in range(count - 1):
        chosen = rng.integers(0, len(ids), rng.integers(1, 2 * min(context_length(policy), 50)))
        histories.append([ids[index] for index in chosen])
        events.append([names[index % len(names)] for index in chosen])
    return histories, events


def _data(source: Run, policy: Policy | Baseline) -> Prepared | None:
    """Return the run's training data if they are still available, else None."""
    for folder in source.data_folders:
        try:
            data = Prepared(folder)
        except LocalPolicyError:
            continue
        if data.catalogue["item_id"].equals(policy.items["item_id"]) and data.events == policy.origin.events:
            return data
    return None
