"""What a log can be asked: the question that is judged.

value     rewards differ and propensities were logged: what a policy earns, by importance weights
rewards   rewards differ between kinds of action, no propensities: what an answer would be worth, alone and with how
          many answers there would be (see judge.gate_answers)
liking    ratings, or a reward of many values: how well what is ranked high was liked. Never the nDCG of everything
          taken: that refuses a policy for burying what people disliked
nothing   all rewards are equal: models can be ranked, and there is nothing to improve on and no verdict
metric    whatever the log is, the rules name the figure that decides
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from localpolicy.data.store import CONTEXT, NO_ANSWER, SPLITS, Prepared

Kind = Literal["value", "rewards", "liking", "nothing", "metric"]


class Question(NamedTuple):
    """What is asked of a log, and why."""

    kind: Kind
    why: str


def question_of(data: Prepared, split: str = "test") -> Question:
    """What the rewards and propensities of a log allow to ask about the policies judged on `split`."""
    ranges = reward_ranges(data)
    answers = {event: span for event, span in ranges.items() if event != NO_ANSWER}
    if len({value for span in ranges.values() for value in span}) < 2:
        return Question("nothing", "all events are worth the same, so there is nothing to improve on")
    propensity = data[split].arrays.get("propensity")
    if propensity is not None and bool(np.isfinite(propensity).any()):
        return Question("value", "rewards differ and propensities were logged")
    if any(low < high for low, high in answers.values()):
        return Question("liking", "rewards differ between events of one kind, and no propensities were logged")
    if all(is_rating(event) for event in answers):
        return Question("liking", "events are ratings, and no propensities were logged")
    return Question("rewards", "kinds of action differ in reward, and no propensities were logged")


def reward_ranges(data: Prepared) -> dict[str, tuple[float, float]]:
    """The smallest and the largest reward of each event that a policy chose."""
    ranges: dict[str, tuple[float, float]] = {}
    for split in SPLITS:
        event, reward = data[split].arrays["event"], data[split].arrays["reward"]
        for code, name in enumerate(data.events):
            if name != CONTEXT and (here := np.asarray(event) == code).any():
                low, high = ranges.get(name, (np.inf, -np.inf))
                mine = reward[here]
                ranges[name] = (min(low, float(mine.min())), max(high, float(mine.max())))
    return ranges


def paid_events(data: Prepared) -> list[str]:
    """Events a table shows, best paid first; none where events are ratings, of which there are too many."""
    rewards = data.manifest["rewards"]
    names = [name for name in data.events if name not in (NO_ANSWER, CONTEXT) and not is_rating(name)]
    return sorted(names, key=lambda name: -float(rewards.get(name, 0.0)))


def is_rating(event: str) -> bool:
    """Whether an event is a rating (its name is a number): tables leave these out, there are too many."""
    try:
        float(event)
    except ValueError:
        return False
    return True
