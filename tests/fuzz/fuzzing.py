"""What any input may lead to: success with the right numbers, or exit code 2 and a message that fits a screen.

A traceback, another exit code, a longer message, a minute without an end, or memory beyond the bound fails the case.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import commands
from commands import Outcome
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

LONGEST = 2_000  # characters of a message
PATIENCE = 60  # seconds of the processor; no case takes two
MOST_MEMORY = 1 << 31  # bytes that the cases of one property may add to what the process had


def examples(share: float = 1.0):
    """A share of 60 cases in CI, always the same ones; `FUZZ=2000` of each property, other ones each time, by hand."""
    asked = os.environ.get("FUZZ")
    return settings(
        max_examples=int(asked) if asked else max(1, round(share * 60)),
        derandomize=asked is None,
        database=None,
        deadline=None,  # `within` has one that does not depend on how fast the machine is
        phases=(Phase.explicit, Phase.generate),  # the first bad case is shown: it is small enough to read
        suppress_health_check=list(HealthCheck),
    )


def lpi(*words: str | Path) -> Outcome:
    """Run a command as a shell would, for so long and no longer."""
    with _within(PATIENCE):
        return commands.lpi(*words)


def fair(outcome: Outcome) -> bool:
    """Whether a command succeeded; AssertionError if it neither did nor gave a short reason."""
    assert outcome.returncode in (0, 2), outcome
    if outcome.returncode == 2:
        assert 0 < len(outcome.stderr) <= LONGEST, (len(outcome.stderr), outcome.stderr[:200])
        assert "Traceback" not in outcome.stderr, outcome.stderr
    return outcome.returncode == 0


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    def late(number, frame):
        raise AssertionError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of the processor: others may have it meanwhile
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """The block's cases take no more than the bound."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    taken = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert taken < MOST_MEMORY, f"{taken:,} bytes"


class Damage(NamedTuple):
    """What became of a file, in shares of its length, so that one damage fits any file."""

    kind: str
    place: float
    value: int

    def of(self, content: bytes) -> bytes:
        at = int(self.place * len(content))
        match self.kind:
            case "truncate":
                return content[:at]
            case "flip":
                return (
                    content[:at] + bytes([content[at] ^ (1 << self.value % 8)]) + content[at + 1 :] if content else b""
                )
            case "swap":
                return content[at:] + content[:at]
            case "repeat":
                return content + content[at:]
            case "number":
                return _with_number(content, self.value, at)
            case _:
                return ODD[self.value % len(ODD)]


ODD = [
    b"", b"\0" * 100, b"\xff\xfe", b"{}", b"[]", b"null", b"[" * 50_000, b'{"a":' * 50_000, b'"' + b"x" * 10**6,
    b"\n" * 10**5, b"NaN", b"PAR1PAR1", b"\x93NUMPY", b"a: &a [*a, *a]", b"a: [" * 3_000,
]  # fmt: skip
NUMBERS = [b"0", b"-1", b"1e400", b"NaN", b"1000000000000", b"1180591620717411303424", b"null", b'"x"', b"[]", b"true"]
DAMAGES = st.builds(
    Damage,
    st.sampled_from(["truncate", "flip", "swap", "repeat", "number", "odd"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 1 << 16),
)


def _with_number(content: bytes, value: int, at: int) -> bytes:
    """The number that stands at or after a place becomes another one: a shape, a count, a seed."""
    digits = b"0123456789"
    begin = next((place for place in range(at, len(content)) if content[place] in digits), None)
    if begin is None:
        return content
    end = next((place for place in range(begin, len(content)) if content[place] not in digits), len(content))
    return content[:begin] + NUMBERS[value % len(NUMBERS)] + content[end:]
