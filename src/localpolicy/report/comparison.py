"""A comparison as a report: what was found in plain words, then every figure behind it.

`lpi compare --html`, `lpi go` and the demo make their pages here, so that there is one report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from localpolicy.data.guess.log_columns import Titles
from localpolicy.data.store import Prepared
from localpolicy.judge.comparison import TRUE_GAIN, Comparison
from localpolicy.judge.findings import findings
from localpolicy.judge.verdict import Gate
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.estimate import Interval, Measurement, sequences_of
from localpolicy.measure.metrics import AT_K, is_certain
from localpolicy.measure.number_text import counted
from localpolicy.measure.significance import SIGNIFICANT
from localpolicy.model.lists import names_of
from localpolicy.model.policy import Policy
from localpolicy.report.comparison_headline import comparison_headline
from localpolicy.report.contents import HALF, VALIDATION, Contents, PolicyInfo, SampleLists, Section, StageCurve
from localpolicy.report.gate import numbered
from localpolicy.report.page import write_report
from localpolicy.report.tables import groups_at_k
from localpolicy.runs.config import Config
from localpolicy.version import __version__

BINS = 60  # of the divergence's histogram

Bars = Sequence[tuple[float, float, int]]  # of a histogram: from, to, contexts


def write_comparison(comparison: Comparison, path: Path | str, *, titles: Titles | None = None) -> Contents:
    """Write the report of a comparison as one HTML file; `titles` are display names of items."""
    section = comparison_section(comparison, titles=titles)
    settings = {
        "localpolicy": __version__,
        "columns compared": ", ".join(comparison.columns),
        "policies are ordered by": section.metric,
        "the question to the log": f"{comparison.question.kind}: {comparison.question.why}",
        "figures are tested against": section.baseline or "nothing: there is no mle run, and no --baseline",
        **numbered(comparison.notes),
    }
    contents = replace(comparison_headline(comparison, section), sections=[section], settings=settings)
    write_report(contents, path)
    return contents


def comparison_section(
    comparison: Comparison, *, base: Path | None = None, titles: Titles | None = None, samples: bool = True,
    of: str | None = None, verdict: Gate | None = None,
) -> Section:  # fmt: skip
    """Report section of one comparison; runs in the folder `base` are named relative to it.

    Findings about one policy are about the one called `of`, or else about the best that is meant to improve. A
    `verdict` on one of them says with its checks and its figures whether it is better.
    """
    first = comparison.evaluations[0]

    def named(rows: Iterable[Measurement]) -> list[Measurement]:
        return [_decided(row, comparison) for row in rows]

    def titled(columns: Iterable[str]) -> dict[str, str]:
        return {column: column.replace(".", " ", 1) for column in columns}

    by_value = comparison.main == comparison.value
    value = {comparison.value: f"estimated reward per {comparison.unit}"} if by_value else {}
    tested = [*comparison.tested, *([TRUE_GAIN] if comparison.true_gains else [])]
    gains = {each.name: {**comparison.gains.get(each.name, {})} for each in comparison.evaluations}
    for name, gain in comparison.true_gains.items():
        gains[name][TRUE_GAIN] = gain
    checks, more = ((), ()) if verdict is None else (verdict.checks, verdict.figures)
    return Section(
        title=f"On the {first.settings['split']} split",
        about=_about(comparison),
        policies=[
            _info(candidate, bars, base)
            for candidate, bars in zip(comparison.candidates, _histograms(comparison), strict=True)
        ],
        measurements=[*named(comparison.measurements), *more],
        segments=named(row for each in comparison.evaluations for row in each.by_segment(comparison.ranked)),
        columns=value | titled([*comparison.columns, *first.rewards]),
        at_k=titled(
            f"{group}.{name}"
            for group in groups_at_k(comparison)
            for name in AT_K
            if not is_certain(name, len(first.counts))
        ),
        main=comparison.main,
        ranked=comparison.ranked,
        gains={name: gained for name, gained in gains.items() if gained},
        traded=comparison.traded,
        corrected={figure: comparison.comparisons(figure) for figure in tested},
        unseen_by_js=comparison.unseen_by_js,
        likeliest=[name for name, pair in comparison.pairs.items() if pair.note],
        logging_value=None if first.truth is None else Interval.of(first.truth.logging, 0.0),
        reference=_reference(comparison),
        baseline=comparison.baseline or "",
        floor=Interval.known(comparison.floor),
        samples=sample_lists(comparison, titles or {}) if samples else (),
        facts=_facts(comparison),
        lists=first.lists,
        claims=findings(comparison, of=of, judged=verdict is not None),
        checks=checks,
        unit=first.unit,
        amount=comparison.question.amount,
        value=comparison.value,
    )


def _decided(row: Measurement, comparison: Comparison) -> Measurement:
    """Row of the true gain with its Holm-corrected interval; any other row unchanged."""
    gain = comparison.true_gains.get(row.policy) if row.figure == TRUE_GAIN else None
    return row if gain is None else row._replace(low=gain.low, high=gain.high)


# ---------------------------------------------------------------------- one policy


def _info(candidate: Candidate, bars: Bars, base: Path | None) -> PolicyInfo:
    """Description of a policy for the report: name, objective, β, training curve and run."""
    info = PolicyInfo(candidate.name, candidate.origin.objective, js_histogram=bars)
    run = candidate.run
    if run is None or not run.started:
        return info
    manifest, curve, selected = run.manifest, run.metrics(), run.manifest["selected"]
    inside = base is not None and run.folder.is_relative_to(base)
    return replace(
        info,
        beta=getattr(candidate.policy, "beta", None) or run.config.objective.beta_of(manifest),
        weights=run.selected_metrics()["weights"],
        # The stages of a closed form have figures of their own, which no axis shares with the policies' figure.
        curve=[line for line in curve if "stage" not in line],
        stages=_stages(manifest, curve),
        selected_epoch=selected["epoch"],
        selected_by=selected["by"],
        on=HALF if run.config.train.choose_on == "half" else VALIDATION,
        run=str(run.folder.relative_to(base) if base is not None and inside else run.folder),
        digest=manifest["policy_sha256"],
    )


def _stages(manifest: Mapping[str, Any], curve: Sequence[Mapping[str, Any]]) -> dict[str, StageCurve]:
    """Validation curve of each network of a closed form, with epochs that begin at 1."""
    stages, before = {}, 0
    # Where a critic was calibrated, the other half chose the slope and β.
    on = HALF if "calibration" in manifest.get("improvement", {}) else VALIDATION
    for name, about in manifest.get("stages", {}).items():
        lines = [{**line, "epoch": line["epoch"] - before} for line in curve if line.get("stage") == name]
        stages[name] = StageCurve(lines, about["selected"]["epoch"], about["selected"]["by"], on)
        before += about["epochs"]
    return stages


def _histograms(comparison: Comparison) -> list[Bars]:
    """JS over the contexts of each policy. Bins are the same for all; equal steps in √JS resolve small values."""
    every = [evaluation.js for evaluation in comparison.evaluations]
    last = float(max((js.max() for js in every if js is not None), default=0.0)) or 1.0
    edges = np.linspace(0.0, np.sqrt(last), BINS + 1)[:-1] ** 2
    bins = np.append(edges, last).tolist()  # exactly: rounding may put the square of a root below it
    counts = [[] if js is None else np.histogram(js, bins)[0].tolist() for js in every]
    return [list(zip(bins[:-1], bins[1:], each, strict=True)) if each else [] for each in counts]


# ---------------------------------------------------------------------- all of them


def _reference(comparison: Comparison) -> str:
    said = [
        f"{each.name} ({each.origin.objective}, seed {each.origin.seed}, epoch {each.origin.epoch})"
        for each in comparison.references
    ]
    if len(said) > 1:
        return f"the mean over {', '.join(said)}, never of a policy with itself"
    return said[0] if said else ""


def _about(comparison: Comparison) -> str:
    data, measured = comparison.data, comparison.evaluations[0]
    dates = data.manifest.get("dates") or {}
    first, last = (str(dates.get(end) or "")[:10] for end in ("first", "last"))
    days = f" of {first}" if first == last else f" from {first} to {last}"
    sequences = counted(sequences_of(measured.scores.sequence), "sequence")
    seen = " Items that a sequence held before are never shown." if measured.settings["exclude_seen"] else ""
    return (
        f"A log of {data.kind}{days if first and last else ''}: {counted(len(data), 'sequence')} over "
        f"{counted(data.n_items, 'item')}. Measured on {counted(len(measured.scores), 'position')} of {sequences} that "
        f"no policy was trained on, over the whole catalogue.{seen}"
    )


def _facts(comparison: Comparison) -> dict[str, str]:
    data, settings = comparison.data, comparison.evaluations[0].settings
    facts = {
        "sequences": f"{len(data):,}",
        "items": f"{data.n_items:,}",
        **{f"events: {name}": f"{count:,}" for name, count in data.manifest["counts"]["events"].items()},
        "split": f"{settings['split']}, positions with at least {settings['min_history']} actions before them",
        "contexts": f"the most recent {settings['length']} actions",
        "errors": "clustered by sequence",
        "▲ and ▼": f"paired tests by sequence, {SIGNIFICANT}, corrected by Holm's method for all comparisons made",
        "data digest": data.digest[:16],
    }
    every = {candidate.name: candidate.run for candidate in (*comparison.candidates, *comparison.references)}
    for name, run in every.items():
        if run is not None and run.started:
            facts[f"settings of {name}"] = _changed(run.config)
    return facts


def _changed(config: Config) -> str:
    """Text of the objective and of all settings that differ from their defaults."""
    groups = {group: getattr(config, group) for group in Config.model_fields if group != "auto"}
    changed = [
        f"{group}.{key}={getattr(settings, key)}"
        for group, settings in groups.items()
        for key in settings.model_dump(exclude_defaults=True)
        if key != "name"
    ]
    return ", ".join([f"objective.name={config.objective.name}", *changed])


# ---------------------------------------------------------------------- what μ̂ and π would show


SAMPLES, LISTED = 3, 5  # histories shown, and items of each list


def sample_lists(comparison: Comparison, titles: Titles) -> list[SampleLists]:
    """Lists of μ̂ and of the best other policy for a few held-out histories."""
    estimates = {reference.name for reference in comparison.references}
    others = [each for each in comparison.candidates if each.name not in estimates and each.run is not None]
    order = {name: place for place, name in enumerate(comparison.order(comparison.main))}
    others.sort(key=lambda each: order.get(each.name, len(order)))
    policies = {
        each.name: each.policy for each in (*comparison.references[:1], *others[:1]) if isinstance(each.policy, Policy)
    }
    data, split = comparison.data, comparison.evaluations[0].settings["split"]
    lengths = np.diff(data[split].offsets)
    long = np.flatnonzero(lengths >= min(LISTED + 1, lengths.max(initial=0)))  # with something to read
    spread = long[np.linspace(0, len(long) - 1, min(SAMPLES, len(long))).astype(int)]
    return [_sample(policies, data, split, int(index), titles) for index in spread]


def _sample(policies: Mapping[str, Policy], data: Prepared, split: str, index: int, titles: Titles) -> SampleLists:
    sequence = data[split][index]
    ids = data.catalogue["item_id"].take(pa.array(sequence["item"][:-1])).to_pylist()
    events = [data.events[code] for code in sequence["event"][:-1]]
    lists = {}
    for name, policy in policies.items():
        listed = policy.recommend([ids], min(LISTED, data.n_items), events=[events])
        shares = listed.log_probability[0].exp().tolist()
        shown = _called(listed.items[0], None if listed.names is None else listed.names[0], titles)
        lists[name] = list(zip(shown, shares, strict=True))
    met = _called(ids, names_of(data.catalogue, sequence["item"][:-1].tolist()), titles)
    return SampleLists([f"{item} ({event})" for item, event in zip(met, events, strict=True)], lists)


def _called(ids: Sequence[object], names: Sequence[str] | None, titles: Titles) -> list[str]:
    """Display names of items: their titles if given, else the item table's names, else their ids."""
    return [titles.get(str(item), str(name)) for item, name in zip(ids, names or ids, strict=True)]
