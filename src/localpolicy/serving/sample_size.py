"""Sample size of a rollout: persons = C · CV² / (p (1 - p) d²), and the days until they have come.

CV² is the variance of a person's reward over the square of its mean, p the share that gets the candidate, d the margin
of the stage. One law fits clicks, prices and lists of every length within some ten percent; C is from simulated
rollouts whose candidate equals the current policy. Evidence accumulates over stages, so a stage needs what those before
it have not brought.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import Field

from localpolicy.settings import Settings

TYPICAL, MOST = 5.5, 15.5  # C of the median, and of the 95 % quantile
GIVEN_UP = 28.0  # C of the most persons of a stage
PROVABLE = 60.0  # of the least margin: a last stage at 50 % within the 95 % quantile
DAY_MS = 86_400_000


def persons_needed(cv2: float, share: float, margin: float, *, c: float) -> float:
    """C · CV² / (p (1 - p) d²)."""
    return c * cv2 / (share * (1 - share) * margin**2)


def least_margin(cv2: float, persons: float) -> float:
    """√(60 · CV² / M): the least margin that M persons can prove."""
    return math.sqrt(PROVABLE * cv2 / persons)


class StageSize(Settings):
    """Sample size of one stage."""

    share: float = Field(description="of people that get the candidate")
    margin: float | None = Field(description="the loss that must be ruled out before the stage is left; null: none")
    persons: int = Field(
        description="persons within which half of the rollouts of a candidate that is no worse leave the stage"
    )
    most: int = Field(description="persons within which 19 of 20 do")


class RolloutSize(Settings):
    """Sample size of a rollout whose candidate is no worse."""

    cv2: float = Field(description="variance over squared mean of a person's reward of a list")
    persons_a_day: float = Field(description="persons that come in a day")
    wait_days: float = Field(description="until a person's reward can no longer change")
    stages: dict[str, StageSize] = Field(description="what each stage needs")
    least_margin: float = Field(description="the least loss that the persons at hand can rule out")
    at_hand: int = Field(description="the persons at hand")

    @property
    def persons(self) -> int:
        """Number of persons that the whole rollout needs; half of all rollouts need fewer."""
        return sum(stage.persons for stage in self.stages.values())

    @property
    def most(self) -> int:
        """Persons of the whole rollout, enough in 19 of 20 cases."""
        return sum(stage.most for stage in self.stages.values())

    def days(self, persons: float) -> float:
        """Return the days until `persons` have come; each stage waits for the last of them."""
        return persons / self.persons_a_day + len(self.stages) * self.wait_days


def rollout_size(
    cv2: float, margins: Mapping[str, tuple[float, float | None]], *, persons_a_day: float, wait_days: float,
    least: Mapping[str, int], at_hand: float,
) -> RolloutSize:  # fmt: skip
    """Compute the sample size from share and margin of each stage, and the least persons that each must see."""
    return RolloutSize(
        cv2=cv2, persons_a_day=persons_a_day, wait_days=wait_days, at_hand=round(at_hand),
        least_margin=least_margin(cv2, at_hand),
        stages={
            stage: StageSize(share=share, margin=margin, persons=typical, most=most)
            for (stage, (share, margin)), typical, most in zip(
                margins.items(), _by_stage(cv2, margins, least, TYPICAL), _by_stage(cv2, margins, least, MOST),
                strict=True,
            )
        },
    )  # fmt: skip


def _by_stage(
    cv2: float, margins: Mapping[str, tuple[float, float | None]], least: Mapping[str, int], c: float
) -> list[int]:
    """Return the persons of each stage; information, Σ p (1 - p), is kept from stage to stage."""
    persons, information = [], 0.0
    for stage, (share, margin) in margins.items():
        each = share * (1 - share)
        needed = 0.0 if margin is None else (c * cv2 / margin**2 - information) / each
        persons.append(math.ceil(max(needed, least[stage])))
        information += each * persons[-1]
    return persons
