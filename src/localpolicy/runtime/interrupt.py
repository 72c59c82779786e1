"""Ctrl-C, or a closed terminal, once: finish the step, save, say how to go on. Twice: stop at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ASKING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def heard() -> list[signal.Signals]:
    """Signals that ask for an end. An ignored one stays ignored: under nohup a closed terminal ends nothing."""
    return [number for number in ASKING if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def stop_asked_for() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether SIGINT, SIGTERM or SIGHUP came since the block began."""
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread alone
        yield lambda: False
        return
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in heard()}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
