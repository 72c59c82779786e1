"""A sweep as tables and as a frontier."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

from localpolicy.judge.claims import Claim
from localpolicy.measure.divergence import times_floor
from localpolicy.measure.estimate import Interval, as_json
from localpolicy.measure.number_text import NOTHING, fixed, interval_text, percent
from localpolicy.report.contents import JS_SCALE, Contents, KeyNumber, PolicyInfo, Section
from localpolicy.report.page import MISSING, can_draw, write_picture, write_report
from localpolicy.report.table import Table
from localpolicy.study.measured import Pooled
from localpolicy.study.sweep import Sweep

LOG = logging.getLogger(__name__)


def sweep_tables(sweep: Sweep) -> list[Table]:
    """Tables of a sweep: every point on validation, the chosen one on test."""
    points, chosen = points_table(sweep), sweep.chosen
    return [points] if chosen is None else [points, chosen_table(sweep, chosen)]


def points_table(sweep: Sweep) -> Table:
    """Table of a sweep's points, one per row."""
    measured = (row for row in sweep.measurements if row.seed is None and row.split == "validation")
    rows, around = list[list[str]](), {(row.policy, row.figure): row.interval for row in measured}
    for tried in sweep.tried:
        if not tried.good:
            rows.append([tried.name, "failed", *[NOTHING] * 4, ""])
            continue
        js, chosen = tried.js("validation"), tried is sweep.chosen
        times = times_floor(js, sweep.noise)
        beyond = sweep.max_js is not None and js is not None and js.mean > sweep.max_js
        rows.append([
            tried.name,
            _score(tried, around.get((tried.name, sweep.figure))),
            interval_text(around.get((tried.name, "JS")), 3),
            NOTHING if times is None else f"{times:.1f}",
            *(percent(tried.weights.get(name)) for name in ("effective_share", "clipped_share")),
            "chosen" if chosen else "beyond the budget" if beyond else "",
        ])  # fmt: skip
    columns = ["point", "validation", "JS", "× floor", "effective sample", "capped", ""]
    missing = "no reference was given, its objective has no weights, or no seed could be trained"
    return Table(f"{sweep.objective}: every point, on validation", columns, rows, _note(sweep), missing=missing)


def _score(tried: Pooled, around: Interval | None) -> str:
    if not tried.whole:
        return f"{len(tried.seeds) - len(tried.good)} of {len(tried.seeds)} seeds failed"
    return fixed(tried.selection_score) if len(tried.seeds) == 1 else interval_text(around, 4)


def _note(sweep: Sweep) -> str:
    over = f"mean over {sweep.seeds} seeds, with Student's 95 % interval" if sweep.seeds > 1 else "one seed"
    known = "floor unknown: give two references"
    if sweep.noise is not None:
        known = f"{sweep.noise.mean:.4f} between them: the noise floor"
    parts = [
        f"Validation: {sweep.select}, {over}.",
        f"JS: 95 % intervals, clustered by sequence; from {', '.join(sweep.references)} ({known}).",
    ]
    if sweep.max_js is not None:
        parts.append(f"Budget: JS ≤ {sweep.max_js:g}.")
        if sweep.chosen is None:
            parts.append(f"NO point is within it; the nearest has JS {sweep.nearest:.4f}.")
    return " ".join(parts)


def chosen_table(sweep: Sweep, chosen: Pooled) -> Table:
    over_seeds = (row for row, _ in chosen.rows(sweep.tested) if row.seed is None)
    rows = [[row.name, interval_text(row.interval, 4), f"{row.n:,}"] for row in over_seeds]
    note = f"At {chosen.name}, which was chosen on validation alone. 95 % intervals, clustered by sequence."
    return Table("The chosen point, on test", ["figure", "mean", "positions"], rows, note)


def section(sweep: Sweep) -> Section:
    keys = dict.fromkeys(key for tried in sweep.tried for key, _ in tried.point.settings)
    policies = []
    for tried in (tried for tried in sweep.tried if tried.whole):
        beta, epochs = dict(tried.point.settings).get("objective.beta"), {seed.epoch for seed in tried.good}
        epoch = min(epochs) if len(epochs) == 1 else None  # seeds that kept other epochs have none in common
        policies.append(PolicyInfo(
            tried.name, sweep.objective, None if beta is None else float(beta), weights=tried.weights,
            selected_epoch=epoch, selected_by=sweep.select,
        ))  # fmt: skip
    return Section(
        title=f"{sweep.objective} over {', '.join(keys)}",
        about="Every point on the validation split, which also picked each run's epoch.",
        policies=policies,
        measurements=[row for row in sweep.measurements if row.split == "validation" and row.seed is None],
        columns={sweep.figure: sweep.figure},
        main=sweep.figure,
        reference=" and ".join(sweep.references),
        floor=Interval.known(sweep.noise),
        claims=claims(sweep),
        facts={"data digest": sweep.data[:16], "seeds": str(sweep.seeds), "search": sweep.search},
    )


