"""`export`: a run as a folder that `Recommender` answers from, checked against PyTorch before it is called whole."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

from localpolicy.data.store import Prepared
from localpolicy.errors import LocalPolicyError, RunError
from localpolicy.model.policy import Policy
from localpolicy.runs.run import Run
from localpolicy.runtime.files import refuse_occupied, sha256, whole_folder, write_json
from localpolicy.serving.graph import write_graph
from localpolicy.serving.recommender import FORMAT, MOST_SCORES, Recommender

LOG = logging.getLogger(__name__)
TOLERANCE = 1e-4  # largest difference of log-probabilities between PyTorch and the graph, in nats
CHECKED = 64  # histories compared
SAMPLES = 8  # of them written down, with their lists
PLACES = 20
BETA = 0.5  # at which the dial is compared


def export(run: Path | str, *, out: Path | str, force: bool = False) -> Recommender:
    """Write the run's policy, and its dial where it has one, as ONNX graphs; refuse one that differs from PyTorch."""
    source, out = Run(run), Path(out)
    refuse_occupied(out, force=force)
    policy = source.policy()
    histories, events = _histories(source, policy)
    with whole_folder(out, force=force) as folder:
        graphs = ["policy", *(["dial"] if policy.critic and policy.origin.estimates_logging else [])]
        for name in graphs:
            LOG.info("writing %s.onnx", name)
            write_graph(policy, folder / f"{name}.onnx", dial=name == "dial")
        _dump(folder / "items.json", policy.items["item_id"].to_pylist())
        _dump(folder / "counts.json", policy.items["count"].to_pylist())
        about: dict[str, Any] = {
            "format": FORMAT,
            "version": source.version,
            "policy_sha256": source.manifest["policy_sha256"],
            "objective": policy.origin.objective,
            "kind": policy.origin.kind,
            "events": policy.origin.events,
            "length": policy.network.length,
            "items": policy.n_items,
            "graphs": graphs,
            "samples": [],
            "files": {file.name: sha256(file) for file in sorted(folder.iterdir())},
        }
        write_json(folder / "export.json", about)
        LOG.info("comparing %d histories with PyTorch", len(histories))
        about["largest_difference"], lists = _compare(policy, Recommender(folder), histories, events)
        about["tolerance"] = TOLERANCE
        about["samples"] = [
            {"history": history, "events": given, "top": top}
            for history, given, top in list(zip(histories, events, lists, strict=True))[:SAMPLES]
        ]
        write_json(folder / "export.json", about)
    return Recommender(out)


def _dump(path: Path, content: list[Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n")


def _compare(
    policy: Policy, made: Recommender, histories: list[list[Any]], events: list[list[str]]
) -> tuple[float, list[list[Any]]]:
    """The largest difference of log-probabilities, and the graph's lists; raise where PyTorch would give others."""
    largest = 0.0
    for beta in (BETA, None) if made.has_dial else (None,):
        theirs = policy.dialled(beta).log_probabilities(histories, events).double()
        ours = torch.log_softmax(torch.from_numpy(made.logits(histories, events, beta=beta)).double(), dim=1)
        largest = max(largest, float((theirs - ours).abs().max()))
    if not largest <= TOLERANCE:
        raise RunError(f"the exported graph differs from PyTorch by {largest:.1e} nats (at most {TOLERANCE:g} is "
                       "allowed); nothing was written.")  # fmt: skip
    k = min(PLACES, policy.n_items)
    lists = made.recommend(histories, k, events=events, sample=False)
    best = theirs.topk(k, dim=1)
    # Another item at a place is the same list where both are equally good up to the tolerance: rounding swaps those.
    gap = (theirs.gather(1, torch.from_numpy(lists.indices)) - best.values).abs().max()
    if not gap <= 2 * TOLERANCE:
        raise RunError(f"the exported graph gives other lists than PyTorch (by {gap:.1e} nats); nothing was written.")
    return largest, lists.items


def _histories(source: Run, policy: Policy) -> tuple[list[list[Any]], list[list[str]]]:
    """Real histories where the run's data set is at hand; else some of the catalogue's items. One is empty."""
    histories: list[list[Any]] = [[]]
    events: list[list[str]] = [[]]
    ids, names = policy.items["item_id"].to_pylist(), policy.origin.events
    count = max(2, min(CHECKED, MOST_SCORES // policy.n_items))
    data = _data(source, policy)
    if data is None:
        rng = np.random.default_rng(0)
        for _ in range(count - 1):
            chosen = rng.integers(0, len(ids), rng.integers(1, 2 * policy.network.length))
            histories.append([ids[index] for index in chosen])
            events.append([names[index % len(names)] for index in chosen])
        return histories, events
    split = data["test"] if len(data["test"]) else data["train"]
    for number in range(min(count - 1, len(split))):
        part = slice(int(split.offsets[number]), int(split.offsets[number + 1]))
        histories.append([ids[index] for index in split.arrays["item"][part]])
        events.append([names[code] for code in split.arrays["event"][part]])
    return histories, events


def _data(source: Run, policy: Policy) -> Prepared | None:
    """The data the run was trained on, where they still lie there."""
    for folder in source.data_places:
        try:
            data = Prepared(folder)
        except LocalPolicyError:
            continue
        if data.catalogue["item_id"].equals(policy.items["item_id"]) and data.events == policy.origin.events:
            return data
    return None
