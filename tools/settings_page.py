"""Writes docs/settings.md from the models themselves: `make docs`. A test sees to it that the page is up to date."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from localpolicy.data.config import PrepareConfig
from localpolicy.judge.gate import GateRules
from localpolicy.measure.evaluation import EvaluateConfig
from localpolicy.measure.imputation import FactorisationConfig
from localpolicy.measure.off_policy.overlap import OverlapRules
from localpolicy.objectives import OBJECTIVES
from localpolicy.runs.config import Config
from localpolicy.settings import Settings
from localpolicy.simulation.bandit import BanditConfig
from localpolicy.simulation.raw_netflix import NetflixConfig
from localpolicy.simulation.shop import StoreConfig

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
OTHERS: dict[str, type[Settings]] = {
    "`lpi prepare`": PrepareConfig,
    "`lpi evaluate`": EvaluateConfig,
    "`lpi gate`": GateRules,
    "When an off-policy estimate is refused": OverlapRules,
    "Imputed ratings": FactorisationConfig,
    "`lpi simulate bandit`": BanditConfig,
    "`lpi simulate store`": StoreConfig,
    "`lpi simulate netflix`": NetflixConfig,
}
HEAD = """# Settings

Written by `make docs` from the configuration models; do not edit. A run's own, resolved, are in its `config.yaml`;
`lpi train --print-config` shows them before it starts. `lpi train` takes them from `--preset`, then `--config FILE`,
then `--set key=value`, then short forms such as `--beta`; later ones win. An unknown key is refused with the nearest
known one.
"""


def allowed(field: FieldInfo) -> str:
    """Values that a field takes, in words."""
    bounds = [
        f"{sign} {getattr(one, name):g}"
        for one in field.metadata
        for name, sign in BOUNDS.items()
        if hasattr(one, name)
    ]
    return ", ".join([named(field.annotation), *bounds])


def named(annotation: Any) -> str:
    """A type, as people say it."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join("nothing" if one is type(None) else named(one) for one in inner)
    if origin in (tuple, list):
        return f"list of {named(inner[0])}"
    if origin is dict or getattr(origin, "__name__", "") == "Mapping":
        return f"{named(inner[0])} = {named(inner[1])} pairs"
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return "settings of their own, below"
    words = {int: "whole number", float: "number", str: "text", bool: "`true`, `false`"}
    return words.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())


def default(field: FieldInfo) -> str:
    """A field's default, as YAML would have it."""
    value = field.get_default(call_default_factory=True)
    if field.is_required():
        return "(required)"
    if value is None or isinstance(value, Settings) or value in ((), {}, []):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | list):
        return "`" + ", ".join(str(one) for one in value) + "`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def rows_of(settings: type[Settings], prefix: str = "") -> list[str]:
    """A table: key, default, allowed values, description."""
    lines = ["| key | default | values | what it is |", "|---|---|---|---|"]
    for name, field in settings.model_fields.items():
        cells = (f"`{prefix}{name}`", default(field), allowed(field), field.description or "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def objective_rows() -> list[str]:
    """Each objective's own settings."""
    lines = ["`objective.name` is one of these (`package.module:Name` for one of your own).", ""]
    for name, objective in OBJECTIVES.items():
        head = objective.__doc__.splitlines()[0] if objective.__doc__ else ""
        lines += [f"**`{name}`**: {head}", ""]
        lines += [*rows_of(objective, "objective."), ""] if objective.model_fields else ["It has no settings.", ""]
    return lines


def page() -> str:
    """The whole page."""
    lines = [HEAD, "## `lpi train`", ""]
    for group, field in Config.model_fields.items():
        lines += [f"### {group}: {field.description}", ""]
        if group == "objective":
            lines += objective_rows()
            continue
        settings = field.annotation
        assert isinstance(settings, type) and issubclass(settings, Settings)
        lines += [*rows_of(settings, f"{group}."), ""]
    for title, settings in OTHERS.items():
        lines += [f"## {title}", "", *rows_of(settings), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
