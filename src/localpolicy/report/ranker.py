"""A layer on somebody's ranker: law, critics, what chose β, verdict; and what drawing its lists would cost."""

from __future__ import annotations

import math

from localpolicy.ranker.explore import OFF, ExplorePlan
from localpolicy.ranker.improve import Improvement
from localpolicy.ranker.values import Gain
from localpolicy.report.table import Table


def improvement_tables(result: Improvement) -> list[Table]:
    """Tables of an improved ranker: verdict and gain, then the tilts that were tried."""
    law = result.law
    rows = [("requests", f"{result.requests:,}"), ("how lists were drawn", _law(result))]
    if law.overlap is not None and law.same_first is not None:
        rows.append(("shown items that the best k by score hold", f"{law.overlap:.1%}"))
        rows.append(("lists that begin with their best item", f"{law.same_first:.1%}"))
    for event, losses in result.losses.items():
        told = ", ".join(f"{name} {loss:.5f}" for name, loss in sorted(losses.items(), key=lambda pair: pair[1]))
        rows.append((f"critic of {event}: held-out loss", told))
    if result.earned is not None and result.price is not None:
        rows.append(("a drawn list earns", f"{result.earned:.4g} per request"))
        rows.append(("without the draw", _gain(result.price, result.earned)))
    if result.stopping is not None:
        told = f"yes (p = {result.stopping.p:.1g}): gains by a cascade" if result.stopping.fails else "not seen"
        rows.append(("people stop after an answer", told))
    rows.append(("β", "∞: the ranker as it is" if math.isinf(result.beta) else f"{result.beta:.4g}"))
    if result.gain is not None and result.earned is not None:
        rows.append(("the layer, over the list without a draw", _gain(result.gain, result.earned)))
    if result.over_drawn is not None and result.earned is not None:
        rows.append(("the layer, over the drawn lists", _gain(result.over_drawn, result.earned)))
    found = [Table(f"{result.folder}: {result.verdict}", ("what", "found"), rows, f"{result.why}.")]
    if result.tried:
        earned = result.earned or 1.0
        tried = [
            (f"{one.kappa:g}", f"{one.beta:.3g}", f"{one.gain.mean / earned:+.1%}", f"{one.gain.low / earned:+.1%}",
             f"{one.gain.effective:.0%}", "chosen" if one.beta == result.beta else "")
            for one in result.tried
        ]  # fmt: skip
        how = result.form if result.form == "by places" else "by a cascade"
        note = (f"Gains over the ranker's drawn list, {how}, weights capped at 10; the largest lower bound above 0 is "
                "chosen.")  # fmt: skip
        found.append(Table("tilts", ("κ", "β", "gain", "at least", "sample left", ""), tried, note))
    return found


def _law(result: Improvement) -> str:
    law = result.law
    if not law.known:
        return law.kind if law.kind == "deterministic" else "not as stated"
    if law.kind == "probabilities":
        return "by the logged probabilities"
    scores = "standardised scores" if law.standardise else "scores"
    if law.temperature is None:
        return f"softmax of {scores} at the logged temperatures"
    return f"softmax of {scores} at {law.temperature:.3g}{' (fitted)' if law.fitted else ''}"


def _gain(gain: Gain, earned: float) -> str:
    low, mean, high = (one / earned for one in (gain.low, gain.mean, gain.high))
    return f"{mean:+.1%} ({low:+.1%} to {high:+.1%})"


def explore_tables(plan: ExplorePlan) -> list[Table]:
    """Table of an exploration plan: one row per way to draw, with a note on online tests."""
    columns = {
        "τ": [f"{one.temperature:g}" for one in plan.draws],
        "pins": [f"{one.pinned}" for one in plan.draws],
        "share": [f"{one.share:.0%}" for one in plan.draws],
        "cost": [_around(one.cost, "{:.2%}") for one in plan.draws],
        "overlap": [f"{one.overlap:.0%}" for one in plan.draws],
        f"lists for +{plan.gain:.0%}": [_around(one.lists, "{:,.0f}") for one in plan.draws],
        "days": ["–" if one.days is None else _around(one.days, "{:,.1f}") for one in plan.draws],
    }
    for name in ("pins", "share"):  # a terminal has room for what differs
        if len(set(columns[name])) == 1:
            del columns[name]
    low, high = plan.steepness
    how = f"exp({low:.2f} z), fitted to the log" if plan.fitted else f"exp({low:g} z) to exp({high:g} z)"
    note = (
        f"Ranges are a factor {OFF:g} either way. A list earns {plan.reward:.4g}, and an item with the standardised "
        f"score z in proportion to {how}. Lists: drawn ones until 'lpi improve' tells a gain of {plan.gain:.0%} over "
        f"the undrawn list in 4 of 5 logs. A plain A/B test of a finished candidate needs {plan.ab_test:,} lists, "
        f"interleaving {plan.interleaving:,} (which is better, not by how much). Until then the cheapest draw costs "
        f"what {plan.best.price:,.0f} lists earn; a layer with this gain earns it back in {plan.paid_back:,.0f}."
    )
    if plan.per_day is not None:
        note += f" A cost of 1% is {0.01 * plan.per_day * plan.reward:.3g} of reward a day."
    rows = list(zip(*columns.values(), strict=True))
    return [Table("what drawing costs, and when it tells", tuple(columns), rows, note)]


def _around(value: float, form: str) -> str:
    return f"{form.format(value / OFF)} to {form.format(value * OFF)}"
