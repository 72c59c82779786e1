"""Judging runs: `evaluate` one, `compare` several, and the `gate` before a deployment."""

from localpolicy.verdict.compare import Comparison, compare
from localpolicy.verdict.evaluate import evaluate
from localpolicy.verdict.gate import GateRules, Verdict, gate

__all__ = ["Comparison", "GateRules", "Verdict", "compare", "evaluate", "gate"]
