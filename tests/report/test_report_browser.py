"""The page in a browser: it draws, it asks nobody for anything, it answers the mouse and the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from chromium import BINARY, Browser
from page_tree import parse, specs
from report_examples import bandit, exact, row, section_of, store

from localpolicy.report.contents import Contents, Section
from localpolicy.report.page import write_report
from localpolicy.report.table import Table

pytestmark = pytest.mark.skipif(BINARY is None, reason="Chromium is not installed")

TABLE = "document.querySelector('#s1-comparison').closest('table')"
NAMES = f"[...{TABLE}.tBodies[0].rows].map(row => row.cells[0].dataset.value)"
ORDERS = f"[...{TABLE}.tHead.rows[0].cells].map(cell => cell.ariaSort)"
VISIBLE = (
    "[...document.querySelectorAll('#{}-frontier .names_marks text')].filter(name => name.getAttribute('opacity') != 0)"
)
BOX = "(one => (b => [b.left, b.top, b.right, b.bottom])(one.getBoundingClientRect()))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, usual_page: Path) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        browser.open(usual_page)
        yield browser
        # Whatever the tests did: nothing was complained about, and nothing but the page itself was asked for.
        assert browser.said == []
        assert set(browser.asked) <= {usual_page.as_uri()} and browser.asked


def test_every_chart_is_drawn_and_described(browser: Browser, usual_page: Path) -> None:
    for identity, spec in specs(parse(usual_page)).items():
        marks = f"document.querySelectorAll('#{identity} .mark-symbol path, #{identity} .mark-rect path').length"
        assert browser.run(marks) > 0
        label = f"document.querySelector('#{identity} [role=graphics-document]').getAttribute('aria-label')"
        assert browser.run(label) == spec["description"]
    points = browser.run("document.querySelectorAll('#s2-frontier .points_marks path').length")
    assert points == len(store().policies)


@pytest.mark.parametrize(("identity", "section"), [("s1", bandit()), ("s2", store())], ids=["bandit", "store"])
def test_every_name_finds_room_next_to_its_point(identity: str, section: Section, browser: Browser) -> None:
    names = VISIBLE.format(identity)
    assert sorted(browser.run(f"{names}.map(name => name.textContent)")) == sorted(
        policy.name for policy in section.policies
    )
    for one, other in combinations(browser.run(f"{names}.map({BOX})"), 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] + 3 or other[3] <= one[1] + 3
        assert apart, (one, other)


def test_names_are_written_in_the_ink_of_the_page(browser: Browser) -> None:
    words = "[...document.querySelectorAll('.names_marks text, .role-axis-title text')]"
    inks = f"{words}.map(one => getComputedStyle(one).fill)"
    for scheme, ink in (("light", "rgb(91, 96, 104)"), ("dark", "rgb(164, 170, 179)")):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        assert set(browser.run(inks)) == {ink}
    browser.call("Emulation.setEmulatedMedia", features=[])


def test_floor_and_logging_value_are_named(browser: Browser) -> None:
    words = browser.run("[...document.querySelectorAll('#s1-frontier text')].map(text => text.textContent)")
    assert "noise floor 0.0128 ± 0.0010" in words and "J(μ) = 0.4123" in words


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ("#s1-frontier .points_marks path:nth-child(6)", ["lpi_cb β=0.1", "0.5034", "0.0911", "0.1688 ± 0.0016"]),
        ("#s1-curves-1 .dots_marks path:nth-child(5)", ["lpi_cb β=0.1", "epoch", "10"]),
        ("#s1-spread .bars_marks path:nth-child(1)", ["mle", "0.000 to 0.020", "%"]),
        ("#s2-rounds-0 .dots_marks path:nth-child(40)", ["lpi_rl β=0.3", "round", "4", "0.3683 ± 0.0070"]),
        ("#s2-segments-1 .dots_marks path:nth-child(1)", ["mle", "repeat", "4,420"]),
    ],
)
def test_pointing_at_a_mark_says_what_it_is(marks: str, expected: list[str], browser: Browser) -> None:
    browser.run(f"document.querySelector('{marks}').scrollIntoView({{block: 'center', behavior: 'instant'}})")
    left, top, right, bottom = browser.run(f"{BOX}(document.querySelector('{marks}'))")
    x, y = (left + right) / 2, (top + bottom) / 2
    browser.move(x - 1, y)
    browser.move(x, y)
    browser.until("document.querySelector('#vg-tooltip-element.visible') !== null")
    said = browser.run("document.querySelector('#vg-tooltip-element').textContent")
    assert all(words in said for words in expected), said
    browser.move(1, 1)
    browser.until("document.querySelector('#vg-tooltip-element.visible') === null")


def test_a_click_sorts_the_table(browser: Browser) -> None:
    section = bandit()
    names = [policy.name for policy in section.policies]
    button = f"{TABLE}.querySelectorAll('thead button')"
    column = browser.run(f"[...{button}].findIndex(one => one.textContent === 'gain')")
    assert browser.run(NAMES) == names
    assert set(browser.run(ORDERS)) == {"none"}
    falling = sorted(names, key=lambda name: section.mean(name, "true gain"), reverse=True)
    browser.run(f"{button}[{column}].scrollIntoView({{block: 'center', behavior: 'instant'}})")
    left, top, _, _ = browser.run(f"{BOX}({button}[{column}])")
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=left + 4, y=top + 4, button="left", clickCount=1)
    assert browser.run(NAMES) == falling
    assert browser.run(ORDERS)[column] == "descending"
    browser.press("Enter")  # the button has the focus now
    assert browser.run(NAMES) == falling[::-1]
    browser.run(f"{button}[0].focus()")
    browser.press(" ")
    assert browser.run(NAMES) == sorted(names)
    orders = browser.run(ORDERS)
    assert orders[0] == "ascending" and set(orders[1:]) == {"none"}


def test_missing_figures_are_sorted_last(browser: Browser) -> None:
    table = "document.querySelector('#s1-weights').closest('table')"
    browser.run(f"delete {table}.tBodies[0].rows[0].cells[2].dataset.value")
    for _ in range(2):
        browser.run(f"{table}.querySelectorAll('thead button')[2].click()")
        assert browser.run(f"{table}.tBodies[0].rows[5].cells[0].dataset.value") == "mle"


@pytest.mark.parametrize("width", [1200, 420])
def test_the_page_is_no_wider_than_the_window(width: int, browser: Browser) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.until(f"document.querySelector('#s1-frontier svg').getBoundingClientRect().right <= {width}")
    assert browser.run("document.documentElement.scrollWidth") == width


def test_on_a_desk_no_table_begins_left_of_its_heading(browser: Browser) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=1400, height=900, deviceScaleFactor=1, mobile=False)
    lefts = "[...document.querySelectorAll('main .scroll')].map(one => one.getBoundingClientRect().left)"
    heading = browser.run("document.querySelector('main h2').getBoundingClientRect().left")
    assert min(browser.run(lefts)) >= heading
    assert browser.run("document.documentElement.scrollWidth") == 1400


def test_paper_shows_the_facts(browser: Browser) -> None:
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.run("[...document.querySelectorAll('details.facts')].every(block => block.open)")
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert not browser.run("[...document.querySelectorAll('details.facts')].some(block => block.open)")


def test_paper_shows_every_column(browser: Browser) -> None:
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.call("Emulation.setDeviceMetricsOverride", width=718, height=900, deviceScaleFactor=1, mobile=False)
    rights = "[...document.querySelectorAll('.scroll table')].map(table => table.getBoundingClientRect().right)"
    assert max(browser.run(rights)) <= 718
    assert browser.run("getComputedStyle(document.querySelector('.legend')).breakAfter") == "avoid"
    browser.call("Emulation.setEmulatedMedia", media="")


def test_tables_fit_a_desk_and_a_telephone_and_say_where_they_continue_between(browser: Browser) -> None:
    region = "document.querySelector('#s2-comparison').closest('.scroll')"
    widest = "Math.max(...[...document.querySelectorAll('.scroll')].map(one => one.scrollWidth - one.clientWidth))"
    for width, cut in ((1400, False), (800, True), (400, False)):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        assert (browser.run(f"{region}.scrollWidth - {region}.clientWidth") > 1) == cut
        if cut:
            assert "gradient" in browser.run(f"getComputedStyle({region}).backgroundImage")
            assert browser.run(f"({region}.focus(), document.activeElement === {region})")
        else:
            assert browser.run(widest) <= 1, "but for rounding"
    cell = f"{region}.querySelector('tbody td')"
    assert browser.run(f"getComputedStyle({cell}, '::before').content") == '"J(π)"', "each cell after its column's name"


def test_a_notebooks_table_begins_where_its_cell_does(tmp_path: Path) -> None:
    """In a pane narrower than the window nothing is shifted out of sight: the table scrolls within its cell."""
    why = "the gain's interval, said at length, so that the table is wider than its pane " * 4
    table = Table("DO NOT DEPLOY: improved instead of mle", ["check", "ok", "why"], [["gain", "NO", why]] * 3)
    page = tmp_path / "cell.html"
    lab = ".lab:not(.md) :is(td, th, tr) { text-align: right; vertical-align: middle; } .lab table { margin: auto; }"
    page.write_text(f'<style>{lab}</style><body style="margin:0"><div id="cell" class="lab" '
                    f'style="width:700px;margin-left:250px">{table._repr_html_()}</div></body>')  # fmt: skip
    with Browser(tmp_path / "profile") as browser:
        browser.open(page, width=1150)
        left = "document.querySelector('{}').getBoundingClientRect().left"
        assert browser.run(left.format(".scroll")) == browser.run(left.format("#cell"))
        assert browser.run(left.format("caption")) >= browser.run(left.format("#cell"))
        right = "document.querySelector('.scroll').getBoundingClientRect().right"
        assert browser.run(right) <= browser.run("document.querySelector('#cell').getBoundingClientRect().right")
        words, mark = "document.querySelector('tbody td:last-child')", "document.querySelector('tbody td.number')"
        assert browser.run(f"getComputedStyle({words}).textAlign") == "left", "JupyterLab's own rule says right"
        assert browser.run(f"getComputedStyle({mark}).textAlign") == "right"
        for width in (700, 330):  # words wrap, however narrow the pane is: nothing is cut
            browser.run(f"document.querySelector('#cell').style.width = '{width}px'")
            assert browser.run("document.querySelector('.scroll').scrollWidth") <= width
        browser.picture(tmp_path / "cell.png")


def test_where_room_is_scarce_the_judged_policy_has_its_name(tmp_path: Path, extra: None) -> None:
    """At 400 pixels twenty points crowd each other: a trained policy is named before baselines."""
    crowd = [row(f"baseline {place}", "mle", truth=exact(0.3 + place / 1e4), js=exact(0.1)) for place in range(20)]
    crowd.append(row("far away", "ips", truth=exact(0.9), js=exact(0.6)))
    judged = [row("the judged one", "lpi_rl", truth=exact(0.301), js=exact(0.1), run="run")]
    section = section_of("Crowd", "", [*crowd, *judged])
    with Browser(tmp_path / "profile") as browser:
        browser.open(write_report(Contents("", "", [section]), tmp_path / "page.html"), width=400)
        browser.until("document.querySelector('#s1-frontier svg') !== null")
        shown = browser.run(f"{VISIBLE.format('s1')}.map(name => name.textContent)")
    assert "the judged one" in shown and len(shown) < len(crowd)
