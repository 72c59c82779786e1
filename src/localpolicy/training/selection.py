"""Selection of the epoch that is kept: a weighted sum of validation metrics, written as people write it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from localpolicy.data.batches import Windows
from localpolicy.data.store import CONTEXT, NO_ANSWER, Prepared
from localpolicy.errors import ConfigError, nearest
from localpolicy.measure.estimate import sample_needed
from localpolicy.measure.metrics import AT_20
from localpolicy.objectives.objective import Objective
from localpolicy.runs.config import TrainConfig
from localpolicy.runs.run import IMITATION, LIKELIHOOD, PLAIN

# Held-out positions that a metric needs to choose an epoch: as many as would detect a small difference if each were of
# another sequence. They are not, so a metric may still mislead; but a poor choice among epochs costs little, and the
# manifest counts positions by event, not sequences.
ENOUGH_POSITIONS = sample_needed()
PROPENSITIES = "validation/propensity.npy"
_TERM = re.compile(r"(?:([0-9.eE+-]+)\s*\*\s*)?([A-Za-z_][\w.@-]*)")


def rule(select: str, data: Prepared, objective: Objective) -> str:
    """Selection rule that `auto` stands for; any other `select` is returned as it is.

    Held-out likelihood for the logging policy's estimate. For the others, if the log states propensities, the lower
    bound of the policy's value: ranking metrics and likelihood do not find the better policy there. Else the paper's.
    Events with too few held-out positions (`ENOUGH_POSITIONS`) are left out of it. If none has enough, held-out
    likelihood decides, which is a mean over all positions.
    """
    if select != "auto":
        return select
    if objective.default_selection != "auto":
        return imitation(data) if objective.default_selection == LIKELIHOOD else objective.default_selection
    held_out = _held_out(data)
    if PROPENSITIES in data.manifest.get("files", {}):
        return "value_low" if _decisions(data) >= ENOUGH_POSITIONS else LIKELIHOOD
    paid = _paid(data)
    if not paid:
        return "AR@1" if sum(held_out.values()) >= ENOUGH_POSITIONS else LIKELIHOOD
    counted = {name: reward for name, reward in paid.items() if held_out[name] >= ENOUGH_POSITIONS}
    return " + ".join(f"{reward:g}*{name}.nDCG@20" for name, reward in counted.items()) or LIKELIHOOD


def imitation(data: Prepared) -> str:
    """Selection rule for an estimate of the logging policy: held-out likelihood; on a sparse log, plus ranking.

    There the likelihood at its best temperature is nearly level for many epochs, in which ranking rises by a tenth: the
    weight lets 0.01 of nDCG outweigh 0.03 nats (docs/results/defaults.md).
    """
    return IMITATION if data.sparse and sum(_held_out(data).values()) >= ENOUGH_POSITIONS else LIKELIHOOD


def events_left_out(select: str, data: Prepared, objective: Objective) -> str | None:
    """Warning if `auto` leaves events out, or if a rule of the user's depends on too few positions; else None."""
    held_out = _held_out(data)
    few = {name: held_out[name] for name in _paid(data) if held_out[name] < ENOUGH_POSITIONS}
    if select != "auto":
        few = {name: count for name, count in few.items() if f"{name}." in select}
    if not few or (select == "auto" and rule(select, data, objective) in (objective.default_selection, "value_low")):
        return None
    said = ", ".join(f"{name} {count:,}" for name, count in few.items())
    selected_by = rule(select, data, objective)
    what = f"so the epoch is selected by {selected_by}" if select == "auto" else f"and '{select}' depends on them"
    return (
        f"too few held-out positions to detect a small difference ({said}; {ENOUGH_POSITIONS} are needed), {what}. "
        "A larger validation share, or more data, helps."
    )


def choosing(windows: Windows, config: TrainConfig) -> Windows:
    """Validation sequences that choose the epoch: all, or every second one (see `choose_on`)."""
    return windows.part(0, 2) if config.choose_on == "half" and len(windows) > 1 else windows


def _held_out(data: Prepared) -> dict[str, int]:
    """Number of positions of the validation split by event, without those that no policy chose."""
    events = data.held_out_events("validation")
    return {name: count for name, count in events.items() if name not in (NO_ANSWER, CONTEXT)}


def _decisions(data: Prepared) -> int:
    """Number of positions of the validation split, answered or not."""
    events = data.held_out_events("validation")
    return sum(count for name, count in events.items() if name != CONTEXT)


def _paid(data: Prepared) -> dict[str, float]:
    """Rewards of the held-out events that pay and have a name: a rule must not name an absent one.

    Ratings are events too, but the nDCG of a 3 means nothing: they are judged as in the paper's bandit.
    """
    held_out, rewards = _held_out(data), data.manifest["rewards"]
    return {
        name: rewards[name]
        for name in rewards
        if held_out.get(name) and rewards[name] > 0 and _TERM.fullmatch(f"{name}.nDCG@20")
    }


def check_select(select: str, data: Prepared) -> None:
    """Raise ConfigError if a rule of the user's names a metric that validation cannot give: before training."""
    if select == "auto":
        return
    groups = [*(name for name, count in _held_out(data).items() if count), "all", "new", "repeat", "reward-weighted"]
    known = [f"{group}.{metric}" for group in groups for metric in AT_20]
    known += ["AR@1", LIKELIHOOD, "value_error", "constant_error"]
    known += ["value", "value_low", "effective", "mean_weight", "mean_weight_se"]
    known += [PLAIN] if data.sparse else []
    for _, name in _terms(select):
        if name not in known:
            raise ConfigError(f"train.select: no figure '{name}'{nearest(name, known)}")


def selection_score(select: str, figures: Mapping[str, float]) -> float:
    """Value of a rule such as `1.0*purchase.nDCG@20 + 0.2*click.nDCG@20`."""
    total = 0.0
    for weight, name in _terms(select):
        if name not in figures:
            raise ConfigError(f"train.select: no figure '{name}'{nearest(name, figures)}")
        total += weight * figures[name]
    return total


def _terms(select: str) -> Iterator[tuple[float, str]]:
    """Weight and name of each term of the sum."""
    for text in re.split(r"\s+\+\s+", select.strip()):
        term = _TERM.fullmatch(text.strip())
        if term is None:
            raise ConfigError(f"train.select: cannot read '{text}'; write terms such as 0.2*click.nDCG@20 + AR@1.")
        yield float(term[1] or 1), term[2]
