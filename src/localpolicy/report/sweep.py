"""A sweep as tables and as a frontier."""

from __future__ import annotations

import logging
import math
from pathlib import Path

from localpolicy.evaluation.estimate import Estimate, Interval
from localpolicy.evaluation.segments import is_rating
from localpolicy.experiments.measured import Pooled
from localpolicy.experiments.seeds import over_seeds
from localpolicy.experiments.sweep_result import Sweep, Tried, best_within
from localpolicy.report.contents import CheckedClaim, Contents, KeyNumber, PolicyRow, Section
from localpolicy.report.html.page import write_report
from localpolicy.report.html.pictures import MISSING, can_draw, write_picture
from localpolicy.report.numbers import NOTHING, number, with_error
from localpolicy.report.table import Cell, Table

LOG = logging.getLogger(__name__)


def sweep_tables(sweep: Sweep) -> list[Table]:
    """Every point on validation; the chosen one on test."""
    test = sweep.test
    return [points_table(sweep)] if test is None else [points_table(sweep), chosen_table(sweep, test)]


def points_table(sweep: Sweep) -> Table:
    """One row per point."""
    floor = None if sweep.floor is None else sweep.floor["validation"].mean
    rows = []
    for one in sweep.tried:
        chosen = sweep.chosen is not None and one.point == sweep.chosen.point
        if not one.good:
            rows.append([Cell(one.point.name), Cell("failed"), *[Cell("—")] * 4, Cell("")])
            continue
        ratio = f"{one.js.mean / floor:.1f}" if floor and one.js is not None else "—"
        rows.append(
            [
                Cell(_name(sweep, one)),
                Cell(_worth(one), best=chosen and len(sweep.tried) > 1),
                Cell("—" if one.js is None else with_error(one.js.mean, one.js.se, 3)),
                Cell(ratio),
                Cell(_shares(one, "effective_share")),
                Cell(_shares(one, "clipped_share")),
                Cell(_verdict(sweep, one, chosen=chosen)),
            ]
        )
    columns = ["point", "validation", "JS", "× floor", "effective sample", "capped", ""]
    return Table(f"{sweep.objective}: every point, on validation", columns, rows, _note(sweep, floor))


def _worth(one: Tried) -> str:
    if len(one.good) < len(one.seeds):
        return f"{len(one.seeds) - len(one.good)} of {len(one.seeds)} seeds failed"
    return number(one.selection_score) if one.spread is None else with_error(one.selection_score, one.spread)


def _shares(one: Tried, name: str) -> str:
    """The mean over seeds; a dash for a closed form, which weighs nothing."""
    shares = [share for each in one.good if (share := each.about["run"]["weights"].get(name)) is not None]
    return f"{sum(shares) / len(shares):.0%}" if shares else NOTHING


def _verdict(sweep: Sweep, one: Tried, *, chosen: bool) -> str:
    if chosen:
        return "chosen"
    beyond = sweep.max_js is not None and one.js is not None and one.js.mean > sweep.max_js
    return "beyond the budget" if beyond else ""


def _note(sweep: Sweep, floor: float | None) -> str:
    over = f"mean ± standard deviation over {sweep.seeds} seeds" if sweep.seeds > 1 else "one seed"
    parts = [f"Validation: {sweep.select}, {over}."]
    reference = ", ".join(sweep.references)
    known = "floor unknown: give two references" if floor is None else f"{floor:.4f} between them: the noise floor"
    parts.append(f"JS from {reference} ({known}).")
    if sweep.max_js is not None:
        parts.append(f"Budget: JS ≤ {sweep.max_js:g}.")
        if sweep.chosen is None:
            nearest = min((one.js.mean for one in sweep.tried if one.js is not None), default=float("nan"))
            parts.append(f"NO point is within it; the nearest has JS {nearest:.4f}.")
    return " ".join(parts)


def chosen_table(sweep: Sweep, test: Pooled) -> Table:
    """The chosen policy's figures on the test split."""
    first = test.seeds[0].to_dict("test")
    groups = [name for name in first["metrics"] if name not in ("repeat", "new") and not is_rating(name)]
    rows = []
    for group in groups:
        for name in ("HR@20", "nDCG@20"):
            found = test.estimate(f"{group}.{name}")
            rows.append([Cell(f"{group}.{name}"), *_figure_cells(found)])
    js = test.js()
    if js is not None:
        rows.append([Cell("JS"), *_figure_cells(js)])
    note = f"At {test.name}, which was chosen on validation alone."
    return Table("The chosen point, on test", ["figure", "mean", "s.e. by sequence", "positions"], rows, note)


def _figure_cells(found: Estimate) -> list[Cell]:
    return [Cell(number(found.mean)), Cell(number(found.se)), Cell(f"{found.n:,}")]


def section(sweep: Sweep) -> Section:
    """The sweep as a comparison for a page."""
    metric = f"validation {sweep.select}"
    rows = [_row(sweep, one, metric) for one in sweep.tried if len(one.good) == len(one.seeds)]
    floor = None if sweep.floor is None else sweep.floor["validation"]
    keys = dict.fromkeys(key for one in sweep.tried for key, _ in one.point.settings)
    return Section(
        title=f"{sweep.objective} over {', '.join(keys)}",
        about="Every point on the validation split, which also picked each run's epoch.",
        rows=rows,
        reference=" and ".join(sweep.references),
        floor=None if floor is None else Interval.of(floor.mean, floor.se),
        findings=findings(sweep),
        facts={"data digest": sweep.data[:16], "seeds": str(sweep.seeds), "search": sweep.search},
        main_metric=metric,
    )


