"""Settings of `paper`, and which table or figure takes which. Importing them needs no torch, so that --help is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

from localpolicy.errors import ConfigError, nearest
from localpolicy.settings import Settings, repeated
from localpolicy.study.settings import Listed, Processes


class PaperConfig(Settings):
    """Settings of a table or figure of the paper."""

    data: tuple[Path, ...] = Field(
        (), description="prepared data, or a folder of the original files; may be repeated (default: simulated)",
        json_schema_extra=repeated("--data"),
    )  # fmt: skip
    simulate: str | None = Field(
        None, description="what to simulate if no --data is given (default: netflix for table1, else retailrocket)"
    )
    sequences: int | None = Field(None, ge=1, description="sequences to simulate, before the recipe's filters")
    items: int | None = Field(None, ge=2, description="items to simulate")
    fast: bool = Field(False, description="few epochs, small grids and little simulated data")
    only: Listed[str] = Field((), description="train only these policies: mle,sqn,lpi_rl")
    betas: Listed[float] = Field((), description="grid of β, such as 0.1,0.3,1")
    lambdas: Listed[float] = Field((), description="grid of λ, such as 0.3,1,3")
    rates: Listed[float] = Field((), description="grid of learning rates, of policies that have neither β nor λ")
    seeds: int | None = Field(
        None, ge=1, description="seeds behind each figure shown (grids are searched with one seed)"
    )
    set: tuple[str, ...] = Field(
        (), description="change the paper's settings: key=value; may be repeated",
        json_schema_extra=repeated("--set", "KEY=VALUE"),
    )  # fmt: skip
    truth: bool = Field(False, description="also show J(π), if the data was simulated")
    network: Literal["paper", "ours"] = Field(
        "paper", description="the paper's network and number of epochs; or ours, whose size and length of training "
        "follow the log, with LPI by observed weights as a further policy"
    )  # fmt: skip
    ours: bool = Field(False, description="also train four rows of ours: tied heads and LPI in closed form")
    processes: Processes = None
    device: str = Field("auto", description="cpu, cuda or auto")
    minutes: float | None = Field(
        None, gt=0, description="stop after this many minutes (exit code 130); the same command continues"
    )
    keep: Literal["runs", "figures"] = Field(
        "runs", description="keep all weights, or only what resuming and tests need"
    )


DATA = ("data", "fast", "simulate", "sequences", "items")
TRAINED = (*DATA, "seeds", "set", "processes", "device", "minutes", "keep")
WHAT = {
    "table1": ("betas", "rates", *TRAINED),
    "table2": DATA,
    "table3": ("only", "betas", "lambdas", "rates", "truth", "network", "ours", *TRAINED),
    "figure-beta": ("betas", *TRAINED),
    "figure-lambda": ("lambdas", *TRAINED),
    "figure-breakdown": ("betas", "lambdas", *TRAINED),
}


def fields_of(what: str) -> dict[str, FieldInfo]:
    """Fields of the settings that a table or figure takes."""
    return {name: PaperConfig.model_fields[name] for name in WHAT[what]}


def paper_config(what: str, settings: dict[str, Any]) -> PaperConfig:
    """Settings of one table or figure; raise ConfigError for a setting that it does not take."""
    if what not in WHAT:
        raise ConfigError(f"paper: no table or figure '{what}'{nearest(what, WHAT)}")
    for name in settings:
        if name in PaperConfig.model_fields and name not in WHAT[what]:
            takers = ", ".join(one for one, names in WHAT.items() if name in names)
            raise ConfigError(f"{name}: {what} does not use it (used by {takers}). Leave it out.")
    return PaperConfig.parse(settings)
