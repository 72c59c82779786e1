"""`audit`: whether the logged propensities are true.

A log can be wrong in ways that no estimator notices: the best items shown and a softmax logged, a filter applied after
the draw, a server that still held yesterday's policy. Each list is therefore drawn up again from the policy it names:

- its propensities are computed once more, place by place, under its filter;
- where they differ, the likely faults are tried in turn (no filter, another policy), and the one that fits is named;
- every place is tested against its distribution, given the places above it: the probability of all items before the
  one taken plus a uniform share of its own is uniform if and only if items were drawn with the probabilities logged (a
  randomised probability integral transform, see `sampling.transforms`), which finds an argmax under any propensities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from localpolicy.errors import DataError
from localpolicy.ranker.layer import FILE as LAYER
from localpolicy.ranker.layer import Layer
from localpolicy.serving import audit_findings as checks
from localpolicy.serving.audit_findings import Finding
from localpolicy.serving.audit_lists import BLOCK, Evidence, count_lists, gather, logged_requests
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.service import exported


@dataclass(frozen=True)
class Audit:
    """Result of `audit`: the findings of all checks."""

    findings: list[Finding]
    lists: int

    @property
    def exit_code(self) -> int:
        """0: the propensities are true; 3: a fault was found; 4: the log cannot decide."""
        if any(finding.status == "fault" for finding in self.findings):
            return 3
        return 4 if any(finding.status == "unsure" for finding in self.findings) else 0

    def json(self) -> dict[str, Any]:
        """Content of `--json`: the answer and every finding."""
        return {
            "lists": self.lists,
            "exit_code": self.exit_code,
            "findings": [vars(finding) for finding in self.findings],
        }


def audit(
    log: Path | str,
    *,
    runs: Sequence[Path | str] = (),
    answered: float = 0.0,
    seed: int = 0,
) -> Audit:
    """Check a log (a database, or a folder of rotated files) against the runs or exports that served it."""
    folders = [exported(Path(run)) for run in runs]
    layers = [Layer(folder) for folder in folders if (folder / LAYER).exists()]
    policies = {made.version: made for made in (Recommender(one) for one in folders if not (one / LAYER).exists())}
    rng, stream = np.random.default_rng(seed), logged_requests(log)
    evidence = Evidence(expected=count_lists(log))
    while block := list(islice(stream, BLOCK)):
        gather(evidence, block, policies, layers, rng)
    if not evidence.lists:
        raise DataError(f"{log} holds no lists.")
    findings = [
        *checks.identity(evidence, log),
        *checks.recomputed(evidence, policies),
        *checks.distribution(evidence),
        *checks.feedback(log, answered),
        *checks.drift(evidence),
    ]
    return Audit(findings, evidence.lists)
