"""Takes the pictures of docs/evaluation.md from the tutorial's report, part by part (`make docs`)."""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "scratch" / "pages" / "here" / "report.html"
PICTURES = ROOT / "docs" / "images"
# Each part runs from its heading to the next one's, by the words a heading begins with.
PARTS = {
    "verdict": ("Policies compared", "reward-weighted nDCG@20 against"),
    "frontier": ("reward-weighted nDCG@20 against", "On the test split"),
    "comparison": ("Comparison", "At other k"),
    "training": ("Training", "Distance"),
    "distance": ("Distance", "Where it wins"),
    "segments": ("Where it wins", "What would be shown"),
    "lists": ("What would be shown", "History 2"),
}
TOP = """[...document.querySelectorAll('h1, h2, h3, h4')].find(one => one.textContent.startsWith({words!r}))
    .getBoundingClientRect().top + window.scrollY"""
MARGIN, WIDTH = 20, 1180

sys.path.insert(0, str(ROOT / "tests" / "report"))


def main() -> None:
    from chromium import BINARY, Browser

    if BINARY is None:
        sys.exit("no Chromium here: docs/images/report-*.png were left as they are")
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder)) as browser:
        browser.open(REPORT, width=WIDTH)
        for name, (first, next_one) in PARTS.items():
            top, bottom = (browser.run(TOP.format(words=words)) for words in (first, next_one))
            clip = {"x": 0, "y": top - MARGIN, "width": WIDTH, "height": bottom - top, "scale": 1}
            taken = browser.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
            (PICTURES / f"report-{name}.png").write_bytes(base64.b64decode(taken["data"]))


if __name__ == "__main__":
    main()
