"""What a loop found: the figures of every round and objective, over its seeds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from localpolicy import __version__
from localpolicy.results import Result
from localpolicy.simulation import BanditWorld
from localpolicy.study.loop.config import LoopConfig
from localpolicy.study.loop.figures import Figures, over_all_seeds
from localpolicy.study.loop.measure import World
from localpolicy.study.scenarios import PolicySpec


@dataclass(frozen=True, repr=False)
class Loop(Result):
    """A loop that has come to its end."""

    config: LoopConfig
    world: World
    arms: list[PolicySpec]
    first: list[dict[str, Any]]  # μ's figures, by seed
    rounds: dict[str, list[list[dict[str, Any]]]]  # by arm, by seed: one entry per round, fewer where it had to stop

    def figures(self, arm: str) -> list[Figures]:
        """One objective's figures by round (the 0th is μ), over the seeds that got there."""
        seeds = [[entry for entry in seed if "stopped" not in entry] for seed in self.rounds[arm]]
        last = max(map(len, seeds), default=0)
        return [
            over_all_seeds(self.first),
            *(over_all_seeds([seed[number] for seed in seeds if len(seed) > number]) for number in range(last)),
        ]

    def stopped(self, arm: str) -> dict[int, str]:
        """Rounds in which a seed could not be trained, and why."""
        entries = [(number, entry) for seed in self.rounds[arm] for number, entry in enumerate(seed, start=1)]
        return {number: entry["stopped"] for number, entry in entries if "stopped" in entry}

    def summary(self) -> str:
        """Where each objective ended."""
        ends = {arm.name: self.figures(arm.name)[-1]["J(π)"].mean for arm in self.arms}
        order = ", ".join(f"{name} {value:.4f}" for name, value in sorted(ends.items(), key=lambda end: -end[1]))
        last = max(len(seed) for seeds in self.rounds.values() for seed in seeds)
        return f"{self.config.world}, {last} rounds; J at the end: {order}"

    def to_arrow(self) -> pa.Table:
        """One row per objective, round and figure, with its 95 % interval."""
        return pa.Table.from_pylist(
            [
                {"policy": arm.name, "round": number, "figure": name, **asdict(value)}
                for arm in self.arms
                for number, figures in enumerate(self.figures(arm.name))
                for name, value in figures.items()
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Settings, every figure by round, and each seed's own."""
        world = self.world
        return {
            "localpolicy": __version__,
            "settings": self.config.model_dump(mode="json"),
            "optimum": world.optimum() if isinstance(world, BanditWorld) else None,
            "first": {str(seed): _kept(entry) for seed, entry in zip(self.config.seeds, self.first, strict=True)},
            "arms": {
                arm.name: {
                    "objective": arm.objective,
                    "rounds": [
                        {"round": number, **{name: asdict(value) for name, value in figures.items()}}
                        for number, figures in enumerate(self.figures(arm.name))
                    ],
                    "seeds": {
                        str(seed): [_kept(entry) for entry in entries]
                        for seed, entries in zip(self.config.seeds, self.rounds[arm.name], strict=True)
                    },
                }
                for arm in self.arms
            },
        }


def _kept(entry: dict[str, Any]) -> dict[str, Any]:
    """What one seed measured in one round; the rest is in its own file."""
    if "stopped" in entry:
        return entry
    kept = {name: entry[name]["mean"] for name in ("truth", "gain", "step", "js_before", "js_first")}
    share = {key: value for key, value in entry.get("weights", {}).items() if key == "effective_share"}
    return {
        **kept,
        "truth_se": entry["truth"]["se"],
        "step_se": entry["step"]["se"],
        **{name: entry[name] for name in ("entropy", "coverage")},
        **share,
    }
