"""The paper's recipes, for ratings (section 4.1) and clicks and purchases (4.2), and every figure that its tables have.

Source: Dawen Liang and Nikos Vlassis, "Local Policy Improvement for Recommender Systems", 2022: Table 1 (Netflix) and
Table 3 (YooChoose, RetailRocket). The counts of Table 2 stand with the readers that should find them
(`localpolicy.data.readers`). The figures of section 4.2 were published as pictures alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from localpolicy.errors import ConfigError, DataError, nearest
from localpolicy.reproduction.data_sets import DataSet
from localpolicy.reproduction.settings import PaperConfig
from localpolicy.runs.config import PRESETS, Config
from localpolicy.study.arms import Arm
from localpolicy.study.measured import REFERENCE_SEEDS
from localpolicy.study.settings import NO_POINT, Axis, Point, grid

EVENTS = ("purchase", "click")
METRICS = tuple(f"{event}.{name}@{k}" for event in EVENTS for name in ("HR", "nDCG") for k in (5, 10, 20))


class Published(NamedTuple):
    """A published number; `se` is an upper bound if the paper says "on the order of", or "below"."""

    value: float
    se: float


# Standard errors of hit rate and nDCG, from the table's heading; none is given for JS.
_ERRORS = {
    "yoochoose": {"purchase": 0.002, "click": 0.001},  # click: "< 0.001"
    "retailrocket": {"purchase": 0.007, "click": 0.002},
}
# Logits: policy; purchase HR@5 @10 @20, nDCG @5 @10 @20; click likewise; JS.
_TABLE3 = {
    "yoochoose": """
mle             0.317 0.411 0.493 0.227 0.258 0.279 0.464 0.552 0.628 0.376 0.404 0.423 -
reward_weighted 0.322 0.415 0.496 0.232 0.262 0.283 0.461 0.547 0.623 0.373 0.401 0.420 0.089
pg              0.318 0.411 0.490 0.227 0.257 0.277 0.457 0.543 0.617 0.371 0.399 0.417 0.095
ips_pg          0.245 0.295 0.344 0.187 0.203 0.215 0.100 0.123 0.148 0.076 0.083 0.089 0.526
sqn             0.366 0.460 0.539 0.266 0.296 0.316 0.479 0.567 0.642 0.387 0.415 0.434 0.159
sac             0.364 0.458 0.537 0.266 0.297 0.317 0.473 0.561 0.637 0.384 0.413 0.432 0.167
lpi_rl          0.372 0.469 0.547 0.271 0.303 0.323 0.479 0.567 0.643 0.388 0.417 0.436 0.156
""",
    "retailrocket": """
