"""What every page shares: the head, the one style sheet, and the rule that nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from localpolicy.report.html.markup import table
from localpolicy.report.table import Table

# Colours of a notebook: its own paper and ink, light or dark.
NOTEBOOK = (
    ":scope { --paper: inherit; --raised: #8881; --ink: inherit; --soft: #777; --line: #8884; --yes: #0b6b4f; "
    "--no: #a33a00; }"
)

# Nothing may be fetched, whatever a name in the data says. Vega compiles its expressions, hence 'unsafe-eval'.
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"


def asset(name: str) -> str:
    """A file of this folder."""
    return files("localpolicy.report.html").joinpath(name).read_text(encoding="utf-8")


def skeleton(title: str, body: str) -> str:
    """A whole page around its body."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{asset('style.css')}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def tables_page(tables: Sequence[Table], *, title: str) -> str:
    """A page of tables."""
    return skeleton(title, f'<header><h1 class="title">{escape(title)}</h1></header>\n<main>{blocks(tables)}</main>\n')


def notebook(content: Table) -> str:
    """A table for a notebook: the page's own rules, kept to this one element."""
    rules = re.findall(r"/\* tables \*/(.*?)/\* end of tables \*/", asset("style.css"), re.DOTALL)
    style = f"@scope (.localpolicy) {{ {NOTEBOOK} {''.join(rules)} }}"
    return f'<div class="localpolicy"><style>{style}</style>{table(content, identity="table")}</div>'


def blocks(tables: Sequence[Table]) -> str:
    """Tables one below the other."""
    return "".join(f'<div class="block">{table(content, identity=f"table-{index + 1}")}</div>\n'
                   for index, content in enumerate(tables))  # fmt: skip
