"""Writes docs/settings.md from the models themselves: `make docs`. A test sees to it that the page is up to date."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from localpolicy.data.config import PrepareConfig
from localpolicy.judge.rules import GateRules
from localpolicy.measure.decisions import OverlapRules
from localpolicy.measure.imputation import FactorisationConfig
from localpolicy.measure.metrics import EvaluateConfig
from localpolicy.objectives import OBJECTIVES
from localpolicy.runs.config import Config
from localpolicy.settings import Settings
from localpolicy.simulation.bandit import BanditConfig
from localpolicy.simulation.raw_netflix import NetflixConfig
from localpolicy.simulation.store_config import StoreConfig

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
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

Written by `make docs` from the configuration models. A run's own, resolved, are in its `config.yaml`; `lpi train
--print-config` shows them before it starts. `lpi train` takes them from `--preset`, then `--config FILE`, then `--set
key=value`, then options such as `--beta`; later ones win. An unknown key is refused with the nearest known one. Where
the default is `auto` the log decides ([how](results/defaults.md)), and the manifest's `auto` says what was chosen; a
run that starts from another has what that one has.
"""


def choices(annotation: Any) -> list[str]:
    """The words that a field takes, where there are few; errors say the bounds of anything else."""
    if get_origin(annotation) is Literal:
        return [f"`{value}`" for value in get_args(annotation)]
    inner = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()
    return [word for one in inner for word in choices(one)]


def meaning(field: FieldInfo) -> str:
    """What a field is, and the words that it takes."""
    words = choices(field.annotation)
    return f"{field.description} ({', '.join(words)})" if words else field.description or ""


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


def row(*cells: str) -> str:
    """A line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def rows_of(settings: type[Settings], prefix: str = "") -> list[str]:
    """A table: key, default, description."""
    lines = ["| key | default | what it is |", "|---|---|---|"]
    fields = settings.model_fields.items()
    return lines + [row(f"`{prefix}{name}`", default(field), meaning(field)) for name, field in fields]


def objective_rows() -> list[str]:
    """The settings of all objectives, each once, with those that have it."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for objective, settings in OBJECTIVES.items():
        for name, field in settings.model_fields.items():
            found.setdefault((f"`objective.{name}`", default(field), meaning(field)), []).append(f"`{objective}`")
    lines = ["`objective.name` is one of [these](objectives.md), or `package.module:Name` for one of your own.", ""]
    lines += ["| key | of | default | what it is |", "|---|---|---|---|"]
    return lines + [row(key, ", ".join(of), value, words) for (key, value, words), of in sorted(found.items())] + [""]


def page() -> str:
    """The whole page."""
    lines = [HEAD, "## `lpi train`", ""]
    for group, field in Config.model_fields.items():
        if group == "auto":
            continue  # written by a run, not given to it
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
