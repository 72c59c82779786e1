"""Formats of the files that we write: which number is written, which are read, and how an older one is upgraded.

A change that an older reader or an older file would stumble over (a key renamed, removed, of another type, newly
required) raises `current` by one and adds an upgrade from the number before. docs/stability.md says for how long each
is read; tests/golden has artefacts of every release, and a digest of the keys that each number stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localpolicy.errors import LocalPolicyError, RunError, shown

Content = dict[str, Any]


def unchanged(content: Content) -> Content:
    """Upgrade step that returns the content as it is, for formats that differ only by what was always true."""
    return content


@dataclass(frozen=True)
class Format:
    """Format number of one kind of artefact, with the upgrades from older numbers."""

    current: int  # is written
    remedy: str  # how to make the artefact again, as the end of a message
    upgrades: Mapping[int, Callable[[Content], Content]] = field(default_factory=dict)  # from n to n + 1
    error: type[LocalPolicyError] = RunError

    @property
    def reads(self) -> tuple[int, ...]:
        """The numbers that this version reads."""
        return (*sorted(self.upgrades), self.current)

    def upgraded(self, content: Any, source: Path) -> Content:
        """Return the content in the current format; raise `error` if its `format` is none that this version reads."""
        found = content.get("format") if isinstance(content, dict) else None
        if type(found) is not int or found not in self.reads:
            newer = type(found) is int and found > self.current
            stated = "no format" if found is None else f"format {shown(found)}"
            raise self.error(f"{source} has {stated}; this version reads "
                             f"{', '.join(map(str, self.reads))}: "
                             f"{'upgrade localpolicy' if newer else self.remedy}.")  # fmt: skip
        for step in range(found, self.current):
            content = {**self.upgrades[step](content), "format": step + 1}
        return dict(content)
