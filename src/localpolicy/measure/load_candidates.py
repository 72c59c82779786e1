"""Whatever may be judged, opened on the rows it is judged on: a run, a saved baseline, or a file of lists.

What differs between two that are compared is noted in words, never passed over: other data, items that one does not
know, rows it was trained on, one seed on both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from localpolicy.data.store import Prepared
from localpolicy.errors import DataError, LocalPolicyError, RunError
from localpolicy.measure.candidates import DATA, Candidate, ListsInMemory, RunLike, as_run, open_run
from localpolicy.measure.divergence import Reference
from localpolicy.model.catalogue_mapping import RemappedPolicy, remap
from localpolicy.model.deployable import Deployable
from localpolicy.model.list_policy import read_list_policy
from localpolicy.runs.baselines import is_baseline, load_baseline
from localpolicy.runs.run import BY_LIKELIHOOD, Run


def names_of(runs: Sequence[Run], *, taken: Collection[str] = ()) -> list[str]:
    """Unique display names of runs: their folders' names, with the parent's name if two are equal."""
    names = [run.folder.stem if isinstance(run, ListsInMemory) else run.folder.name or str(run.folder) for run in runs]
    often = Counter(names)
    names = [
        name if often[name] == 1 else f"{run.folder.absolute().parent.name}/{name}"
        for name, run in zip(names, runs, strict=True)
    ]
    # '|' joins the names of two references, ':' follows a column's kind.
    names = [name.replace("|", "_").replace(":", "_") for name in names]
    for name, count in Counter(names).items():
        if count > 1:
            raise RunError(f"two runs are called '{name}': name each run once, or rename a folder.")
        if name in taken:
            raise RunError(
                f"a run is called '{name}', as a simple baseline is: rename its folder, or leave the "
                "baselines out (--no-baselines)."
            )
    return names


def open_data(run: Run) -> Prepared:
    """Open the run's training data at its recorded or relative path; raise if the digest differs."""
    expected = run.manifest["data"]["digest"]
    problem: LocalPolicyError = RunError(
        f"{run.folder} was trained on {run.data_folders[0]}, which is not there; say where it is with --data."
    )
    for path in filter(Path.exists, run.data_folders):
        try:
            opened = Prepared(path)
            if expected in opened.digests:
                opened.verify()
                return opened
            problem = RunError(
                f"{opened.path} is not the data that {run.folder} was trained on (digest {opened.digest[:12]}, "
                f"expected {expected[:12]})."
            )
        except (RunError, DataError) as error:  # other data are in this folder now
            problem = error
    raise problem


def data_for(runs: Sequence[Run], data: Prepared | Path | str | None) -> Prepared:
    """Prepared data to measure on: the given ones, or those of the first run that was trained."""
    if data is not None:
        opened = data if isinstance(data, Prepared) else Prepared(data)
        opened.verify()
        return opened
    for run in runs:
        if not run.folder.is_file():
            return open_data(run)
    raise RunError("a file of lists says nothing of the log it belongs to: name the prepared data with --data.")


def open_candidate(
    like: RunLike, name: str, data: Prepared, *, split: str, beta: float | None = None, likeliest: bool = False,
    device: str = "auto",
) -> Candidate:  # fmt: skip
    """Load a run, a baseline or a file of lists as the policy that would serve the people of `data`."""
    run = as_run(like)
    if run.folder.is_file():
        recorded = read_list_policy(run.folder, data, split)
        return Candidate(name, recorded, Reference(name, "recorded"), notes=recorded.notes)
    if is_baseline(run.folder):
        policy: Deployable = load_baseline(run.folder)
        candidate = Candidate(name, policy, Reference(name, run.manifest["objective"]), {}, run)
    else:
        candidate = open_run(run, name, beta=beta, likeliest=likeliest, device=device)
    if run.manifest["data"]["digest"] not in data.digests:
        return _elsewhere(candidate, run, data, split)
    if len(candidate.policy.items) != data.n_items:  # extended since: judged among the items of the data
        return replace(candidate, policy=remap(candidate.policy, data))
    return candidate


def open_all(
    runs: Sequence[Run], data: Prepared | Path | str | None, *, split: str, beta: float | None = None,
    taken: Collection[str] = (), device: str = "auto",
) -> tuple[Prepared, list[Candidate]]:  # fmt: skip
    """Open the data to measure on and every run as a candidate, the first at `beta`; refuse incomparable runs.

    Names are those of the folders; none may be `taken`.
    """
    names, prepared = names_of(runs, taken=taken), data_for(runs, data)
    opened = [
        open_candidate(run, name, prepared, split=split, beta=None if number else beta, device=device)
        for number, (run, name) in enumerate(zip(runs, names, strict=True))
    ]
    refuse_incomparable(opened)
    return prepared, opened