def _row(sweep: Sweep, one: Tried, metric: str) -> PolicyRow:
    beta = dict(one.point.settings).get("objective.beta")
    unknown = [math.nan] * len(one.seeds)  # how far one seed is from another, nobody knows who has one
    return PolicyRow(
        name=_name(sweep, one),
        objective=sweep.objective,
        beta=None if beta is None else float(beta),
        metrics={metric: over_seeds([each.selection_score for each in one.seeds], unknown)},
        js=None if one.js is None else Interval.of(one.js.mean, one.js.se),
        weights=one.good[0].about["run"]["weights"],
        selected_epoch=one.good[0].epoch,
        selected_by=sweep.select,
    )


def verdict(sweep: Sweep) -> str:
    """Which point was chosen, by which figure."""
    if sweep.chosen is None:
        return f"No point is within JS {sweep.max_js:g}."
    among = "" if sweep.max_js is None else f" within JS {sweep.max_js:g}"
    best = sweep.chosen.selection_score
    return f"{_name(sweep, sweep.chosen)} has the highest validation {sweep.select}{among}: {best:.4f}."


def findings(sweep: Sweep) -> list[CheckedClaim]:
    """Whether anything keeps the budget, and whether the choice is more than a lucky seed."""
    found = []
    if sweep.max_js is not None:
        nearest = min((one.js.mean for one in sweep.tried if one.js is not None), default=math.nan)
        claim = f"a point is within the budget of JS {sweep.max_js:g}"
        found.append(CheckedClaim(claim, sweep.chosen is not None, f"the nearest has JS {nearest:.4f} on validation"))
    if sweep.chosen is not None:
        found.append(_lead(sweep, sweep.chosen))
    return found


def _lead(sweep: Sweep, chosen: Tried) -> CheckedClaim:
    """The chosen point against the second best, seed by seed."""
    claim = f"the lead of {_name(sweep, chosen)} is larger than what seeds differ by"
    others = [one for one in sweep.tried if one.point != chosen.point]
    second = best_within(others, sweep.max_js)
    if second is None:
        return CheckedClaim(claim, None, "no other point to compare it with")
    differences = [
        one.selection_score - other.selection_score for one, other in zip(chosen.seeds, second.seeds, strict=True)
    ]
    lead = over_seeds(differences, [math.nan])
    text = f"{lead.mean:+.4f} over {_name(sweep, second)}, the second best"
    if len(differences) == 1:
        return CheckedClaim(claim, None, f"{text}, with one seed; --seeds 3 or more would tell")
    flattered = f"; the highest of {len(sweep.tried)} is flattered by that" if len(others) > 1 else ""
    seeds = f"95 % interval {lead.low:+.4f} to {lead.high:+.4f}, paired over {len(differences)} seeds{flattered}"
    return CheckedClaim(claim, lead.low > 0, f"{text}; {seeds}")


def _name(sweep: Sweep, one: Tried) -> str:
    return one.point.name or sweep.objective


def sweep_contents(sweep: Sweep) -> Contents:
    """The sweep as a report."""
    title, chosen = f"Sweep of {sweep.objective}", sweep.chosen
    if chosen is None:
        step = "Raise the budget, or add points with a larger β, which stay closer to the log."
        return Contents(title, verdict(sweep), [section(sweep)], next_step=step)
    name = _name(sweep, chosen)
    numbers = [KeyNumber(f"{chosen.selection_score:.4f}", f"{sweep.select} of {name}", "On validation; it chose.")]
    if chosen.js is not None:
        noise = "" if sweep.floor is None else f" Two mle seeds differ by {sweep.floor['validation'].mean:.3f} (noise)."
        meaning = f"0: it shows the same as before; 0.69: nothing in common.{noise}"
        numbers.append(KeyNumber(f"{chosen.js.mean:.3f}", f"distance of {name} from the log (JS)", meaning))
    if (share := _shares(chosen, "effective_share")) != NOTHING:
        meaning = "Share of the log that decides what is learned. A small one means that few positions decide."
        numbers.append(KeyNumber(share, f"effective sample of {name}", meaning))
    run = f"runs/{chosen.seeds[0].name}"
    step = f"Ask the gate whether to deploy it: lpi gate {run} --against the run that is deployed."
    return Contents(title, verdict(sweep), [section(sweep)], numbers=numbers, next_step=step)


def draw(sweep: Sweep, out: Path) -> list[Path]:
    """frontier.svg, and frontier.html with its numbers; nothing but a line where nothing can be drawn."""
    if not can_draw():
        LOG.warning(MISSING)
        return []
    from localpolicy.report.html.frontier import frontier
    from localpolicy.report.html.palette import series_styles

    contents = sweep_contents(sweep)
    chart = frontier(contents.sections[0], series_styles(contents)[0], "frontier")
    written = [write_report(contents, out / "frontier.html")]
    return written if chart is None else [*written, write_picture(chart.spec, out / "frontier.svg")]