def verdict(sweep: Sweep) -> str:
    """Sentence naming the chosen point and the metric that chose it."""
    if sweep.chosen is None:
        return f"No point is within JS {sweep.max_js:g}."
    among = "" if sweep.max_js is None else f" within JS {sweep.max_js:g}"
    best = sweep.chosen.selection_score
    return f"{sweep.chosen.name} has the highest validation {sweep.select}{among}: {best:.4f}."


def claims(sweep: Sweep) -> list[Claim]:
    """Claims that a point is within the budget and that the best point leads beyond noise."""
    found = []
    if sweep.max_js is not None:
        claim = f"a point is within the budget of JS {sweep.max_js:g}"
        because = f"the nearest has JS {sweep.nearest:.4f} on validation"
        found.append(Claim("JS", f"at most {sweep.max_js:g}", sweep.chosen is not None, claim, because))
    if sweep.chosen is not None:
        found.append(_lead(sweep, sweep.chosen))
    return found


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """Content of `sweep.json`: the long table, and the claims."""
    return {**sweep.to_dict(), "claims": as_json(claims(sweep))}


def _lead(sweep: Sweep, chosen: Pooled) -> Claim:
    """Claim that the chosen point is better than the second best, paired by seed."""
    claim = f"the lead of {chosen.name} is larger than the noise between seeds"
    about = sweep.figure, "Student's 95 % interval over seeds is above 0"
    if (known := sweep.lead()) is None:
        return Claim(*about, None, claim, "no other point to compare it with")
    second, lead = known
    text = f"{lead.mean:+.4f} over {second.name}, the second best"
    if len(chosen.seeds) == 1:
        return Claim(*about, None, claim, f"{text}, with one seed; --seeds 3 or more would tell")
    many = len(sweep.tried)
    flattered = f"; it is the best of {many} points, so the size of this lead is optimistic" if many > 2 else ""
    seeds = f"95 % interval {lead.low:+.4f} to {lead.high:+.4f}, paired over {len(chosen.seeds)} seeds{flattered}"
    return Claim(*about, lead.low > 0, claim, f"{text}; {seeds}", lead.mean, lead.low, lead.high)


def sweep_contents(sweep: Sweep) -> Contents:
    chosen, numbers = sweep.chosen, list[KeyNumber]()
    step = "Raise the budget, or add points with a larger β, which stay closer to the log."
    if chosen is not None:
        meaning = "On validation: this figure chose the point."
        numbers.append(KeyNumber(f"{chosen.selection_score:.4f}", f"{sweep.select} of {chosen.name}", meaning))
        if (js := chosen.js("validation")) is not None:
            noise = "" if sweep.noise is None else f" Two mle seeds differ by {sweep.noise.mean:.3f} (noise)."
            meaning = f"{JS_SCALE}{noise}"
            numbers.append(KeyNumber(f"{js.mean:.3f}", f"distance of {chosen.name} from the log (JS)", meaning))
        if (share := chosen.weights.get("effective_share")) is not None:
            meaning = "Share of the log that decides what is learned. If it is small, few positions decide."
            numbers.append(KeyNumber(percent(share), f"effective sample of {chosen.name}", meaning))
        references = (("--against", str(Path("runs") / name)) for name in sweep.references)  # of others whole paths
        words = ["lpi", "gate", f"runs/{chosen.seeds[0].name}", *(word for pair in references for word in pair)]
        step = f"Ask the gate whether to deploy it, in the folder of this page: {shlex.join(words)}."
    return Contents(f"Sweep of {sweep.objective}", verdict(sweep), [section(sweep)], numbers=numbers, next_step=step)


def draw(sweep: Sweep, out: Path) -> list[Path]:
    """Write frontier.svg and frontier.html; without the `report` extra, only log what to install."""
    if not can_draw():
        LOG.warning(MISSING)
        return []
    from localpolicy.report.charts import all_series
    from localpolicy.report.frontier import frontier

    contents = sweep_contents(sweep)
    chart = frontier(contents.sections[0], all_series(contents)[0], "frontier")
    written = [write_report(contents, out / "frontier.html")]
    return written if chart is None else [*written, write_picture(chart.spec, out / "frontier.svg")]
