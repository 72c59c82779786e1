"""A comparison's page has every part, and says what its figures say."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from chromium import BINARY, Browser
from page_tree import cells, parse, specs

from localpolicy.cli.main import main
from localpolicy.errors import ConfigError
from localpolicy.judge.compare import compare
from localpolicy.measure.position_metrics import answered, segments
from localpolicy.report.comparison import comparison_section, write_comparison

pytest.importorskip("altair", reason="the extra `report` is not installed")


def value(cell) -> float:
    return float(str(cell.attributes["data-value"]))


def test_tables_parse_back_to_the_json(comparison, compared_page):
    said = comparison.to_dict()
    rows = cells(compared_page, "s1-comparison")
    assert list(rows) == list(said["policies"]) == [
        "mle-0", "mle-1", "lpi_rl-2", "popularity", "last item", "item-kNN", "ALS", "item mean", "most recent",
    ]  # fmt: skip
    for name, policy in said["policies"].items():
        assert value(rows[name]["J(π)"]) == policy["truth"]["value"]
        assert value(rows[name]["gain"]) == policy["truth"]["gain"]
        assert value(rows[name]["JS"]) == policy["divergence"]["js"]["mean"]
        estimated = policy["off_policy"]["estimates"].get("SNIPS")
        assert (estimated is None) == (rows[name]["value"].text == "—"), "refused, and so not shown"
        if estimated is not None:
            assert value(rows[name]["value"]) == estimated["value"]
            (row,) = (each for each in comparison[name].rows if each.figure == "SNIPS")
            assert [row.low, row.high] == estimated["intervals"]["skewness corrected"]
        assert value(rows[name]["KL"]) == policy["divergence"]["kl"]["mean"]
        assert value(rows[name]["entropy"]) == policy["policy"]["entropy"]["mean"]
        assert value(rows[name]["coverage@20"]) == policy["policy"]["coverage@20"]
        assert value(rows[name]["AR@1"]) == policy["rewards"]["AR@1"]["mean"]
        for column in said["columns"]:
            group, metric = column.split(".")
            assert value(rows[name][f"{group} {metric}"]) == policy["metrics"][group][metric]["mean"]


def test_every_part_of_the_report_is_there(compared_page, comparison):
    page = compared_page
    heads = [head.text for level in ("h2", "h3") for head in page.all(level)]
    for words in ("Findings", "Reward against", "Comparison", "Training", "Distance", "Where it wins", "What would"):
        assert any(head.startswith(words) for head in heads), words
    titles = {head.text for head in page.all("h4")}
    for cut in ("history length", "popularity of the item taken", "repeats against new items"):
        assert f"{comparison.ranked.replace('.', ' ')}, by {cut}" in titles
    assert "effective share of the weights" in titles
    assert {head.text for head in page.all("h5")} == {"mle-0", "lpi_rl-2"}, "μ̂ and π side by side"
    facts = page.all("details")[-3].text + page.all("details")[-1].text
    assert "settings of lpi_rl-2" in facts and "objective.name=lpi_rl" in facts and "data digest" in facts
    charts = specs(page)
    assert charts["s1-frontier"]["datasets"]["floor"], "the noise floor is drawn in"


def test_a_policy_is_called_by_its_new_name_everywhere(comparison):
    new = {"lpi_rl-2": "ours", "mle-0": "the log"}
    renamed = comparison.renamed(new)
    assert list(renamed.pairs) == [new.get(name, name) for name in comparison.pairs]
    assert [pair.new.name for pair in renamed.pairs.values()] == list(renamed.pairs), (
        "its gain is between its own weights"
    )
    section = comparison_section(renamed)
    expected = [new.get(each.name, each.name) for each in comparison.evaluations]
    assert section.names == expected and section.baseline == "the log"
    assert {row.policy for row in section.measurements} == {row.policy for row in section.segments} == set(expected)
    assert set(section.gains) == set(expected) and list(section.gains["the log"]) == ["true gain"]  # over μ itself
    assert [list(sample.lists) for sample in section.samples] == [["the log", "ours"]] * 3
    assert {"settings of ours", "settings of the log", "settings of mle-1"} <= set(section.facts)
    assert section.reference.startswith("the mean over the log (mle, seed 0, epoch ")


def test_segments_add_up_to_the_whole(comparison, section):
    assert comparison.ranked == "reward-weighted.nDCG@20", "so each part counts as much as it earned"
    scores = comparison.evaluations[0].scores
    masks = segments(scores, comparison.evaluations[0].counts)
    earned = {label: (scores.reward * answered(scores))[here].sum() for label, here in masks.items()}
    for policy in section.policies:
        for kind in (("history",), ("popularity",), ("repeat", "new")):
            mine = [part for part in section.segments if part.policy == policy.name]
            parts = [part for part in mine if part.group.split()[0] in kind]
            mean = sum(earned[part.group] * part.mean for part in parts) / sum(earned[part.group] for part in parts)
            figure = comparison[policy.name].estimate(comparison.ranked)
            assert sum(part.n for part in parts) == figure.n
            assert mean == pytest.approx(figure.mean)


def test_the_histogram_holds_every_context_once(comparison, section):
    for policy in section.policies:
        bars = policy.js_histogram
        counts = [count for _, _, count in bars]
        assert sum(counts) == len(comparison[policy.name].scores)
        steps = np.diff(np.sqrt([bars[0][0], *(high for _, high, _ in bars)]))
        assert steps == pytest.approx(np.full(len(counts), steps[0])), "equal steps of the root"
        middle = sum((low + high) / 2 * count for low, high, count in bars) / sum(counts)
        assert middle == pytest.approx(section.mean(policy.name, "JS"), abs=max(high - low for low, high, _ in bars))


def test_findings_are_about_the_policy_named_by_of(comparison, tmp_path, monkeypatch):
    monkeypatch.setattr("localpolicy.report.page.library", lambda: "/* the charting library */")
    for of, moves in (("lpi_rl-2", True), ("popularity", True), ("mle-1", False)):  # an estimate of the log is the log
        claims = [each.claim for each in comparison_section(comparison, of=of, samples=False).claims]
        assert (f"{of} differs from the log by more than seed noise" in claims) is moves
    noted = replace(comparison, notes=("the log does not say which items its filters left out",))
    write_comparison(noted, tmp_path / "report.html")
    assert noted.notes[0] in [words.text for words in parse(tmp_path / "report.html").all("dd")]
    assert not [each for each in comparison_section(noted, samples=False).claims if each.figure == "settings"]
    differs = replace(noted, differences=("mle-1 was trained on other data",))
    (claim,) = (each for each in comparison_section(differs, samples=False).claims if each.figure == "settings")
    assert claim.because == "mle-1 was trained on other data"


def test_the_command_writes_one_page_that_needs_no_network(runs, tmp_path, monkeypatch, capsys):
    words = ["lpi", "compare", *map(str, runs.values()), "--no-baselines", "--html", str(tmp_path / "page.html")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code in (0, None)
    assert f"report: {tmp_path / 'page.html'}" in capsys.readouterr().err
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    if BINARY is None:
        pytest.skip("Chromium is not installed: the page was written, not opened")
    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "page.html")
        assert browser.said == []
        assert set(browser.asked) == {(tmp_path / "page.html").as_uri()}
        assert browser.run("document.querySelectorAll('#s1-frontier .points_marks path').length") == 3


def test_a_baseline_that_is_not_there_is_refused(comparison, runs, tmp_path, monkeypatch, capsys):
    with pytest.raises(ConfigError, match="did you mean 'lpi_rl-2'"):
        compare([runs["lpi_rl-2"]], baseline="lpi_rl", baselines=False)
    words = ["lpi", "compare", str(runs["mle-0"]), "--baseline", "none", "--html", str(tmp_path / "no.html")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and "no policy 'none'" in capsys.readouterr().err
    assert not (tmp_path / "no.html").exists()
