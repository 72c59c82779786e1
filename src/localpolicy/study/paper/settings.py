"""What `paper` can be told: each table and figure takes some of these settings. They are read without torch."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator
from pydantic.fields import FieldInfo

from localpolicy.errors import ConfigError, nearest
from localpolicy.runtime.folders import refuse_foreign
from localpolicy.settings import Settings

if TYPE_CHECKING:
    from localpolicy.study.arms import Study
    from localpolicy.study.paper.data import DataSet
    from localpolicy.study.paper.recipe import Recipe


class PaperConfig(Settings):
    """What a table or figure of the paper is made from, and how."""

    data: tuple[Path, ...] = Field((), description="prepared data, or a folder of the original files; may be repeated "
                                   "(default: simulated)")  # fmt: skip
    simulate: str | None = Field(
        None, description="what to simulate if no --data is given (default: netflix for table1, else retailrocket)"
    )
    sequences: int | None = Field(None, ge=1, description="sequences to simulate, before the recipe's filters")
    items: int | None = Field(None, ge=2, description="items to simulate")
    fast: bool = Field(False, description="few epochs, small grids and little simulated data")
    only: tuple[str, ...] = Field((), description="train only these policies: mle,sqn,lpi_rl")
    betas: tuple[float, ...] = Field((), description="grid of β, such as 0.1,0.3,1")
    lambdas: tuple[float, ...] = Field((), description="grid of λ, such as 0.3,1,3")
    seeds: int | None = Field(
        None, ge=1, description="seeds behind each figure shown (grids are searched with one seed)"
    )
    set: tuple[str, ...] = Field((), description="change the paper's settings: key=value; may be repeated")
    truth: bool = Field(False, description="also show J(π), if the data was simulated")
    ours: bool = Field(False, description="also train four rows of ours: tied heads and LPI in closed form")
    processes: int | None = Field(None, ge=1, description="processes that train in parallel (default: one per core)")
    device: str = Field("auto", description="cpu, cuda or auto")
    minutes: float | None = Field(
        None, gt=0, description="stop after this many minutes (exit code 130); the same command goes on"
    )
    keep: Literal["runs", "figures"] = Field(
        "runs", description="keep all weights, or only what resuming and tests need"
    )

    @field_validator("only", "betas", "lambdas", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """`0.1,0.3` is a list too."""
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    def data_sets(self, out: Path, what: str) -> list[DataSet]:
        """The data sets that were named, or simulated ones that fit: ratings, or clicks and purchases."""
        from localpolicy.study.paper.data import RATINGS, SHOPS, data_sets

        among = {"table1": RATINGS, "table2": (*RATINGS, *SHOPS)}.get(what, SHOPS)
        simulated = self.simulate or ("netflix" if what == "table1" else "retailrocket")
        sizes = {"sequences": self.sequences, "items": self.items, "fast": self.fast}
        return data_sets(self.data, out, simulated=simulated, among=among, **sizes)  # type: ignore[arg-type]

    def studies(self, out: Path, what: str) -> list[tuple[DataSet, Study]]:
        """Each data set, and the study that trains its arms in a folder of its own."""
        from localpolicy.study.arms import Study

        sets = self.data_sets(out, what)
        for data in sets:
            refuse_foreign(out / data.folder)
        deadline = None if self.minutes is None else time.time() + 60 * self.minutes
        shared: dict[str, Any] = {
            "processes": self.processes, "deadline": deadline, "keep": self.keep, "truth": self.truth,
        }  # fmt: skip
        return [(data, Study(data.data, out / data.folder, **shared)) for data in sets]

    def recipe(self, what: str = "table3", **usual: Any) -> Recipe:
        """The paper's recipe, or the fast one; `usual` holds where nothing else is given."""
        from localpolicy.study.paper.recipe import BANDIT, FAST, FAST_BANDIT, OURS, Recipe

        whole, fast = (BANDIT, FAST_BANDIT) if what == "table1" else (Recipe(), FAST)
        base = replace(fast if self.fast else whole, **usual)
        given: dict[str, Any] = {
            "betas": self.betas, "lambdas": self.lambdas, "seeds": self.seeds, "policies": self.only,
        }  # fmt: skip
        return replace(
            base,
            **{name: value for name, value in given.items() if value},
            changes=(*base.changes, *self.set),
            device=self.device,
            ours=tuple(OURS) if self.ours else (),
        )


DATA = ("data", "fast", "simulate", "sequences", "items")
TRAINED = (*DATA, "seeds", "set", "processes", "device", "minutes", "keep")
WHAT = {
    "table1": ("betas", *TRAINED),
    "table2": DATA,
    "table3": ("only", "betas", "lambdas", "truth", "ours", *TRAINED),
    "figure-beta": ("betas", *TRAINED),
    "figure-lambda": ("lambdas", *TRAINED),
    "figure-breakdown": ("betas", "lambdas", *TRAINED),
}


def fields_of(what: str) -> dict[str, FieldInfo]:
    """The settings that a table or figure takes."""
    return {name: PaperConfig.model_fields[name] for name in WHAT[what]}


# As the command line names them.
table1, table2, table3 = (partial(fields_of, f"table{number}") for number in (1, 2, 3))
figure_beta, figure_lambda, figure_breakdown = (
    partial(fields_of, f"figure-{what}") for what in ("beta", "lambda", "breakdown")
)


def paper_config(what: str, settings: dict[str, Any]) -> PaperConfig:
    """The settings of one table or figure; refused where it does not take one of them."""
    if what not in WHAT:
        raise ConfigError(f"paper: no table or figure '{what}'{nearest(what, WHAT)}")
    for name in settings:
        if name in PaperConfig.model_fields and name not in WHAT[what]:
            takers = ", ".join(one for one, names in WHAT.items() if name in names)
            raise ConfigError(f"{name}: {what} does not use it (used by {takers}). Leave it out.")
    return PaperConfig.parse(settings)
