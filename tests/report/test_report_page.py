"""The page as a file: small, alone, the same every time, true to its contents, and open to screen readers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from page_tree import Element, cells, parse, specs
from report_examples import Row, bandit, claimed, crowded, row, section_of, store, three, usual

from localpolicy.errors import LocalPolicyError
from localpolicy.measure.estimate import Measurement
from localpolicy.measure.significance import Paired
from localpolicy.report.contents import Contents, Interval, SampleLists, Section
from localpolicy.report.page import write_report

Light = Callable[[Contents], Path]
LIMIT = 2_000_000


def one(*rows: Row, **said: Any) -> Contents:
    return Contents("Title", "Verdict.", [section_of("Section", "About.", rows, **said)])


def test_a_page_of_three_sections_with_44_policies_stays_small(extra: None, tmp_path: Path) -> None:
    assert write_report(three(), tmp_path / "a" / "report.html").stat().st_size < LIMIT


def test_nothing_is_asked_from_outside(usual_page: Path) -> None:
    page = parse(usual_page)
    links = [
        one.attributes[name] for one in page.every() for name in ("src", "href", "action") if name in one.attributes
    ]
    assert links == ["data:,", "#s1", "#s2", "#glossary"]
    style = page.all("style")[0].text
    assert "url(" not in style and "@import" not in style
    policy = next(one for one in page.all("meta") if one.attributes.get("http-equiv") == "Content-Security-Policy")
    assert str(policy.attributes["content"]).startswith("default-src 'none';")


def test_the_library_is_there_once(usual_page: Path) -> None:
    scripts = parse(usual_page).all("script")
    assert sum("vegaEmbed" in script.text and len(script.text) > 500_000 for script in scripts) == 1


def test_equal_contents_give_equal_bytes(light: Light) -> None:
    first, second = light(usual()).read_bytes(), light(usual()).read_bytes()
    assert first == second
    code = (
        "import localpolicy.report.page as page, hashlib, report_examples\n"
        "page.library = lambda: '/* the charting library */'\n"
        "print(hashlib.sha256(page.report_page(report_examples.usual()).encode()).hexdigest())"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    elsewhere = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "1"}  # another order of sets
    other = subprocess.run([sys.executable, "-c", code], env=elsewhere, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == hashlib.sha256(first).hexdigest()


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_without_the_extra_it_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("charts", "frontier", "lines"):
        monkeypatch.delitem(sys.modules, f"localpolicy.report.{name}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(LocalPolicyError, match=re.escape("pip install 'localpolicy[report]'")):
        write_report(usual(), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- figures


def shown(cell: Element) -> float:
    """The number that a reader sees."""
    text = re.match(r"-?[\d,.]+", cell.text)
    assert text is not None, cell.text
    return float(text[0].replace(",", ""))


def decimals(cell: Element) -> int:
    return len(cell.text.split()[0].split("±")[0].partition(".")[2])


@pytest.mark.parametrize(("section", "place"), [(bandit(), 1), (store(), 2)], ids=["bandit", "store"])
def test_a_comparison_is_read_back_from_its_page(section: Section, place: int, usual_page: Path) -> None:
    rows = cells(parse(usual_page), f"s{place}-comparison")
    assert list(rows) == [policy.name for policy in section.policies]
    titles = {"J(π)": "true J", "gain": "true gain", "JS": "JS", "KL": "KL"}
    titles |= {said: name for name, said in section.columns.items()}
    for policy in section.policies:
        for title, name in titles.items():
            interval = section.figure(policy.name, name)
            assert interval is not None
            cell = rows[policy.name][title]
            assert float(str(cell.attributes["data-value"])) == interval.mean
            unit = 10.0 ** -decimals(cell)
            assert shown(cell) == pytest.approx(interval.mean, abs=0.5001 * unit)
            around = re.search(r"± ([\d.]+)", cell.text)
            assert (around is None) == interval.exact
            if around:
                assert float(around[1]) == pytest.approx(interval.high - interval.mean, abs=0.5001 * unit)
        cells_of, coverage = rows[policy.name], section.mean(policy.name, "coverage@20")
        assert float(str(cells_of["coverage@20"].attributes["data-value"])) == coverage
        assert float(str(cells_of["entropy"].attributes["data-value"])) == section.mean(policy.name, "entropy")
        assert shown(cells_of["coverage@20"]) == pytest.approx(100 * (coverage or 0), abs=0.0501)


def test_rounds_parse_back(usual_page: Path) -> None:
    page = parse(usual_page)
    rounds = [one for one in store().measurements if one.round is not None]
    assert len(rounds) == 8 * (5 + 4 + 5)
    for place, name in enumerate(dict.fromkeys(one.figure for one in rounds)):
        table = cells(page, f"s2-rounds-{place}-numbers")
        for one in rounds:
            if one.figure == name:
                cell = table[str(one.round)][one.policy]
                assert float(str(cell.attributes["data-value"])) == one.mean
                assert ("±" in cell.text) == (one.low < one.high)


def test_weights_parse_back(usual_page: Path) -> None:
    rows = cells(parse(usual_page), "s1-weights")
    titles = {"effective_share": "effective share", "clipped_share": "clipped share", "mean": "mean", "max": "largest"}
    for policy in bandit().policies:
        for key, title in titles.items():
            assert float(str(rows[policy.name][title].attributes["data-value"])) == policy.weights[key]
        assert shown(rows[policy.name]["epoch kept"]) == policy.selected_epoch


def test_numbers_behind_the_charts_are_there(usual_page: Path) -> None:
    page = parse(usual_page)
    epochs = cells(page, "s1-curves-share-numbers")
    for policy in bandit().policies:
        for line in policy.curve:
            value = epochs[str(line["epoch"])][policy.name].attributes["data-value"]
            assert float(str(value)) == line["weights"]["effective_share"]
    bins = cells(page, "s1-spread-numbers")
    last = bandit().policies[-1]
    shares = [float(str(columns[last.name].attributes["data-value"])) for columns in bins.values()]
    assert shares == [count / 600 for _, _, count in last.js_histogram]
    parts = cells(page, "s2-segments-0-numbers")
    by_history = [part for part in store().segments if part.group.startswith("history ")]
    assert len(by_history) == 8 * 3
    for part in by_history:
        shown = parts[part.group.removeprefix("history ")]
        assert float(str(shown[part.policy].attributes["data-value"])) == part.mean
        assert shown["positions"].text == f"{part.n:,}"


def test_a_legend_names_the_policies_that_are_drawn(light: Light) -> None:
    curve = [{"epoch": epoch, "selected_by": 0.1 * epoch} for epoch in (1, 2)]
    page = parse(light(one(row("trained", "mle", curve=curve), row("simple", "popularity"), row("empty", "mle"))))
    (legend,) = (each for each in page.all("ul") if each.attributes.get("class") == "legend")
    assert [each.text for each in legend.all("li")] == ["trained"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, ""),
        ({"reference": "mle-1"}, "JS and KL are taken from mle-1."),
        ({"floor": Interval.of(0.1, 0.0)}, "≈: the distance from the reference is within seed noise."),
        ({"likeliest": ["a", "b"]}, "Marks of a, b are of the weights of the best held-out likelihood"),
        ({"unseen_by_js": ["a"]}, "≈!: within seed noise by JS"),
    ],
    ids=["nothing", "reference", "floor", "likeliest", "unseen"],
)
def test_the_note_says_what_there_is_to_say(said: dict[str, Any], words: str, light: Light) -> None:
    text = light(one(row("a", "mle", js=Interval.of(0.1, 0.01)), **said)).read_text()
    note = re.search(r'<p class="below">(Intervals of 95 %;.*?)</p>', text)
    assert note is not None
    starts = ["JS and KL", "≈: ", "Marks of", "≈!: ", "Gain:", "Value:", "Metrics:"]
    assert [start for start in starts if start in note[1]] == [start for start in starts if words.startswith(start)]
    assert words in note[1]


def marks(cell: Element) -> list[str]:
    return [one.text[0] for one in cell.all("span") if "mark" in str(one.attributes.get("class")).split()]


def test_marks_say_which_differences_are_sure(light: Light) -> None:
    """A gain in truth and a gain in a metric: the interval that is shown decides."""
    gains = {
        "above": Interval(0.2, 0.1, 0.3),
        "below": Interval(-0.2, -0.3, -0.1),
        "astride": Interval(0.2, -0.1, 0.5),
        "touching": Interval(0.1, 0.0, 0.2),
        "exact": Interval(0.1, 0.1, 0.1),
    }
    js = {"above": 0.021, "below": 0.019, "astride": 0.0099, "touching": 0.5, "exact": 0.0}
    rows = [
        row(
            name,
            "mle",
            gain=gain,
            metrics={"HR@5": Interval.of(0.3, 0.1)},
            gains={"HR@5": Paired(gain.mean, 0.1, gain.low, gain.high, 0.001, 0.001, 9, 0.04)},
            js=Interval(js[name], js[name] / 2, 2 * js[name]),
        )
        for name, gain in gains.items()
    ]
    found = cells(parse(light(one(*rows, floor=Interval(0.009, 0.008, 0.01)))), "s1-comparison")
    expected = {"above": ["▲"], "below": ["▼"], "astride": [], "touching": [], "exact": ["▲"]}
    assert {name: marks(row["gain"]) for name, row in found.items()} == expected
    assert {name: marks(row["HR@5"]) for name, row in found.items()} == expected
    assert [name for name, row in found.items() if marks(row["JS"])] == ["below", "astride", "exact"]


def test_figures_that_are_missing_leave_empty_cells(light: Light) -> None:
    nan = float("nan")
    rows = [
        row("bare", "mle"),
        row("strange", "mle", truth=Interval(nan, nan, nan), js=Interval(0.1, nan, nan), entropy=nan),
        row("known", "lpi_cb", 0.1, truth=Interval.of(0.5, 0.1), js=Interval.of(0.2, 0.01), entropy=1.0),
    ]
    path = light(one(*rows))
    page = parse(path)
    found = cells(page, "s1-comparison")
    assert found["bare"]["J(π)"].text == found["strange"]["J(π)"].text == found["strange"]["entropy"].text == "—"
    assert "data-value" not in found["bare"]["J(π)"].attributes
    assert found["strange"]["JS"].text == "0.1000± ?"
    assert [point["policy"] for point in specs(page)["s1-frontier"]["datasets"]["points"]] == ["known"]
    assert "Not drawn, because a figure or a divergence is missing: bare and strange." in path.read_text()
    assert "nan" not in page.all("main")[0].text.lower()


@pytest.mark.parametrize(
    "contents",
    [
        Contents("Title", "Verdict.", []),
        one(),
        one(row("alone", "mle")),
        one(row("alone", "mle", curve=[{"epoch": 1}], weights={"mean": 1.0}, js_histogram=[(0.0, 0.1, 0)])),
        one(row("alone", "mle", js=Interval.of(0.0, 0.0), metrics={"HR@5": Interval.of(0.0, 0.0)})),
        one(samples=[SampleLists([], {}), SampleLists([], {"mle": []})]),
        Contents("Title", "Verdict.", [crowded(), crowded(1)]),
    ],
    ids=["no section", "no row", "a bare row", "little said", "all zero", "empty lists", "crowded"],
)
def test_contents_with_little_in_them_make_a_page(contents: Contents, light: Light) -> None:
    page = parse(light(contents))
    headings = [one.text for one in page.all("h2") if "against distance" not in one.text]
    assert headings == [section.title for section in contents.sections]


# ---------------------------------------------------------------------- words

NASTY = "</script><!--<script>alert('x')</script><img src=x onerror=alert(1)>&amp;\"'\\ \u2028"


def poisoned(content: Any) -> Any:
    """The same contents with a nasty end to every text."""
    if isinstance(content, str):
        return content + NASTY if content else ""
    if is_dataclass(content) and not isinstance(content, type):
        said = {field.name: poisoned(getattr(content, field.name)) for field in fields(content)}
        return type(content)(**said)
    if isinstance(content, dict):
        kept = ("epoch", "selected_by", "weights", "validation", "losses", "mean")
        kept += ("effective_share", "clipped_share", "q50", "max")
        return {key if key in kept else key + NASTY: poisoned(value) for key, value in content.items()}
    if isinstance(content, Measurement):
        return content._replace(policy=poisoned(content.policy))
    if isinstance(content, list | tuple):
        return type(content)(poisoned(value) for value in content)
    return content


def test_words_from_data_are_escaped(light: Light) -> None:
    plain = parse(light(usual()))
    nasty = parse(light(poisoned(usual())))
    count = {tag: len(plain.all(tag)) for tag in ("script", "style", "svg", "section", "table", "tr", "li", "figure")}
    assert {tag: len(nasty.all(tag)) for tag in count} == count
    assert not nasty.all("img")
    assert "<" not in nasty.under("chart-specs").text
    assert not [one for one in nasty.every() if any(name.startswith("on") for name in one.attributes)]
    name = bandit().policies[0].name + NASTY
    assert name in cells(nasty, "s1-comparison")
    assert specs(nasty)["s1-frontier"]["datasets"]["points"][0]["policy"] == name


def test_headings_follow_the_order_of_the_page(usual_page: Path) -> None:
    page = parse(usual_page)
    levels = [int(one.tag[1]) for one in page.every() if re.fullmatch("h[1-6]", one.tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    first = page.under("s1")
    picture = "A bandit with a known answer: Reward against distance from the log"
    assert first.all("h2")[0].text == picture, "it belongs to the answer"
    assert [one.text for one in first.all("h3")] == [
        "Findings",
        "Comparison",
        "Training",
        "Distance, context by context",
        "What would be shown",
        "Weights",
    ]
    second = page.under("s2")
    assert second.all("h3")[0].text == "Reward against distance from the log"
    assert "Where it wins and loses" in [one.text for one in page.under("s2").all("h3")]


def test_findings_have_marks_in_words(light: Light) -> None:
    claims = [claimed("a", True, "x"), claimed("b", False, "y"), claimed("c", None, "z")]
    listed = [item.text for item in parse(light(one(claims=claims))).under("s1").all("li")]
    assert listed == ["✓ holdsax", "✗ does not holdby", "? cannot tellcz"]


def test_tables_and_charts_can_be_read_aloud(usual_page: Path) -> None:
    page = parse(usual_page)
    for table in page.all("table"):
        assert table.all("caption")[0].text.strip()
        assert all(head.attributes.get("scope") in ("col", "row") for head in table.all("th"))
    identities = [one.attributes["id"] for one in page.every() if "id" in one.attributes]
    assert len(identities) == len(set(identities))
    for one in page.every():
        if "aria-labelledby" in one.attributes:
            assert page.under(str(one.attributes["aria-labelledby"])).text.strip()
    charts = {one.attributes["id"] for one in page.all("div") if one.attributes.get("class") == "chart"}
    drawn = specs(page)
    assert charts == set(drawn)
    assert all(len(spec["description"]) > 20 for spec in drawn.values())


def test_long_histories_and_many_examples_are_cut(light: Light) -> None:
    samples = [SampleLists([f"i{n}" for n in range(30)], {"mle": [("a", 0.5)], "new": [("a", 0.4), ("b", 0.1)]})] * 20
    page = parse(light(one(samples=samples)))
    text = page.under("s1").text
    assert "18 earlier" in text and "8 more histories are not shown" in text
    fresh = [item.text for item in page.under("s1").all("li") if marks(item)]
    assert fresh == ["b10.0 %"] * 12


@pytest.mark.parametrize(
    ("gain", "level", "expected"), [(0.1, 0.5, 0.1 / 0.5), (-0.1, 0.4, -0.1 / 0.4), (0.1, 0.0, None), (None, 0.5, None)]
)
def test_the_share_of_a_true_gain(gain: float | None, level: float, expected: float | None) -> None:
    policy = row("a", "mle", gain=None if gain is None else Interval.of(gain, 0.01))
    section = section_of("", "", [policy], logging_value=Interval.of(level, 0.0))
    assert section.true_share("a") == expected
    assert section_of("", "", [policy]).true_share("a") is None


NUMBERS = ["value", "low", "high", "n", "needed"]
CLAIM = [
    "figure",
    "rule",
    "holds",
    "claim",
    "because",
    *NUMBERS,
    "instead",
    "plain",
    "unit",
    "remedy",
    "least",
    "outcome",
]


def test_the_file_for_machines_is_the_long_table_and_the_claims() -> None:
    said = json.loads(json.dumps(usual().to_dict(), allow_nan=False))["sections"]
    for section, content in zip(usual().sections, said, strict=True):
        assert [policy["name"] for policy in content["policies"]] == [policy.name for policy in section.policies]
        assert len(content["measurements"]) == len(section.measurements) + len(section.segments)
        for line in content["measurements"]:
            assert list(line) == list(Measurement._fields)
            if line["round"] is None and line["group"] == "all":
                known = section.figure(line["policy"], line["figure"])
                assert known == Interval(line["mean"], line["low"], line["high"])
        assert [list(claim) for claim in content["claims"]] == [CLAIM] * len(section.claims)
        assert content["gains"].keys() == section.gains.keys()
