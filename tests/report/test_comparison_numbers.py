"""Gains, marks and floors of a comparison: one number on terminal, page, Markdown and JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from measured import holm
from page_tree import cells, parse, specs

from localpolicy.cli.main import main
from localpolicy.judge.compare import compare
from localpolicy.judge.gate import gate
from localpolicy.measure.estimate import as_json
from localpolicy.measure.significance import paired
from localpolicy.report.comparison import comparison_section
from localpolicy.report.page import policies_table
from localpolicy.report.table import Cell
from localpolicy.report.tables import comparison_tables, frontier_table

pytest.importorskip("altair", reason="the extra `report` is not installed")


def value(cell) -> float:
    return float(str(cell.attributes["data-value"]))


def test_marks_hold_for_all_tests_together(comparison, section):
    (new, clusters), (old, _) = (comparison[name].values(comparison.ranked) for name in ("lpi_rl-2", "mle-0"))
    expected = paired(new, old, clusters)
    found = section.gains["lpi_rl-2"][section.ranked]
    assert (found.difference, found.se, found.p) == (expected.difference, expected.se, expected.p)
    assert found.low <= expected.low and found.high >= expected.high, "corrected"
    family = [test for (_, _, figure), test in comparison.tests.items() if figure != "SNIPS"]
    assert [test.holm_p for test in family] == holm([test.p for test in family])
    assert all(bool(test.sign) == (test.holm_p < 0.05) for test in family)
    gains = [gain for gains in comparison.gains.values() for name, gain in gains.items() if name != "SNIPS"]
    rivals = [name for name in comparison.names if name != comparison.baseline]
    by_ranks = [figure for figure in comparison.tested if figure != "SNIPS"]
    assert len(gains) == len(rivals) * len(by_ranks) and all(gain in family for gain in gains)
    assert section.corrected[section.ranked] == len(family) > len(gains), "leads are in the family"
    assert section.baseline == "mle-0" and set(section.gains["mle-0"]) == {"true gain"}


def test_the_floor_is_the_distance_between_two_estimates(comparison, section, runs):
    between = comparison["lpi_rl-2"].scores.js["mle-0|mle-1"].mean()
    assert section.floor is not None and section.floor.mean == pytest.approx(between, rel=1e-5)
    # One reference has no pair; an estimate of another seed among those measured says the same.
    one = compare([runs["mle-0"], runs["lpi_rl-2"]], against=[runs["mle-1"]], baselines=False, episodes=20)
    alone = comparison_section(one).floor
    assert alone is not None and alone.mean == pytest.approx(between, rel=1e-5)
    none = compare([runs["lpi_rl-2"]], against=[runs["mle-1"]], baselines=False, episodes=20)
    assert comparison_section(none).floor is None


def markdown_rows(text: str, title: str) -> dict[str, dict[str, str]]:
    """The cells of the Markdown table under `title`, by row and column."""
    lines = text.partition(f"**{title}**")[2].strip().splitlines()
    table = [[part.strip() for part in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    return {row[0]: dict(zip(table[0], row, strict=True)) for row in table[2:]}


def test_terminal_json_markdown_and_page_show_the_same_numbers(runs, tmp_path, monkeypatch, capsys):
    """One reference and one μ̂ of another seed among those compared: the floor is known to all four."""
    files = {kind: tmp_path / f"found.{kind}" for kind in ("json", "markdown", "html")}
    words = ["compare", str(runs["mle-0"]), str(runs["lpi_rl-2"]), "--against", str(runs["mle-1"])]
    words += ["--baseline", "mle-0"] + [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    monkeypatch.setattr(sys, "argv", ["lpi", *words])
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    with pytest.raises(SystemExit):
        main()
    terminal, said = capsys.readouterr().out, json.loads(files["json"].read_text())
    markdown, page = files["markdown"].read_text(), parse(files["html"])
    floor = said["floor"]["mean"]
    claims = [[claim["claim"], claim["because"]] for claim in said["claims"]]
    listed = [[words.text for words in item.all("p")] for item in page.under("s1").all("li") if item.all("p")]
    assert claims == listed and claims, "the file and the page make the same claims"
    assert floor == said["policies"]["mle-0"]["divergence"]["js"]["mean"]
    for policy in said["policies"].values():
        assert policy["divergence"]["floor"]["js"]["mean"] == floor, "one floor for all of a comparison"
    assert f"noise floor {floor:.3f}" in terminal and f"noise floor {floor:.3f}" in markdown
    (drawn,) = specs(page)["s1-frontier"]["datasets"]["floor"]
    assert drawn["x"] == floor
    rows, shown = cells(page, "s1-comparison"), markdown_rows(markdown, "Policies compared")
    gained = markdown_rows(markdown, "Gain over mle-0")
    for name, policy in said["policies"].items():
        coverage = policy["policy"]["coverage@20"]
        assert value(rows[name]["coverage@20"]) == coverage
        assert float(shown[name]["coverage@20"]) == pytest.approx(coverage, abs=0.0005)
        for figure, gain in said["gains"].get(name, {}).items():
            cell = rows[name]["value" if figure == "SNIPS" else figure.replace(".", " ")]
            sure = gain["low"] > 0 or gain["high"] < 0
            marks = {str(mark.attributes["class"]) for mark in cell.all("span")} & {"mark up", "mark down"}
            assert marks == ({"mark up" if gain["difference"] > 0 else "mark down"} if sure else set())
            text = f"{gain['difference']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]"
            column = "value per decision (SNIPS)" if figure == "SNIPS" else figure
            assert gained[name][column] == text + gain["stars"].replace("*", r"\*")
            assert f"{text}{gain['stars']}" in terminal
            assert bool(gain["stars"]) == sure
    assert any(gain["stars"] for gains in said["gains"].values() for gain in gains.values()), "some mark is compared"


def test_one_difference_has_one_interval(runs):
    """Before: a lead over (or of) the baseline and the gain were one difference with two intervals and two p-values."""
    for baseline in ("mle-0", "lpi_rl-2", "popularity"):
        found = compare(list(runs.values()), baseline=baseline, episodes=20)
        shared = 0
        for figure, lead in found.leads.items():
            if baseline in (lead.best, lead.second):
                other = lead.second if lead.best == baseline else lead.best
                gain, sign = found.gains[other][figure], -1 if lead.best == baseline else 1
                ends = sorted((sign * gain.low, sign * gain.high))
                assert (lead.test.difference, lead.test.low, lead.test.high) == (sign * gain.difference, *ends)
                assert lead.test.holm_p == gain.holm_p or figure == "SNIPS"
                assert lead.test.stars == gain.stars
                shared += 1
        assert {frozenset(key[:2]) | {key[2]} for key in found.tests}.__len__() == len(found.tests), "each pair once"
    assert shared or found.leads


def test_the_page_asks_what_the_gate_asks(comparison, section):
    """A log with propensities: the value decides, as in the gate, with the gate's estimate of it."""
    from localpolicy.report.frontier import upright  # needs altair

    assert comparison.question.kind == "value" and section.main == comparison.main == "SNIPS"
    assert section.metric == "estimated reward per decision"
    gain = comparison.gains["lpi_rl-2"]["SNIPS"]
    verdict = gate(comparison.candidates[2].run, against=[each.run for each in comparison.candidates[:2]])
    check = next(each for each in verdict.checks if each.figure == "value")
    assert verdict.notes == comparison.notes
    assert gain.difference == pytest.approx(check.value, rel=1e-6)
    assert gain.low <= check.low and gain.high >= check.high, "of several comparisons"
    without = replace(section, measurements=[row for row in section.measurements if row.figure != "true J"])
    assert upright(without) == "SNIPS", "the chart draws what decides"
    claim = section.claims[0]
    assert claim.figure == "SNIPS" and claim.value is not None and claim.low < claim.value < claim.high and claim.n
    frame = comparison.to_arrow().to_pylist()
    assert frame[2]["SNIPS"] == comparison["lpi_rl-2"].off_policy.estimates["SNIPS"].value
    assert frame[2]["SNIPS gain"] == gain.difference
    assert "value per decision (SNIPS)" in [str(column) for column in comparison_tables(comparison)[0].columns]
    assert comparison.to_dict()["claims"] == as_json(section.claims)


