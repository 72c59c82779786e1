"""What a report says, as plain data: pages are drawn from it, and `demo.json` holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from localpolicy.measure.estimate import Interval
from localpolicy.measure.significance import Paired


class StageCurve(NamedTuple):
    """The epochs of one network of a closed form, counted from 1."""

    curve: Sequence[Mapping[str, Any]]
    selected_epoch: int
    selected_by: str


@dataclass(frozen=True)
class PolicyRow:
    """One policy of a comparison."""

    name: str  # as people call it: "lpi_cb β=0.1"
    objective: str
    beta: float | None = None
    truth: Interval | None = None  # J(π), where a world gives it
    gain: Interval | None = None  # J(π) - J(μ), paired
    metrics: Mapping[str, Interval] = field(default_factory=dict)  # "click nDCG@20" -> figure
    at_k: Mapping[str, Interval] = field(default_factory=dict)  # "click nDCG@5" -> figure: every k, none tested
    js: Interval | None = None  # from the reference named in the section
    unseen_by_js: bool = False  # within noise by JS, though its ranking differs from the baseline's beyond chance
    likelihood: Interval | None = None  # mean log π(a|x) of what was logged
    kl: Interval | None = None
    coverage: float | None = None  # share of the catalogue that is in some list of `Section.lists` items
    entropy: float | None = None  # nats
    weights: Mapping[str, float] = field(
        default_factory=dict
    )  # of the selected epoch: effective_share, clipped_share, ...
    curve: Sequence[Mapping[str, Any]] = ()  # one entry per epoch: epoch, losses, weights, validation, selected_by
    selected_epoch: int | None = None
    stages: Mapping[str, StageCurve] = field(default_factory=dict)  # of a closed form: "logging", "critic-1", ...
    segments: Sequence[
        Mapping[str, Any]
    ] = ()  # {"by": "history", "segment": "1-3", "metric": ..., "mean", "low", "high", "n"}
    rounds: Sequence[Mapping[str, Any]] = ()  # {"figure": "J(π)", "round": 3, "mean", "low", "high"}, of a loop
    js_histogram: Sequence[tuple[float, float, int]] = ()  # (from, to, contexts)
    run: str | None = None  # its folder, relative to the report
    digest: str | None = None  # of its weights
    selected_by: str = ""  # the rule whose largest value picked the epoch: "AR@1", "logp"
    differences: Mapping[str, Paired] = field(default_factory=dict)  # metric -> gain over the baseline


@dataclass(frozen=True)
class CheckedClaim:
    """A claim, whether it holds here, and the figures behind the answer."""

    claim: str
    holds: bool | None  # None: cannot tell
    because: str


@dataclass(frozen=True)
class SampleLists:
    """What two policies would show after the same history."""

    history: Sequence[str]
    lists: Mapping[str, Sequence[tuple[str, float]]]  # policy -> (item, probability)


@dataclass(frozen=True)
class Section:
    """One comparison: policies on the same data."""

    title: str
    about: str  # what the data is, in two sentences
    rows: Sequence[PolicyRow]
    logging_value: Interval | None = None  # J(μ)
    reference: str = ""  # which μ̂ divergences are taken against
    baseline: str = ""  # which policy the differences of metrics are taken from; the reference if not said
    floor: Interval | None = None  # JS between two μ̂ of different seeds
    findings: Sequence[CheckedClaim] = ()
    samples: Sequence[SampleLists] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # counts, settings, digests
    main_metric: str = ""  # charted where no truth is known; the first metric of the rows if not said
    lists: int = 20  # K of the lists behind `coverage`


@dataclass(frozen=True)
class KeyNumber:
    """A number behind the answer, and what it means."""

    value: str
    name: str
    meaning: str


@dataclass(frozen=True)
class Headline:
    """The first screen of a report."""

    sentence: str
    numbers: Sequence[KeyNumber]  # two or three
    next_step: str  # what to do now


@dataclass(frozen=True)
class Contents:
    """A whole report."""

    title: str
    verdict: str  # the answer, in a sentence or two
    sections: Sequence[Section]
    settings: Mapping[str, str] = field(default_factory=dict)
    numbers: Sequence[KeyNumber] = ()  # two or three
    next_step: str = ""  # what to do now

    @classmethod
    def under(
        cls, headline: Headline, title: str, sections: Sequence[Section], settings: Mapping[str, str] | None = None
    ) -> Contents:
        """A report that begins with this headline."""
        return cls(title, headline.sentence, sections, settings or {}, headline.numbers, headline.next_step)

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)
