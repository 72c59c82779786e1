"""Counters and times of one worker, in the text that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # seconds


class Metrics:
    """Named counts with labels, and one histogram of seconds."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.seconds = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Count something."""
        key = name, tuple(sorted(labels.items()))
        self.counts[key] = self.counts.get(key, 0.0) + amount

    def took(self, seconds: float) -> None:
        """One more answer."""
        self.seconds[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """Everything, as text; each number is one worker's own."""
        lines, known = [], set()
        for (name, labels), value in sorted(self.counts.items()):
            if name not in known:
                lines.append(f"# TYPE localpolicy_{name}_total counter")
                known.add(name)
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
            lines.append(f"localpolicy_{name}_total{{{shown}}} {value:g}")
        lines.append("# TYPE localpolicy_seconds histogram")
        running = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self.seconds, strict=True):
            running += count
            lines.append(f'localpolicy_seconds_bucket{{le="{bound}"}} {running}')
        lines += [f"localpolicy_seconds_sum {self.total:g}", f"localpolicy_seconds_count {running}"]
        for name, value in gauges.items():
            lines += [f"# TYPE localpolicy_{name} gauge", f"localpolicy_{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
