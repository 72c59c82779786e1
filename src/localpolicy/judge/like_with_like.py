"""Two policies as they may be compared: with weights that one figure kept.

A figure that picks the epoch raises itself: weights kept by purchase nDCG beat weights kept by likelihood in purchase
nDCG, whatever trained them. So where two runs were kept by different figures, the weights of the best held-out
likelihood stand for both. Where these are missing there is no gain to speak of, and the reason is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from localpolicy.measure.baselines import is_baseline
from localpolicy.measure.candidates import Candidate
from localpolicy.measure.evaluation import Evaluation
from localpolicy.runs.run import BY_LIKELIHOOD, Run


@dataclass(frozen=True)
class Pair:
    """A new policy and the old one, on the same positions."""

    new: Evaluation
    old: Evaluation
    note: str | None = None  # which weights are compared, where these are not the ones that were kept
    refusal: str | None = None  # why no gain can be measured


def like_with_like(
    new: Candidate,
    old: Candidate,
    measured: tuple[Evaluation, Evaluation],
    likeliest: Callable[[Candidate], Evaluation],
) -> Pair:
    """What was `measured` of the two, or else what `likeliest` measures of their likeliest weights."""
    selected = [run for run in (new.run, old.run) if run is not None and not is_baseline(run.folder)]
    if len(selected) < 2:
        return Pair(*measured)  # a file of lists and a simple baseline have no epoch that a figure could pick
    rules = [run.kept_by for run in selected]
    if rules[0] == rules[1] or made_of(*selected):
        return Pair(*measured)
    why = (
        f"the epoch of {new.name} was chosen by {rules[0]}, that of {old.name} by {rules[1]}, and choosing by a figure "
        "raises that figure"
    )
    remedy = f"train both with one rule (--set train.select='{rules[0]}')"
    without = next((run.folder.name for run in selected if not has_likeliest(run)), None)
    if without is not None:
        return Pair(
            *measured, refusal=f"{why}. {without} has no weights kept by likelihood to compare instead: {remedy}"
        )
    note = f"{why}. So the weights of the best held-out likelihood are compared. To compare as kept, {remedy}"
    return Pair(likeliest(new), likeliest(old), note)


def has_likeliest(run: Run) -> bool:
    """Whether the weights of its best held-out likelihood were kept."""
    return run.kept_by in BY_LIKELIHOOD or "sha256" in run.manifest.get("likeliest", {})


def made_of(new: Run, old: Run) -> bool:
    """Whether `new` is `old` and a critic: both sides then hold the same weights, and no figure chose between them."""
    return old.manifest["policy_sha256"] in new.manifest.get("made_of", {}).values()
