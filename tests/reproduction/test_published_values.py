"""What the paper printed, against its LaTeX where that is at hand."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from localpolicy.reproduction.recipe import METRICS, published

PAPER = Path(os.environ.get("LOCALPOLICY_PAPER", Path(__file__).parents[3] / "shared" / "paper"))
ROWS = {
    r"$\hat{\mu}$": "mle",
    r"$\mathcal{L}_\mu(\pi)$": "reward_weighted",
    r"\textsc{pg}": "pg",
    r"\textsc{ips-pg}": "ips_pg",
    r"\textsc{sqn}": "sqn",
    r"\textsc{sac}": "sac",
    r"\lpir": "lpi_rl",
}


@pytest.fixture(scope="module")
def latex() -> str:
    if not PAPER.is_dir() or not (files := sorted(PAPER.iterdir())):
        pytest.skip(f"the paper's LaTeX is not at {PAPER} (say where with LOCALPOLICY_PAPER)")
    return "\n".join(file.read_text(errors="replace") for file in files if file.is_file())


def numbers(line: str) -> list[float | None]:
    cells = [re.sub(r"\{\\bf\s*([\d.]+)\s*\}|\$\^\*\$|\\\\", r"\1", cell).strip() for cell in line.split("&")[1:]]
    return [None if cell == "---" else float(cell) for cell in cells]


def test_table_3_is_the_papers(latex):
    block = latex[latex.index(r"\caption{Quantitative results on YooChoose and RetailRocket") :]
    halves = block.split(r"\end{subtable}")[:2]
    for source, half in zip(("yoochoose", "retailrocket"), halves, strict=True):
        ours = published(source)
        seen = {}
        for line in half.splitlines():
            first = line.split("&")[0].strip()
            if first in ROWS and line.count("&") == 13:
                seen[ROWS[first]] = numbers(line)
        assert list(seen) == list(ours) == list(ROWS.values())
        for policy, values in seen.items():
            expected = {name: value for name, value in zip((*METRICS, "JS"), values, strict=True) if value is not None}
            assert {name: one.value for name, one in ours[policy].items()} == expected, (source, policy)
        errors = re.findall(r"\(\$\\pm\s*(?:<)?\s*([\d.]+)\$\s*\)", half)
        assert [float(error) for error in errors] == [
            ours["sqn"]["purchase.HR@5"].se,
            ours["sqn"]["click.HR@5"].se,
        ]


def test_table_1_is_the_papers(latex):
    block = latex[latex.index(r"\caption{Quantitative results on Netflix") :].split(r"\end{table}")[0]
    seen = [numbers(line) for line in block.splitlines() if re.search(r"&\s*0\.\d+\s*&", line)]
    table1 = published("netflix", ratings=True)
    ours = [[row.get(name) for name in ("AR@1", "iAR@1", "JS")] for row in table1.values()]
    assert seen == [[None if one is None else one.value for one in row] for row in ours]
    dials = re.findall(r"\\beta=([\d.]+)", block)
    assert dials == [name.partition("β=")[2] for name in table1 if "β" in name]


def test_other_data_has_no_published_figures():
    assert published("events") == published("retailrocket", ratings=True) == {}
    assert published("movielens", ratings=True) == published("netflix", ratings=True) != {}
    assert {one.se for row in published("netflix", ratings=True).values() for one in row.values()} == {1e-4}
    assert len(METRICS) == 12
    assert set(published("retailrocket")["mle"]) == set(METRICS)  # and no JS: it is its own reference
