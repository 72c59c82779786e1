"""Interrupts, by Ctrl-C or a closed terminal. Once: finish the step, save, say how to resume. Twice: stop at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ASKING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def stop_signals() -> list[signal.Signals]:
    """Signals that request an end. An ignored one stays ignored: under nohup a closed terminal ends nothing."""
    return [number for number in ASKING if signal.getsignal(number) is not signal.SIG_IGN]


class _Request:
    """Request to stop, shared by all open blocks."""

    def __init__(self) -> None:
        self.came = False
        self.blocks = 0  # open blocks: the first sets the handlers and the last resets them, in whatever order they end
        self.before: dict[signal.Signals, Any] = {}

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Note a request to stop; the signal handler."""
        if self.came:
            raise KeyboardInterrupt
        self.came = True


_request = _Request()


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Context manager: yield a function that returns whether SIGINT, SIGTERM or SIGHUP came since the block began.

    Blocks may be nested or overlap: all of them get a signal.
    """
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread alone
        yield lambda: False
        return
    request = _request
    if not request.blocks:
        request.came = False
        request.before = {number: signal.signal(number, request.hear) for number in stop_signals()}
    request.blocks += 1
    try:
        yield lambda: request.came
    finally:
        request.blocks -= 1
        if not request.blocks:
            for number, handler in request.before.items():
                signal.signal(number, handler)
