"""The paper's recipe for click-and-purchase logs (section 4.2): policies, grids, selection, settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localpolicy.errors import ConfigError, DataError, nearest
from localpolicy.runs.config import PRESETS, Config
from localpolicy.study.arms import Arm
from localpolicy.study.grid import Axis, Point, grid
from localpolicy.study.paper.inputs import DataSet
from localpolicy.study.seeds import REFERENCE_SEEDS

POLICIES = {  # as the paper calls them, in its order
    "mle": "μ̂",
    "reward_weighted": "𝓛_μ",
    "pg": "PG",
    "ips_pg": "IPS-PG",
    "sqn": "SQN",
    "sac": "SAC",
    "lpi_rl": "LPI",
}
# Further rows, which are not the paper's: our defaults on its network, and how they are called.
OURS = {
    "mle_tied": "μ̂, tied heads (ours)",
    "reward_weighted_tied": "𝓛_μ, tied heads (ours)",
    "sqn_tied": "SQN, tied heads (ours)",
    "lpi_rl_closed": "LPI, closed form (ours)",
}
LABELS = POLICIES | OURS
# Those with a critic: what each has to tune.
TUNED = {"sqn": ("td_weight",), "sac": ("td_weight",), "lpi_rl": ("beta", "td_weight")}
SELECT = "1.0*purchase.nDCG@20 + 0.2*click.nDCG@20"


def paper_form(objective: str) -> list[str]:
    """An objective as the paper has it: μ̂ by its likelihood alone, LPI as weighted cross-entropy on one backbone."""
    form = {
        "mle": ["mle", "objective.propensities=unused"],
        "lpi_cb": ["lpi_cb_weighted", "objective.cap=20"],
        "lpi_rl": ["lpi_rl_weighted", "objective.cap=20", "objective.target=max"],
    }
    name, *settings = form.get(objective, [objective])
    return [f"objective.name={name}", *settings]


def our_form(name: str) -> str:
    """The objective of one of our rows: `lpi_rl_closed` is `lpi_rl`."""
    return name.rpartition("_")[0]


@dataclass(frozen=True)
class Recipe:
    """What decides the table, data aside."""

    betas: tuple[float, ...] = (0.1, 0.3, 1.0)
    lambdas: tuple[float, ...] = (0.3, 1.0, 3.0)
    seeds: int = 3
    policies: tuple[str, ...] = tuple(POLICIES)
    changes: tuple[str, ...] = ()  # of the preset, as key=value
    device: str = "auto"
    fast: bool = False
    ours: tuple[str, ...] = ()  # rows beside the paper's

    def config(self, objective: str, point: Point, seed: int) -> Config:
        """One arm's configuration: the paper's, or ours; and what was changed."""
        if objective in OURS:
            return self._our_config(objective, seed)
        preset = {group: dict(settings) for group, settings in PRESETS["rl"].items()}
        preset["train"] |= {"select": SELECT, "min_history": 0}
        fixed = [*paper_form(objective), f"train.seed={seed}", f"train.device={self.device}"]
        return point.apply(Config.parse(preset).with_changes([*self.changes, *fixed]))

    def _our_config(self, name: str, seed: int) -> Config:
        """Our defaults: tied heads, early stopping, our own rule for the epoch and for β. Positions are the table's."""
        positions = ["data.length=20", "train.min_history=0"]
        fixed = [f"objective.name={our_form(name)}", f"train.seed={seed}", f"train.device={self.device}"]
        return Config().with_changes([*positions, *self.changes, *fixed])

    def arm(self, objective: str, point: Point, seed: int) -> Arm:
        """One policy at one point and seed."""
        words = [objective, *(f"{key.rpartition('.')[2]}={value}" for key, value in point.settings), f"seed={seed}"]
        return Arm("-".join(words), self.config(objective, point, seed))

    def points(self, objective: str) -> list[Point]:
        """The grid of one policy: a single point where it has no hyperparameter."""
        values = {"beta": self.betas, "td_weight": self.lambdas}
        return grid(
            [Axis(f"objective.{key}", tuple(f"{value:g}" for value in values[key])) for key in TUNED.get(objective, ())]
        )

    def to_dict(self) -> dict[str, Any]:
        """For `table3.json`."""
        return {
            "fast": self.fast,
            "grid": {"beta": list(self.betas), "td_weight": list(self.lambdas)},
            "seeds": list(range(self.seeds)),
            "reference_seeds": list(REFERENCE_SEEDS),
            "select": SELECT,
            "changes": list(self.changes),
            "ours": list(self.ours),
        }


# A small honest version: fewer epochs and points, one seed; smaller batches, since there is little data for steps.
FAST_CHANGES = ("train.epochs=8", "train.batch_size=64", "train.learning_rate=0.003")
FAST = Recipe(betas=(0.3, 1.0), lambdas=(1.0,), seeds=1, changes=FAST_CHANGES, fast=True)


def references(recipe: Recipe) -> list[Arm]:
    """Two μ̂ of other seeds."""
    return [recipe.arm("mle", Point(), seed) for seed in REFERENCE_SEEDS]


def check(data: DataSet, recipe: Recipe) -> None:
    """Refuse what the table cannot be made of."""
    for name in recipe.policies:
        if name not in POLICIES:
            raise ConfigError(f"--only: no policy '{name}'{nearest(name, POLICIES)}")
    lacking = [event for event in ("purchase", "click") if not data.data.manifest["counts"]["events"].get(event)]
    if lacking:
        events = ", ".join(data.data.events)
        raise DataError(
            f"{data.data.path} has no {' and no '.join(lacking)} (its events: {events}): Table 3 needs both."
        )
    if recipe.seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {recipe.seeds}.")