def open_likeliest(candidate: Candidate, data: Prepared, *, split: str, device: str = "auto") -> Candidate:
    """The candidate's run with its weights of the best held-out likelihood, or itself if it keeps no others."""
    run = candidate.run
    assert run is not None
    if run.kept_by in BY_LIKELIHOOD or not has_likeliest(run):
        return candidate
    opened = open_candidate(run, candidate.name, data, split=split, beta=candidate.beta, likeliest=True, device=device)
    return replace(opened, name=candidate.name)


def has_likeliest(run: Run) -> bool:
    """Whether the run keeps its weights of the best held-out likelihood."""
    return run.kept_by in BY_LIKELIHOOD or "sha256" in run.manifest.get("likeliest", {})


def refuse_incomparable(candidates: Sequence[Candidate]) -> None:
    """Raise if candidates differ in training data or evaluation settings, and name the difference."""
    first = next((candidate for candidate in candidates if candidate.facts), candidates[0])
    for other in candidates:
        different = [name for name in first.facts if name in other.facts and first.facts[name] != other.facts[name]]
        if different:
            lines = [f"  {name}: {first.facts[name]} and {other.facts[name]}" for name in different]
            remedy = "Train both on the same prepared data with the same windows."
            if DATA not in different:
                wanted = {name: "null" if first.facts[name] is None else first.facts[name] for name in different}
                asked = " ".join(f"--set {name}={value}" for name, value in wanted.items())
                remedy = f"Positions of other windows are not the same ones. Train the other again with {asked}."
            said = [f"{first.name} and {other.name} cannot be compared; they differ in", *lines, remedy]
            raise RunError("\n".join(said))
        if not first.policy.items["item_id"].equals(other.policy.items["item_id"]):
            raise RunError(f"{first.name} and {other.name} cannot be compared: they know different items.")


def _elsewhere(candidate: Candidate, run: Run, data: Prepared, split: str) -> Candidate:
    """Candidate trained on other data, mapped to these; with notes on unknown items and leaked sequences."""
    name, kind = candidate.name, candidate.policy.origin.kind
    if kind != data.kind:
        wrote = f" If {name} wrote this log as it served, judge against what it showed: --against log."
        raise RunError(
            f"{name} was trained on {kind}, and {data.path} holds {data.kind}: what was shown and what people did are "
            "not compared with each other. Prepare both logs as the same kind."
            + (wrote if data.kind == "impressions" else "")
        )
    policy = remap(candidate.policy, data)
    facts = {fact: value for fact, value in candidate.facts.items() if fact != DATA}
    notes = [f"{name} was trained on other data ({run.manifest['data']['path']}) and is measured on {data.path}"]
    if isinstance(policy, RemappedPolicy) and (missing := int(policy.unknown.sum())):
        rows = data[split].arrays["item"]
        notes.append(
            f"{name} does not know {missing:,} of {data.n_items:,} items: {policy.unknown[np.asarray(rows)].sum():,} "
            f"of the {len(rows):,} events of the {split} split are on them, and count against it"
        )
    leaks = _leaks(run, data, split)
    if leaks is None:
        notes.append(f"whether {name} was trained on some of these rows cannot be checked: its data is gone")
    elif leaks:
        notes.append(
            f"{name} was trained on {leaks:,} of the {len(data[split]):,} sequences of the {split} split: its figures "
            "are too good"
        )
    return replace(candidate, policy=policy, facts=facts, notes=tuple(notes), leaks=leaks or 0)


def _leaks(run: Run, data: Prepared, split: str) -> int | None:
    """Number of sequences of the split that the run was trained on; None if its data are gone."""
    try:
        trained, measured = open_data(run).sequence_ids("train"), data.sequence_ids(split)
        trained = trained if trained.type == measured.type else trained.cast(measured.type)
    except (RunError, DataError, pa.ArrowInvalid):
        return None
    return int(pc.sum(pc.is_in(measured, value_set=trained)).as_py() or 0)


def is_made_of(candidate: Candidate, reference: Candidate) -> bool:
    """Whether the candidate contains the reference's weights, as a closed form contains those of its μ̂."""
    if candidate.run is None or reference.run is None or not candidate.run.started:
        return False
    return reference.run.manifest.get("policy_sha256") in candidate.run.manifest.get("made_of", {}).values()


def made_of(candidate: Candidate, references: Sequence[Candidate]) -> list[str]:
    """Notes on references whose weights the candidate contains, so that their divergence has no seed noise."""
    return [
        f"{candidate.name} is made of {each.name}, so its divergence from that one is without the noise of a seed"
        for each in references
        if is_made_of(candidate, each)
    ]


def shared_seeds(candidate: Candidate, references: Sequence[Candidate]) -> list[str]:
    """Warnings on references with the candidate's seed, which share its initial weights and batches."""
    seed = candidate.origin.seed
    return [
        f"{candidate.name} and {each.name} have the same seed ({seed}), so their divergence looks smaller than it is. "
        "Use a reference of another seed"
        for each in references
        if seed is not None and each.origin.seed == seed and each.name != candidate.name
        if not is_made_of(candidate, each)
    ]
