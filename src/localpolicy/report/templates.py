"""Templates of the folder html, filled in: of whole pages, and of one table in a notebook."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from localpolicy.measure.divergence import MOST_JS
from localpolicy.measure.number_text import percent


def asset(name: str) -> str:
    """Text of a file in the package's folder `html`."""
    return files("localpolicy.report").joinpath("html", name).read_text(encoding="utf-8")


@cache
def templates() -> Environment:
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["asset"] = asset
    environment.globals["most_js"] = f"{MOST_JS:.3f}"
    environment.filters["percent"] = percent
    return environment


def render(name: str, **values: Any) -> str:
    """Text of a template filled in with `values`, stripped of outer whitespace."""
    return templates().get_template(name).render(values).strip()


def notebook(content: object) -> str:
    rules = re.findall(r"/\* tables \*/(.*?)/\* end of tables \*/", asset("style.css"), re.DOTALL)
    return render("notebook.html", content=content, rules="".join(rules))
