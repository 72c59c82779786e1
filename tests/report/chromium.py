"""A headless Chromium driven over its debugging pipe: no package is needed, and events come as they happen."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One page. `said` holds the messages of the console, `asked` every address the page asked for."""

    def __init__(self, folder: Path, *, patience: float = 300.0) -> None:
        assert BINARY is not None
        self.patience = patience
        self.said: list[str] = []
        self.asked: list[str] = []
        self._number = 0
        self._rest = b""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4; each ends with a NUL.
        start = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", start, BINARY, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session: str | None = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session = None

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(self.patience)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._out)
            os.close(self._in)

    def call(self, method: str, **parameters: Any) -> Any:
        """Run a command of the DevTools protocol; return its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        until = time.monotonic() + self.patience
        while True:
            message = self._next(until)
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(until - time.monotonic(), 0))
            piece = os.read(self._in, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError(f"Chromium said nothing for {self.patience:g} s.")
            self._rest += piece
        message, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, message: dict[str, Any]) -> None:
        about = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                words = [str(argument.get("value", argument.get("description"))) for argument in about["args"]]
                self.said.append(f"{about['type']}: {' '.join(words)}")
            case "Runtime.exceptionThrown":
                self.said.append(str(about["exceptionDetails"]))
            case "Log.entryAdded":
                self.said.append(f"{about['entry']['level']}: {about['entry']['text']}")
            case "Network.requestWillBeSent":
                self.asked.append(about["request"]["url"])

    def run(self, code: str) -> Any:
        """The value of a JavaScript expression (awaited, if it is a promise)."""
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def until(self, code: str) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + self.patience
        while not (value := self.run(code)):
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {code}")
            time.sleep(0.05)
        return value

    def open(self, path: Path, *, width: int = 1200, height: int = 900) -> None:
        """Load a page at a width, and wait until all its charts are drawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.readyState === 'complete'")
        self.until("document.querySelectorAll('.chart:not(.drawn)').length === 0")

    def move(self, x: float, y: float) -> None:
        """Point at a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """Press a key that types a character, as a keyboard does."""
        text = "\r" if key == "Enter" else key
        code = 13 if key == "Enter" else ord(key)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text, windowsVirtualKeyCode=code)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG, for eyes."""
        content = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(content))
