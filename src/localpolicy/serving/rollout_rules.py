"""Rules of a rollout: error levels, margins, rewards, and the least persons of a stage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from localpolicy.data.rewards import RewardMap
from localpolicy.errors import ConfigError
from localpolicy.serving.join import JoinConfig
from localpolicy.settings import Settings

FIRST, EARLY = 5, 2  # margins of the stages below 5 % and below 25 %, in units of the last one's
WIDEST = 0.5  # a wider margin proves nothing


class RolloutRules(Settings):
    """Settings that decide when a rollout advances and when it is rolled back."""

    alpha: float = Field(0.05, gt=0, lt=1, description="chance that any alarm is ever false")
    margin: float = Field(
        0.1, gt=0, le=WIDEST, description="loss against the current policy that must be ruled out before half of the "
        "people get the candidate; stages below 25 % may lose twice as much, below 5 % five times"
    )  # fmt: skip
    advance_alpha: float = Field(
        0.05, gt=0, lt=1, description="chance that a candidate which loses a stage's margin ever leaves that stage"
    )
    unproven: Literal["back", "hold"] = Field(
        "back", description="what becomes of a stage that has seen its most persons, and neither harm nor its absence "
        "is proven: nobody gets the candidate any more, or the stage continues"
    )  # fmt: skip
    scale: float | None = Field(
        None, gt=0, description="reward of a list that losses are shares of; null: the current policy's mean, or its "
        "mean size in the log where rewards can be negative"
    )  # fmt: skip
    answers: JoinConfig = Field(JoinConfig(), description="how answers become rewards, and until when they count")
    horizon: float = Field(
        3600.0, gt=0, description="seconds after a person's first list that count towards the reward"
    )
    places: int = Field(10, ge=1, description="longest list: says, with the rewards, what a list can bring")
    smallest_reward: float | None = Field(None, description="least that a list can bring; null: from the reward map")
    largest_reward: float | None = Field(None, description="most that a list can bring; null: from the reward map")
    units: int = Field(1000, ge=1, description="persons that a stage must see before the next one starts")
    people: int = Field(100, ge=1, description="of these, persons who were given the candidate")
    lists: int = Field(100, ge=1, description="lists of these")
    shadow_failures: float = Field(0.001, ge=0, le=1, description="share of shadow answers that may fail")

    @property
    def reward_alpha(self) -> float:
        """Error level of the test for harm; the guardrails share the rest."""
        return 0.8 * self.alpha

    @property
    def guardrail_alpha(self) -> float:
        """Error level of each guardrail: fallbacks, and the ratio of the arms."""
        return 0.1 * self.alpha

    @property
    def horizon_ms(self) -> int:
        """`horizon` in milliseconds."""
        return round(self.horizon * 1000)

    @property
    def ripe_ms(self) -> int:
        """Milliseconds after its first list during which a unit can still change."""
        return self.horizon_ms + self.answers.window_ms

    def margin_at(self, share: float) -> float | None:
        """Return the loss that must be ruled out before a stage at this share is left; None without a test."""
        if not 0 < share < 1:
            return None
        return min(WIDEST, self.margin * (1 if share >= 0.25 else EARLY if share >= 0.05 else FIRST))

    def least_persons(self, share: float) -> int:
        """Return the least number of persons of a stage at this share, so that `people` of them get the candidate."""
        return self.units if share == 0 else max(self.units, round(self.people / share))

    @property
    def range(self) -> tuple[float, float | None]:
        """Range of a list's reward: as stated, else 1 to `places` times an item's; None for an unknown upper end."""
        rewards = RewardMap.parse(self.answers.rewards)
        one = [self.answers.default, *rewards.names.values(), *(reward for _, reward in rewards.thresholds)]
        one += [] if rewards.otherwise is None else [rewards.otherwise]
        summed = self.answers.aggregation == "sum"
        if summed and self.smallest_reward is None and min(one) < 0:
            raise ConfigError("where several answers to one item are summed, and some are negative, no reward map says "
                              "how little a list can bring: state smallest_reward.")  # fmt: skip
        least = min(min(one), self.places * min(one))  # lists may be shorter
        most = None if summed else max(max(one), self.places * max(one))
        low = least if self.smallest_reward is None else self.smallest_reward
        high = most if self.largest_reward is None else self.largest_reward
        if high is not None and not low < high:
            raise ConfigError(f"a list must be able to bring more than {low:g} and less than {high:g}.")
        return low, high
