"""What would another policy earn? Estimates from a log of propensities, with intervals, or a plain refusal."""

from localpolicy.measure.off_policy.decisions import Decisions, decisions
from localpolicy.measure.off_policy.estimate import OffPolicy, ValueEstimate, off_policy, value_of_scores
from localpolicy.measure.off_policy.overlap import Overlap, OverlapRules, overlap

__all__ = [
    "Decisions",
    "OffPolicy",
    "Overlap",
    "OverlapRules",
    "ValueEstimate",
    "decisions",
    "off_policy",
    "overlap",
    "value_of_scores",
]