mle             0.631 0.669 0.698 0.551 0.563 0.571 0.445 0.494 0.537 0.374 0.390 0.401 -
reward_weighted 0.631 0.663 0.689 0.561 0.572 0.578 0.440 0.487 0.528 0.373 0.388 0.398 0.282
pg              0.621 0.660 0.687 0.545 0.558 0.565 0.444 0.491 0.533 0.375 0.391 0.401 0.282
ips_pg          0.257 0.270 0.285 0.224 0.228 0.232 0.107 0.117 0.127 0.089 0.093 0.095 0.571
sqn             0.663 0.702 0.723 0.593 0.605 0.611 0.468 0.520 0.567 0.396 0.413 0.424 0.270
sac             0.654 0.689 0.716 0.578 0.589 0.596 0.462 0.512 0.556 0.393 0.409 0.421 0.301
lpi_rl          0.665 0.700 0.724 0.599 0.610 0.616 0.471 0.522 0.567 0.400 0.416 0.428 0.273
""",
}
# Logits: policy; AR@1, iAR@1, JS. "The standard errors on all three metrics are on the order of 10^-4."
_TABLE1 = """
mle               0.060 0.696 -
reward_weighted   0.060 0.727 0.094
ips               0.030 0.690 0.504
lpi_cb β=0.001    0.023 0.706 0.223
lpi_cb β=0.1      0.061 0.739 0.118
lpi_cb β=1        0.061 0.717 0.087
lpi_cb β=1000     0.060 0.698 0.081
"""


def published(source: str, *, ratings: bool = False) -> dict[str, dict[str, Published]]:
    """Published numbers of a data set by policy, from Table 1 or Table 3; empty for other data.

    A line is a policy, then its figures in the order of their errors; a dash stands for none.
    """
    if ratings:
        text = _TABLE1 if source in ("netflix", "movielens") else ""  # of the Netflix Prize
        errors = dict.fromkeys(("AR@1", "iAR@1", "JS"), 1e-4)
    else:
        text, of_event = _TABLE3.get(source, ""), _ERRORS.get(source, {})
        errors = {name: of_event.get(name.partition(".")[0], math.nan) for name in (*METRICS, "JS")}
    table = {}
    for words in map(str.split, text.strip().splitlines()):
        figures = zip(errors.items(), words[-len(errors) :], strict=True)
        printed = {name: Published(float(word), se) for (name, se), word in figures if word != "-"}
        table[" ".join(words[: -len(errors)])] = printed
    return table


# ---------------------------------------------------------------------- the recipe


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
# The forms of LPI without a critic: weights, the TD loss of SQN in addition, a dial. Not the paper's either.
OBSERVED = {
    "lpi_observed": "LPI, observed",
    "lpi_observed_td": "LPI, observed, with TD",
    "lpi_observed_dial": "LPI, observed, as a dial",
}
# Policies that are trained at every β with every seed, and their rows at the β that keeps SAC's clicks on validation.
CURVES = {"lpi_observed": "lpi_observed_even", "lpi_observed_dial": "lpi_observed_dial_even"}
LABELS = POLICIES | OBSERVED | OURS | {even: f"{OBSERVED[curve]}, clicks kept" for curve, even in CURVES.items()}
BANDIT_LABELS = {"mle": "Logging (μ̂)", "reward_weighted": "𝓛_μ", "ips": "IPS", "lpi_cb": "LPI"}
# Those with a critic: what each has to tune. A policy with nothing of its own tunes the learning rate.
TUNED = {"sqn": ("td_weight",), "sac": ("td_weight",), "lpi_rl": ("beta", "td_weight")}
DIALS = TUNED | dict.fromkeys(("lpi_cb", *OBSERVED), ("beta",))
KEYS = {"beta": "objective.beta", "td_weight": "objective.td_weight", "learning_rate": "train.learning_rate"}
SYMBOLS = {"beta": "β", "td_weight": "λ", "learning_rate": "rate"}
SELECT = "1.0*purchase.nDCG@20 + 0.2*click.nDCG@20"


def paper_form(objective: str) -> list[str]:
    """Config changes that give an objective the paper's form: μ̂ by likelihood alone, LPI on one backbone."""
    form = {
        "mle": ["mle", "objective.propensities=unused"],
        "lpi_cb": ["lpi_cb_weighted", "objective.cap=20"],
        "lpi_rl": ["lpi_rl_weighted", "objective.cap=20", "objective.target=max"],
        "lpi_observed_td": ["lpi_observed", "objective.td_weight=1"],
        "lpi_observed_dial": ["lpi_observed", "objective.form=power"],
    }
    name, *settings = form.get(objective, [objective])
    return [f"objective.name={name}", *settings]


def greek(point: str) -> str:
    """Name of a grid point with Greek letters: β=0.1 λ=1."""
    for name, symbol in SYMBOLS.items():
        point = point.replace(f"{name}=", f"{symbol}=")
    return point


