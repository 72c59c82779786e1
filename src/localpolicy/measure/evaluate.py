"""`evaluate`, and the only producer of the one long table of measurements.

policy  seed  split  round  group  figure  mean  se  low  high  n

A row is one figure of one policy over one group of positions (`Evaluation.rows`). The values per position behind it are
found by its name: `evaluation.values("purchase.nDCG@20")`. All statements about policies (a gain, a lead, the noise
floor, the figure that decides) is a function of these rows and values, written once: see CONTRIBUTING, "A number is
computed in one file".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from localpolicy.data.batches import Windows
from localpolicy.data.config import WindowConfig
from localpolicy.data.item_features import learnt_columns
from localpolicy.data.quality import filter_notes
from localpolicy.data.store import Prepared
from localpolicy.measure.candidates import Candidate, RunLike, as_list, as_run, own_logging, window_of
from localpolicy.measure.decisions import OverlapRules
from localpolicy.measure.divergence import divergence
from localpolicy.measure.estimate import Estimate, mean_estimate
from localpolicy.measure.evaluation import Evaluation
from localpolicy.measure.imputation import Imputation, imputation_at, imputed_rewards
from localpolicy.measure.load_candidates import made_of, open_all, shared_seeds
from localpolicy.measure.metrics import EvaluateConfig, paid_events, question_of
from localpolicy.measure.position_metrics import AGREEMENT, LIKED, Scores, figure, ranking, shown_figures
from localpolicy.measure.score import Scorer, reward_model, score
from localpolicy.measure.truth import true_value
from localpolicy.measure.value import value_of_scores
from localpolicy.model.catalogue_mapping import device_of
from localpolicy.model.list_policy import people_of
from localpolicy.runs.run import Run
from localpolicy.runtime.files import sha256
from localpolicy.simulation.truth import load_world


def scored(
    candidate: Candidate,
    data: Prepared,
    references: Sequence[Candidate] = (),
    *,
    window: WindowConfig,
    config: EvaluateConfig | None = None,
    propensities: str | None = None,
    floor: bool = True,
    values: Scorer | None = None,
    people: np.ndarray | None = None,
    unseen: bool = False,
) -> Scores:
    """Score a policy at the positions of a split, with log-probabilities of each other reference.

    `values` is r̂ (default: the policy's own, or the items' mean rewards), asked for where propensities were logged or
    where `propensities` names a reference that stands for them. `people` are the sequences of the split that are scored
    (default: all). Without `floor` references are not measured against each other. With `unseen` ranks and likelihoods
    are also asked among what a sequence did not hold before.
    """
    config, policy = config or EvaluateConfig(), candidate.policy
    estimable = propensities is not None or "propensity" in data[config.split].arrays
    others = {each.name: each for each in references if each.name != candidate.name}
    device = device_of(policy, *(other.policy for other in others.values()))
    windows = Windows(data, config.split, window, device=device)
    if config.sequences is not None or people is not None:
        among = np.arange(len(windows)) if people is None else people
        count = min(config.sequences or len(among), len(among))
        windows = windows.only(among[np.linspace(0, max(len(among) - 1, 0), count).astype(np.int64)])
    return score(
        policy, windows, events=data.events, references={each: other.policy for each, other in others.items()},
        reward_model=(values or reward_model(policy, data)) if estimable else None, unseen=unseen, floor=floor,
        liked=question_of(data, config.split).kind == "liking", description=f"scoring {candidate.name}",
        min_history=config.min_history, exclude_seen=config.exclude_seen, lists=config.lists,
        batch_size=config.batch_size,
    )  # fmt: skip


def measured(
    candidate: Candidate,
    data: Prepared,
    scores: Scores,
    references: Sequence[Candidate] = (),
    *,
    config: EvaluateConfig | None = None,
    propensities: str | None = None,
    imputation: Imputation | None = None,
    rules: OverlapRules | None = None,
) -> Evaluation:
    """Evaluation of a scored policy: all metrics, and its divergence from the `references` it was scored with.

    Off-policy estimates are made where propensities were logged, or where `propensities` names a reference that
    stands for them.
    """
    config, name = config or EvaluateConfig(), candidate.name
    counts = np.asarray(data.catalogue["count"].to_numpy())
    known = data.known_items if learnt_columns(data.catalogue) else None
    earned = ("AR@1",) if scores.liked is None else ("AR@1", LIKED, AGREEMENT)
    figures: dict[str, Estimate | float] = {**ranking(scores, config.metrics, known=known)}
    figures |= {each: figure(scores, each) for each in earned}
    if imputation is not None:
        figures["iAR@1"] = mean_estimate(imputed_rewards(scores, imputation, data, config.split), scores.sequence)
    largest = max(data.manifest["rewards"].values(), default=None)
    beside = [other.origin for other in references if other.name != name]
    return Evaluation(
        name=name,
        figures=figures | shown_figures(scores, counts, config.lists),
        imputation=None if imputation is None else imputation.to_dict(),
        divergence=divergence(scores, beside, counts=counts, known=known),
        off_policy=value_of_scores(scores, propensities=propensities, largest_reward=largest, rules=rules),
        events=paid_events(data),
        scores=scores,
        counts=counts,
        known=known,
        settings={
            "policy": name,
            "data": data.digest,
            "kind": data.kind,
            **config.model_dump(mode="json"),
            **{each: scores.settings[each] for each in ("length", "last", "beyond_length")},
            "seed": candidate.origin.seed,
        },
    )


def measure(
    candidate: Candidate,
    data: Prepared,
    references: Sequence[Candidate] = (),
    *,
    config: EvaluateConfig | None = None,
    propensities: str | None = None,
    imputation: Imputation | None = None,
    rules: OverlapRules | None = None,
    **scoring: Any,
) -> Evaluation:
    """Score a policy and measure it, by the options of `scored` and of `measured`."""
    scores = scored(candidate, data, references, config=config, propensities=propensities, **scoring)
    about: dict[str, Any] = {"config": config, "propensities": propensities, "imputation": imputation, "rules": rules}
    return measured(candidate, data, scores, references, **about)


def evaluate(
    run: RunLike,
    *,
    against: Sequence[RunLike] | RunLike = (),
    data: Prepared | Path | str | None = None,
    world: Path | str | None = None,
    config: EvaluateConfig | Mapping[str, Any] | None = None,
    beta: float | None = None,
    propensities: str | None = None,
    imputation: Path | str | None = None,
    out: Path | str | None = None,
    device: str = "auto",
) -> Evaluation:
    """Evaluate one run on a split: ranking, reward, divergence from each run of `against`, truth if simulated.

    A saved baseline or a CSV or Parquet file of lists is measured likewise. `data` may be newer than what the run was
    trained on: what it does not know of it counts against it, and is in `settings["notes"]`.
    Without `against` the divergence is taken from the run's own logging head, where it has one; its noise floor is
    then not known. `world` is the folder of a simulated world (default: the data's own, where it was simulated).
    `propensities` names a reference whose probabilities stand for logged ones. `imputation` is the folder of imputed
    ratings behind iAR@1 (fitted where it is not there). `out` keeps the values per position and per sequence
    (default: the run's folder, under `evaluation/`).
    """
    run, others = as_run(run), [as_run(other) for other in as_list(against)]
    split = settings_of(config).split
    prepared, opened = open_all([run, *others], data, split=split, beta=beta, device=device)
    candidate, *references = opened
    notes = [note for each in opened for note in each.notes]
    notes += [*made_of(candidate, references), *shared_seeds(candidate, references), *filter_notes(prepared, split)]
    if not references and (own := own_logging(candidate)):
        references = [own]
    evaluation = measure(
        candidate, prepared, references, window=window_of(candidate), config=settings_of(config, candidate),
        propensities=propensities, imputation=None if imputation is None else imputation_at(imputation, prepared),
        people=people_of(each.policy for each in (candidate, *references)),
    )  # fmt: skip
    evaluation = replace(
        evaluation, settings={**evaluation.settings, **_origin(run, beta), "notes": [*notes, *evaluation.left_out]}
    )
    if (world_folder := world_of(prepared, world)) is not None:
        evaluation = replace(evaluation, truth=true_value(candidate.policy, load_world(world_folder)))
    beside = run.folder.parent / f"{run.folder.name}.evaluation" if run.folder.is_file() else run.folder / "evaluation"
    evaluation.save(Path(out) if out is not None else beside)
    return evaluation


def _origin(run: Run, beta: float | None) -> dict[str, Any]:
    """Digest of the weights, seed and β that an evaluation on disk belongs to."""
    if run.folder.is_file():
        return {"weights": sha256(run.folder), "seed": None, "beta": None}
    return {"weights": run.manifest["policy_sha256"], "seed": run.manifest["seed"], "beta": beta}


def settings_of(
    config: EvaluateConfig | Mapping[str, Any] | None, candidate: Candidate | None = None
) -> EvaluateConfig:
    """Evaluation settings; `min_history` is by default that of the candidate's training."""
    if isinstance(config, EvaluateConfig):
        return config
    trained = {} if candidate is None else candidate.facts
    return EvaluateConfig.parse({"min_history": int(trained.get("train.min_history", 1)), **(config or {})})


def world_of(data: Prepared, world: Path | str | None) -> Path | None:
    """Folder of the simulated world: as given, or inside the data; None for real data."""
    if world is not None:
        return Path(world)
    inside = data.path / "truth"
    return inside if (inside / "world.json").exists() else None
