"""What would another policy earn? Estimates from a log of propensities, with intervals, or a plain refusal."""

from localpolicy.evaluation.off_policy.decisions import Decisions, decisions
from localpolicy.evaluation.off_policy.estimate import OffPolicy, ValueEstimate, off_policy
from localpolicy.evaluation.off_policy.overlap import Overlap, OverlapRules, overlap

__all__ = ["Decisions", "OffPolicy", "Overlap", "OverlapRules", "ValueEstimate", "decisions", "off_policy", "overlap"]
