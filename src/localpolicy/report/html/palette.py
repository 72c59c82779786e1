"""One colour and shape per objective, on every chart and in every table of a page.

Colours are of the palettes of Okabe & Ito and of Paul Tol, which colour-blind readers can tell apart; the shape says
the same again. Policies of one objective (its values of β) differ in the fill of their points and the dash of their
lines, so that no two style the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from localpolicy.report.contents import Contents, PolicyRow, Section

OBJECTIVES = {
    "mle": ("#6b7078", "circle"),
    "reward_weighted": ("#d98f00", "square"),
    "ips": ("#d55e00", "triangle-up"),
    "pg": ("#c4689a", "diamond"),
    "ips_pg": ("#882255", "triangle-down"),
    "lpi_cb": ("#0072b2", "circle"),
    "lpi_rl": ("#0072b2", "diamond"),
    "sqn": ("#009e73", "square"),
    "sac": ("#3d9fd9", "triangle-up"),
}
OTHERS = (
    ("#8a8a2b", "cross"),
    ("#332288", "triangle-right"),
    ("#2f8f80", "triangle-left"),
    ("#661100", "cross"),
    ("#aa4499", "triangle-right"),
)
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3), (4, 1), (12, 4), (1, 3))

PATHS = {  # as the charting library draws them, in a box from -1 to 1
    "circle": "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0Z",
    "square": "M-.85-.85h1.7v1.7h-1.7Z",
    "diamond": "M0-1.15L.85 0 0 1.15-.85 0Z",
    "triangle-up": "M0-.95L1 .8H-1Z",
    "triangle-down": "M0 .95L1-.8H-1Z",
    "triangle-right": "M.95 0L-.8 1V-1Z",
    "triangle-left": "M-.95 0L.8 1V-1Z",
    "cross": "M-1-.35h.65V-1h.7v.65H1v.7H.35V1h-.7V.35H-1Z",
}


@dataclass(frozen=True)
class SeriesStyle:
    """How one policy is drawn."""

    colour: str
    shape: str
    fill: str
    dash: tuple[int, ...]

    def swatch(self, *, line: bool = False) -> str:
        """A small inline picture of it, for tables and legends; `line` shows the dash too."""
        stroke = f'stroke="{self.colour}" stroke-width="1.5"'
        dash = " ".join(map(str, self.dash))
        drawn = f'<path d="M-13 0H13" fill="none" {stroke} stroke-dasharray="{dash}"/>' if line else ""
        box, width = ("-14 -7 28 14", 28) if line else ("-7 -7 14 14", 14)
        return (
            f'<svg class="swatch" viewBox="{box}" width="{width}" height="14" aria-hidden="true">{drawn}'
            f'<path d="{PATHS[self.shape]}" transform="scale(4.5)" fill="{self.fill}" {stroke} '
            'vector-effect="non-scaling-stroke"/></svg>'
        )


def series_styles(contents: Contents) -> list[list[SeriesStyle]]:
    """One style per row of each section; an objective has the same colour and shape in all of them."""
    family = _families(row.objective for section in contents.sections for row in section.rows)
    return [_of_section(section, family) for section in contents.sections]


def _families(objectives: Iterable[str]) -> dict[str, tuple[str, str]]:
    strangers = [name for name in dict.fromkeys(objectives) if name not in OBJECTIVES]
    return OBJECTIVES | {name: OTHERS[index % len(OTHERS)] for index, name in enumerate(strangers)}


def _of_section(section: Section, family: dict[str, tuple[str, str]]) -> list[SeriesStyle]:
    members: dict[str, list[PolicyRow]] = {}
    for row in section.rows:
        members.setdefault(row.objective, []).append(row)
    styles = []
    for row in section.rows:
        kin = members[row.objective]
        index = next(number for number, other in enumerate(kin) if other is row)
        colour, shape = family[row.objective]
        tint = 0.9 * index / (len(kin) - 1) if len(kin) > 1 else 0.0
        styles.append(SeriesStyle(colour, shape, tinted(colour, tint), DASHES[index % len(DASHES)]))
    return styles


def tinted(colour: str, share: float) -> str:
    """`colour` mixed with so much white."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)
