"""What policies would show after the same history, list beside list."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from localpolicy.report.contents import SampleLists
from localpolicy.report.html.markup import hidden
from localpolicy.report.table import percent

MOST = 12  # histories on a page
RECENT = 12  # items of a history


def sample_lists(samples: Sequence[SampleLists]) -> str:
    """Each history with the lists of every policy; what the first list lacks is marked."""
    shown = "".join(_sample(sample, index + 1) for index, sample in enumerate(samples[:MOST]))
    marks = '<p class="aside">Most recent item last. + marks an item that the first list lacks.</p>'
    left = len(samples) - MOST
    return marks + shown + (f'<p class="aside">{left} more histories are not shown.</p>' if left > 0 else "")


def _sample(sample: SampleLists, number: int) -> str:
    earlier = len(sample.history) - RECENT
    items = "".join(f"<li>{escape(item)}</li>" for item in sample.history[-RECENT:])
    before = f'<li class="earlier">{earlier} earlier</li>' if earlier > 0 else ""
    history = f'<ol class="history">{before}{items}</ol>' if sample.history else '<p class="aside">no history yet</p>'
    names = list(sample.lists)
    known = {item for item, _ in sample.lists[names[0]]} if names else set()
    most = max((chance for ranked in sample.lists.values() for _, chance in ranked), default=0.0)
    columns = "".join(
        _list(name, sample.lists[name], known if number else None, most) for number, name in enumerate(names)
    )
    return (
        f'<section class="sample"><h4>History {number}{hidden(", oldest first")}</h4>{history}'
        f'<div class="lists">{columns}</div></section>'
    )


def _list(name: str, ranked: Sequence[tuple[str, float]], known: set[str] | None, most: float) -> str:
    lines = "".join(_line(item, chance, known, most) for item, chance in ranked)
    return f"<div><h5>{escape(name)}</h5><ol>{lines}</ol></div>"


def _line(item: str, chance: float, known: set[str] | None, most: float) -> str:
    fresh = known is not None and item not in known
    mark = (
        f'<span class="mark" title="not in the first list">+{hidden(" not in the first list")}</span>' if fresh else ""
    )
    width = 100 * chance / most if most > 0 else 0.0
    return (
        f'<li><span class="item">{escape(item)}{mark}</span><span class="chance">{percent(chance)}</span>'
        f'<span class="bar" style="width:{width:.1f}%"></span></li>'
    )