def test_the_terminal_says_how_wide_the_interval_of_the_value_is(comparison):
    """It named those of ranks alone, where the value decides."""
    widest = max((row.high - row.low) / 2 for each in comparison.evaluations if (row := each.row("SNIPS")))
    assert f"clustered by sequence: value ± {widest:.4f}, " in comparison_tables(comparison)[0].note


def test_the_note_names_the_columns_that_are_not_tested(section):
    note = policies_table(section, {name: Cell(name) for name in section.names}).note
    assert "Not tested: JS, KL, likelihood, coverage@20, entropy." in note
    for figure in ("SNIPS", section.ranked, "true gain"):
        assert f"corrected for {section.corrected[figure]} comparisons" in note
    assert section.corrected["true gain"] == len(section.names), "the truth's marks are corrected as well"


def test_a_true_gain_is_shown_with_the_interval_that_marks_it(comparison, section):
    """A mark that was corrected for all policies had an interval that was not."""
    for name, gain in comparison.true_gains.items():
        shown = section.figure(name, "true gain")
        assert (shown.mean, shown.low, shown.high) == (gain.difference, gain.low, gain.high)
        assert shown.sign == section.gains[name]["true gain"].sign
    own = [comparison[name].row("true gain") for name in comparison.true_gains]
    assert max(section.figure(row.policy, "true gain").high - row.high for row in own) > 0, "wider than its own"


def test_the_frontier_is_of_the_gains_in_each_event(comparison, section):
    assert comparison.traded == ["purchase.nDCG@20", "click.nDCG@20"] == list(section.traded)
    found = {each.name: each for each in comparison.frontier}
    assert found.keys() == comparison.gains.keys()
    for name, each in found.items():
        assert each.gains == {figure: comparison.gains[name][figure] for figure in comparison.traded}
        worse = [tuple(test.difference for test in found[other].gains.values()) for other in each.beaten_by]
        mine = tuple(test.difference for test in each.gains.values())
        assert all(theirs >= mine[at] for other in worse for at, theirs in enumerate(other))
    assert any(not each.beaten_by for each in found.values())
    assert comparison.to_dict()["frontier"] == as_json(comparison.frontier)
    cells = {
        cells[0]: cells[-1] for row in frontier_table(comparison).body if (cells := [cell.plain() for cell in row])
    }
    assert cells == {name: f"no: {each.beaten_by[0]}" if each.beaten_by else "yes" for name, each in found.items()}
