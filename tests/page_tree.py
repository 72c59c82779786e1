"""A page read back: its elements, its tables and the specs of its charts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "link", "path", "wbr", "br", "img", "input"}


@dataclass
class Element:
    """A tag with what it holds."""

    tag: str
    attributes: dict[str, str | None]
    inner: list[Element | str] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        """Elements of a kind below this one, in order."""
        found = []
        for one in self.inner:
            if isinstance(one, Element):
                found += [one] if one.tag == tag else []
                found += one.all(tag)
        return found

    def under(self, identity: str) -> Element:
        """The element with an id."""
        return next(one for one in self.every() if one.attributes.get("id") == identity)

    def every(self) -> list[Element]:
        """All elements below this one."""
        return [found for one in self.inner if isinstance(one, Element) for found in [one, *one.every()]]

    @property
    def text(self) -> str:
        """The words, without those of marks."""
        return "".join(
            one if isinstance(one, str) else ("" if "mark" in (one.attributes.get("class") or "").split() else one.text)
            for one in self.inner
        )


class Reader(HTMLParser):
    """Builds the tree, and insists that every tag is closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("page", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.open[-1].inner.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inner.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].inner.append(data)


def parse(path: Path) -> Element:
    """The page as a tree."""
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].tag}> is never closed"
    return reader.open[0]


def specs(page: Element) -> dict[str, Any]:
    """The charts' specs by id."""
    found: dict[str, Any] = json.loads(page.under("chart-specs").text)
    return found


def cells(page: Element, caption: str) -> dict[str, dict[str, Element]]:
    """A table, found by its caption's id: row name -> column title -> cell."""
    table = next(one for one in page.all("table") if one.all("caption")[0].attributes["id"] == caption)
    heads = [(head.all("button") or [head])[0] for head in table.all("thead")[0].all("th")]
    titles = ["".join(one for one in head.inner if isinstance(one, str)) for head in heads]
    rows = {}
    for row in table.all("tbody")[0].all("tr"):
        found = [one for one in row.inner if isinstance(one, Element)]
        rows[str(found[0].attributes["data-value"])] = dict(zip(titles, found, strict=True))
    return rows


def unexplained(path: Path) -> list[str]:
    """The captions of tables that have a dash and no note that says why."""
    tables = re.findall(
        r"<caption[^>]*>(.*?)</caption>(.*?)</table></div>(<p class=\"below\">.*?</p>)?", path.read_text()
    )
    return [caption for caption, body, note in tables if ">—</td>" in body and "—:" not in note]