@dataclass(frozen=True)
class Recipe:
    """Settings of a table, apart from its data: policies, grids, seeds and training."""

    preset: str = "rl"  # of the paper's network
    select: str = SELECT  # the rule that keeps an epoch
    # Four points for each policy: what it has of its own, or else the learning rate.
    betas: tuple[float, ...] = (0.5, 2.0)
    mild: tuple[float, ...] = (0.8, 1.5, 3.0, 6.0)  # β of observed weights
    lambdas: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    lambdas_by_beta: tuple[float, ...] = (0.3, 1.0)  # λ of LPI, at each β
    rates: tuple[float, ...] = (0.0005, 0.001, 0.002, 0.004)
    seeds: int = 5
    policies: tuple[str, ...] = tuple(POLICIES)
    changes: tuple[str, ...] = ()  # of the preset, as key=value
    device: str = "auto"
    fast: bool = False
    ours: tuple[str, ...] = ()  # rows in addition to the paper's
    network: str = "paper"  # or "ours": its size, and how long it is trained, follow the log

    @classmethod
    def of(cls, config: PaperConfig, what: str = "table3", **usual: Any) -> Recipe:
        """Recipe of the paper, or the fast one, with the user's settings; `usual` are other defaults."""
        whole, fast = (BANDIT, FAST_BANDIT) if what == "table1" else (cls(), FAST)
        base = replace(fast if config.fast else whole, network=config.network, **usual)
        if config.network == "ours" and base.policies == tuple(POLICIES):
            base = replace(base, policies=(*POLICIES, *OBSERVED))
        if config.network == "ours" and config.ours:
            raise ConfigError("--ours: its rows are of the paper's network. Leave it out, or --network ours.")
        given: dict[str, Any] = {"betas": config.betas, "mild": config.betas, "lambdas": config.lambdas}
        given |= {
            "lambdas_by_beta": config.lambdas,
            "rates": config.rates,
            "seeds": config.seeds,
            "policies": config.only,
        }
        return replace(
            base,
            **{name: value for name, value in given.items() if value},
            changes=(*base.changes, *config.set),
            device=config.device,
            ours=tuple(OURS) if config.ours else (),
        )

    def config(self, objective: str, point: Point, seed: int) -> Config:
        """Configuration of one arm: the paper's settings or ours, with the user's changes."""
        fixed = [f"train.seed={seed}", f"train.device={self.device}"]
        if objective in OURS:  # at the paper's size: tied heads, early stopping, our own rule for epoch and β
            own = ["data.length=20", "train.min_history=0", f"objective.name={objective.rpartition('_')[0]}"]
            own += ["objective.credit=rows"] if objective == "lpi_rl_closed" else []  # the table's figures are of rows
            return Config.parse(PRESETS["fixed"]).with_changes([*own, *self.changes, *fixed])
        given = {"train": {}} if self.network == "ours" else PRESETS[self.preset]
        preset = {group: dict(settings) for group, settings in given.items()}
        preset["train"] |= {"select": self.select, "min_history": 0}
        return point.apply(Config.parse(preset).with_changes([*self.changes, *paper_form(objective), *fixed]))

    def arm(self, objective: str, point: Point, seed: int) -> Arm:
        """Arm of one objective at one point of its grid and one seed."""
        return Arm.at(objective, point, self.config(objective, point, seed))

    def arms(self, objective: str, point: Point) -> list[Arm]:
        """Arms of one point, one per seed."""
        return [self.arm(objective, point, seed) for seed in range(self.seeds)]

    def references(self) -> list[Arm]:
        """Arms of two estimates μ̂ with seeds of their own."""
        return [self.arm("mle", NO_POINT, seed) for seed in REFERENCE_SEEDS]

    def points(self, objective: str) -> list[Point]:
        """Grid points of one objective; a single point if it has no hyperparameter."""
        if objective in OURS:
            return [NO_POINT]
        dials = DIALS.get(objective, ("learning_rate",))
        values = {
            "beta": self.mild if objective in OBSERVED else self.betas,
            "td_weight": self.lambdas_by_beta if "beta" in dials else self.lambdas,
            "learning_rate": self.rates,
        }
        axes = [(KEYS[key], values[key]) for key in dials if values[key]]
        return grid([Axis(key, tuple(f"{value:g}" for value in each)) for key, each in axes])


BANDIT = Recipe("bandit", "AR@1", (0.001, 0.1, 1.0, 1000.0), lambdas=(), policies=tuple(BANDIT_LABELS))
# Small honest versions: fewer epochs and points, one seed; smaller batches, since there is little data for steps.
FAST_CHANGES = ("train.epochs=8", "train.batch_size=64", "train.learning_rate=0.003")
FAST = Recipe(
    betas=(0.3, 1.0), lambdas=(1.0,), lambdas_by_beta=(1.0,), rates=(), seeds=1, changes=FAST_CHANGES, fast=True
)
SMALL_NETWORK = ("data.length=50", "data.last=20", "model.width=64", "model.heads=2", "model.blocks=1")
SMALL_BATCHES = ("train.epochs=10", "train.batch_size=32", "train.learning_rate=0.003")
FAST_BANDIT = replace(BANDIT, rates=(), seeds=1, changes=(*SMALL_NETWORK, *SMALL_BATCHES), fast=True)


def check(data: DataSet, recipe: Recipe, *, splits: Sequence[str] = ("validation", "test")) -> None:
    """Raise an error if the data or the named policies cannot make the table."""
    for name in recipe.policies:
        if name not in POLICIES | OBSERVED:
            raise ConfigError(f"--only: no policy '{name}'{nearest(name, POLICIES | OBSERVED)}")
    lacking = [event for event in EVENTS if not data.data.manifest["counts"]["events"].get(event)]
    if lacking:
        events = ", ".join(data.data.events)
        raise DataError(
            f"{data.data.path} has no {' and no '.join(lacking)} (its events: {events}): Table 3 needs both."
        )
    for split, event in itertools.product(splits, EVENTS):
        part = data.data[split]
        holding = np.unique(part.sequence[np.asarray(part.arrays["event"]) == data.data.events.index(event)])
        if len(holding) < 2:
            raise DataError(
                f"the {split} split of {data.data.path} has {len(holding)} sequences with a {event}; at least 2 are "
                "needed to measure by. Give a larger log, or hold out more of it."
            )
