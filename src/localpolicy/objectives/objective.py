"""Base class of objectives: a frozen group of settings with its equation.

The equation is a pure function from per-position numbers to named per-position losses. It reads the fields of a
`Readout` that it declares, and nothing else: so it cannot get a reduction wrong, knows nothing of the catalogue's size,
and its tests need no model. One of your own is a subclass with its own fields; nothing else must change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator

from localpolicy.errors import ConfigError
from localpolicy.settings import Settings
from localpolicy.types import Readout, Reads, Terms

if TYPE_CHECKING:
    from torch import Tensor


class Fitting(Protocol):
    """Training that an objective's `fit` can use: stages, and their assembly (see `training.fit_context`)."""

    def network(self) -> Any:
        """Train one network by the objective's own terms; return its run."""

    def logging_policy(self, given: str) -> Any:
        """Run that estimates μ: trained as the first stage ('head'), or the one in the folder `given`."""

    def policy(self, name: str, objective: Objective, number: int = 0) -> Any:
        """Train a policy as a stage of its own; `number` gives it another seed."""

    def critic(self, objective: Objective, number: int, *, dropout: float | None, rate: float) -> Any:
        """Train a critic as a stage that starts from μ̂'s weights; `rate` is relative to train.learning_rate."""

    def improved(self, objective: Any, logging: Any, critics: Sequence[Any]) -> Any:
        """Assemble the run π ∝ μ̂ exp(s Â/β) from the logging policy and the critics."""


class Objective(Settings):
    """Objective Σ w(x,a) log π(a|x) with a constant weight w, minus auxiliary losses; to be maximised."""

    name: ClassVar[str]  # on the command line and in files; 'package.module:Name' unless a class says otherwise
    non_negative: ClassVar[bool] = False  # its bound needs r >= 0
    uses_reward: ClassVar[bool] = True
    weighs_by_ratio: ClassVar[bool] = False  # by π/μ̂: an action that μ̂ cannot take has no weight
    estimates_logging: ClassVar[bool] = False  # its policy head is a likelihood: an estimate of μ
    calibrated: ClassVar[bool] = False  # the scale of its logits may be fitted to the held-out likelihood
    default_selection: ClassVar[str] = "auto"  # the validation figure that picks the epoch; auto: by reward
    # Whether all steps of a phase do the same, so that one may be replayed for another. A subclass must say it again.
    capturable: ClassVar[bool] = False

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if "name" not in cls.__dict__:
            cls.name = f"{cls.__module__}:{cls.__qualname__}"
        if "capturable" not in cls.__dict__:
            cls.capturable = False

    def resolved(self, *, propensities: bool) -> Objective:
        """Fill in the defaults that depend on whether the log states propensities."""
        return self

    def scaled(self, *, rewards: Callable[[], Sequence[float]]) -> Objective:
        """Fill in the defaults that depend on the training rewards: at most three distinct ones, the smallest first."""
        return self

    def crediting(self, *, meetings: Callable[[], bool]) -> Objective:
        """Resolve `credit`; `meetings` returns whether the gate judges the log by first meetings."""
        return self

    def reads(self) -> Reads:
        """Fields of the readout that the equation reads, with these settings."""
        return Reads()

    def terms(self, readout: Readout) -> Terms:
        """Losses per position by name, and the weight of -log π: the objective's equation."""
        raise NotImplementedError(f"{self.name} has no equation.")

    def fit(self, fitting: Fitting) -> Any:
        """Train a run: by default one network, by steps down the mean of the terms."""
        return fitting.network()

    def undialled(self) -> Objective | None:
        """Settings with those that need no training (β) at fixed values; None if every setting needs training."""
        return None

    def beta_of(self, manifest: Mapping[str, Any]) -> float | None:
        """β at which a run of this objective serves, from its manifest; None without a β."""
        return None

    def phase(self, step: int) -> int:
        """Number of the equation's form at this step: a captured step is replayed while it stays the same."""
        return 0

    @model_serializer(mode="wrap")
    def _named(self, settings: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"name": self.name, **settings(self)}

    @model_validator(mode="before")
    @classmethod
    def _unnamed(cls, values: Any) -> Any:
        return {key: value for key, value in values.items() if key != "name"} if isinstance(values, Mapping) else values


class RecordedObjective(Objective):
    """Objective of a run that is not imported here: its settings can be shown, but it cannot be trained."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    def called(cls, recorded: str) -> type[RecordedObjective]:
        """Make a class for the recorded name."""

        class Recorded(cls):  # type: ignore[misc, valid-type]
            name = recorded

        return Recorded

    def terms(self, readout: Readout) -> Terms:
        """Not supported: the equation is unknown."""
        raise ConfigError(
            f"the objective {self.name} is not known here: name it (--objective package.module:Name), import its "
            "module (lpi --import package.module ...), or install the package that registers it."
        )


def weighted(logp: Tensor, weight: Tensor, *, clipped: Tensor | None = None, **auxiliary: Tensor) -> Terms:
    """-w log π(a|x), w constant; and auxiliary losses by name."""
    weight = weight.detach()
    return Terms({"policy": -weight * logp, **auxiliary}, weight, clipped)


def unweighted(logp: Tensor, **auxiliary: Tensor) -> Terms:
    """-log π(a|x); and auxiliary losses by name."""
    return weighted(logp, ones_like(logp), **auxiliary)


def ones_like(logp: Tensor) -> Tensor:
    """1 at every position."""
    return logp.new_ones(logp.shape)
