"""The page in a browser: it draws both lists, follows the dial by keyboard, and asks nobody but its server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from live import serving

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from chromium import BINARY, Browser

pytestmark = pytest.mark.skipif(BINARY is None, reason="Chromium is not installed")

NAMES = "[...document.querySelectorAll('#{} .name')].map(one => one.textContent)"
ARROWS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Tab": 9}
PICTURES = os.environ.get("LPI_PICTURES")  # a folder for screenshots, to be looked at


def press(browser: Browser, key: str) -> None:
    for kind in ("rawKeyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=ARROWS[key])


def picture(browser: Browser, name: str) -> None:
    if PICTURES:
        browser.picture(Path(PICTURES) / f"{name}.png")


def look(browser: Browser, width: int, height: int, scheme: str = "light") -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


def test_the_dial_works_in_a_browser(exported, tmp_path):
    with serving(exported.folder, tmp_path / "log.db") as server, Browser(tmp_path / "profile") as browser:
        here = f"http://127.0.0.1:{server.port}"
        look(browser, 1400, 900)
        browser.call("Page.navigate", url=f"{here}/")
        browser.until("document.body && document.body.dataset.ready")
        assert browser.run(NAMES.format("mu") + ".length") == browser.run(NAMES.format("pi") + ".length") == 10
        assert exported.version in browser.run("document.getElementById('who').textContent")
        picture(browser, "page")
        # By keyboard alone: to the dial, and down to its smallest β.
        for _ in range(3):
            press(browser, "Tab")
        assert browser.run("document.activeElement.id") == "beta"
        close = float(browser.run("document.getElementById('gauge').ariaValueNow"))
        press(browser, "Home")
        browser.until("document.getElementById('value').textContent === '0.010'")
        browser.until(f"Number(document.getElementById('gauge').ariaValueNow) > {close}")
        expected = server.call("POST", "/v1/preview", {"history": history(browser), "beta": 0.01, "k": 10})[1]
        assert browser.run(NAMES.format("pi")) == [str(item) for item in expected["policy"]["items"]]
        assert browser.run(NAMES.format("mu")) == [str(item) for item in expected["logging"]["items"]]
        picture(browser, "small-beta")
        press(browser, "End")
        browser.until("document.getElementById('value').textContent === '100'")
        browser.until("Number(document.getElementById('gauge').ariaValueNow) === 0")
        assert browser.run(NAMES.format("pi")) == browser.run(NAMES.format("mu"))
        browser.run("own.value = '100, 101'; own.dispatchEvent(new Event('input')); document.body.dataset.ready = ''")
        browser.until("document.body && document.body.dataset.ready")
        browser.run("own.value = 'nonsense'; own.dispatchEvent(new Event('input'))")
        browser.until("document.getElementById('problem').textContent")
        look(browser, 400, 900, "dark")
        assert browser.run("document.documentElement.scrollWidth") <= 400
        picture(browser, "narrow-dark")
        assert all(address.startswith(here) for address in browser.asked)
        assert all("422" in one for one in browser.said), browser.said


def history(browser: Browser) -> list[dict]:
    return browser.run("history()")
