"""Layer on a ranker: π ∝ μ exp(Σ w Â / β) · boosts, drawn in the user's own process or behind `/v1/rerank`.

    layer.json      law, β, the critics' columns, what was measured
    <event>/…       each critic's file

At β = ∞ it is the ranker's own declared law. Serving needs numpy, and LightGBM where its trees are the critic.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from localpolicy.errors import ConfigError, DataError, LocalPolicyError, RunError, nearest
from localpolicy.plackett_luce import Ranked, best, check_places, draw, law
from localpolicy.ranker.critic import CRITICS, Critic
from localpolicy.ranker.features import ITEM, SCORE, Coding, Encoder, Seen, as_columns
from localpolicy.ranker.rules import Openings, Rules, Stated, check_groups, draw_under, openings, stated_law
from localpolicy.runtime.files import read_sealed, sha256
from localpolicy.runtime.formats import Format

log = logging.getLogger(__name__)
FILE = "layer.json"
FORMAT = Format(2, "make it again with 'lpi improve'", upgrades={1: lambda content: {**content, "over_drawn": None}})
TEMPERATURE = 0.1  # of standardised scores, if the log's lists were not drawn: costs about 1 % of the clicks


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Column(_Part):
    name: str
    of_request: bool
    names: list[str] | None
    edges: list[float]
    mean: float = Field(allow_inf_nan=False)
    scale: float = Field(gt=0, allow_inf_nan=False)


class _Critic(_Part):
    name: str
    folder: str = Field(pattern=r"^[\w-]+$")
    places: int = Field(ge=1)
    weight: float = Field(allow_inf_nan=False)
    sha256: str

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in CRITICS:
            raise ValueError(f"there is no critic {name!r}")
        return name


class _Law(_Part):
    kind: Literal["probabilities", "scores", "deterministic", "unknown"]  # as `law.Kind`, which needs scipy
    temperature: float | None = Field(gt=0)
    standardise: bool


class Description(_Part):
    """Content of `layer.json` that a draw needs: columns, critics, law and β."""

    columns: list[_Column]
    critics: dict[str, _Critic]
    law: _Law
    beta: float | None = Field(gt=0)
    manifest_sha256: str = Field(min_length=1)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Context manager: turn any error of reading a layer into RunError. Our own errors keep their messages."""
    try:
        yield
    except LocalPolicyError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"[:200]
        raise RunError(f"{folder} is no layer that this version reads ({what}): it was altered, or made by another "
                       "version. Make it again with 'lpi improve'.") from None  # fmt: skip


@dataclass(frozen=True)
class Reranked:
    """A list drawn by a layer, with its propensities and its record for the log."""

    items: list[Any]
    propensities: list[float]  # propensity of each place, given those above
    request: str
    policy: str
    page: int
    above: list[Any]  # items of earlier pages
    probabilities: list[float]  # of all candidates at the first place, without rules
    record: dict[str, Any]  # entry for the log of requests

    def json(self) -> dict[str, Any]:
        """Return the list as the service answers it."""
        return {name: getattr(self, name) for name in ("request", "items", "propensities", "policy", "page")}


class Layer:
    """Layer of a run of `lp.improve`, which reranks candidates."""

    def __init__(
        self,
        run: Path | str,
        *,
        beta: float | None = None,
        temperature: float | None = None,
        rules: Rules | None = None,
        shadow: bool = False,
    ) -> None:
        """Open a layer. `beta` replaces the chosen one (inf: no tilt), `shadow` shows the ranker's own order."""
        self.folder = Path(run)
        about = FORMAT.upgraded(read_sealed(self.folder / FILE), self.folder)
        with _readable(self.folder):
            Description.model_validate(about)
        self.about = about
        self.law: dict[str, Any] = about["law"]
        chosen = about["beta"]
        self.beta = beta if beta is not None else math.inf if chosen is None else float(chosen)
        if not self.beta > 0:
            raise ConfigError(f"beta must be greater than 0, got {self.beta}; inf is the ranker's own law.")
        self.temperature = temperature
        self.rules = rules or Rules()
        self.shadow = shadow
        self.encoder = Encoder([Coding.of(one) for one in about["columns"]])
        self._check_weights(self.rules.weights)
        self._warned: set[str] = set()  # columns that requests lacked

    @cached_property
    def critics(self) -> dict[str, Critic]:
        """Critics by event, loaded on first use."""
        found = {}
        for event, one in self.about["critics"].items():
            folder = self.folder / one["folder"]
            kind = CRITICS[one["name"]]
            path = folder / kind.FILE
            if not path.is_file() or sha256(path) != one["sha256"]:
                raise RunError(f"{path} is missing or was altered (its digest differs). Bring it back, or train again.")
            with _readable(self.folder):
                found[event] = kind.load(folder, self.encoder.codings, one["places"])
        return found

    @cached_property
    def version(self) -> str:
        """Version of the layer's law: the run's files, β and τ. Rules are logged with every list."""
        parts = (self.about["manifest_sha256"], repr(self.beta), repr(self.temperature))
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]

    def rerank(
        self,
        candidates: Any,
        k: int,
        *,
        person: str | None = None,
        context: Mapping[str, Any] | None = None,
        rules: Rules | None = None,
        resting: Sequence[Any] | None = None,
        page: int = 1,
        request: str | None = None,
        rng: np.random.Generator | None = None,
    ) -> Reranked:
        """Draw a list of k of the candidates: dicts with `item`, `score` and columns, or a dict of such columns.

        `resting` are items that this person saw within the rules' hours. Page 2 needs the `request` of page 1 and the
        same candidates: it continues the same draw.
        """
        columns = as_columns(candidates)
        rules = self.rules if rules is None else rules
        if rules.rest_hours and resting is None:
            raise ConfigError("rest_hours: here nothing is known of earlier lists. Pass resting=, the items that this "
                              "person saw in these hours, or [] if there were none.")  # fmt: skip
        if page > 1 and request is None:
            raise ConfigError("page 2 continues a draw: send the request that page 1 answered with.")
        # The request's id is the seed of its draw: so page 2 draws the same list again, and continues.
        request = request or (uuid4().hex if rng is None else rng.bytes(16).hex())
        own_rng = np.random.default_rng(
            int.from_bytes(hashlib.sha256(f"{self.version}|{request}".encode()).digest()[:16])
        )
        logits = self.logits(columns, context or {}, rules.weights)
        if page < 1:
            raise ConfigError(f"page must be at least 1, got {page}.")
        check_places(k, 0, len(logits))
        if k * page > len(logits):
            raise DataError(f"page {page}: {page} pages of {k} take {k * page:,} candidates, and there are "
                            f"{len(logits):,}. The last whole page is {len(logits) // k:,}.")  # fmt: skip
        opened = _opened(logits, columns, k * page, rules, resting or ())
        ranked = _drawn(logits, opened, k * page, own_rng)
        here = slice(k * (page - 1), k * page)
        drawn = [columns["item"][position] for position in ranked.order[here]]
        over = best(self._own(columns), k * page) if self.shadow else ranked.order
        listed = [columns["item"][position] for position in over]
        plain = _softmax(logits)
        stated = Stated(plain, 0) if opened is None else stated_law(opened)
        others = {
            name: _plain(values) for name, values in columns.items() if name not in ("item", SCORE, "probability")
        }
        record = {
            **(context or {}), **others, "request": request, "person": person, "policy": self.version, "page": page,
            "candidates": list(columns["item"]), "scores": self._own(columns).tolist(),
            "probabilities": plain if stated is None else stated.probabilities,
            "pinned": k * page if self.shadow else 0 if stated is None else stated.pinned,
            "shown": listed[here], "propensities": ranked.propensities[here].tolist(), **self.draws,
        }  # fmt: skip
        if self.shadow:
            record["would_show"] = drawn
        elif stated is None:
            record["rules"] = rules.model_dump_json(exclude_defaults=True)
        propensities = [1.0] * k if self.shadow else record["propensities"]
        return Reranked(listed[here], propensities, request, self.version, page, listed[: here.start], plain, record)

    def price(
        self,
        candidates: Any,
        k: int,
        rules: Rules,
        *,
        context: Mapping[str, Any] | None = None,
        resting: Sequence[Any] = (),
        draws: int = 200,
        rng: np.random.Generator | None = None,
    ) -> float:
        """Estimate by the critics the share of a list's reward that rules cost in this request; it may be negative."""
        columns, context = as_columns(candidates), context or {}
        first, weights = self._first(columns, context), self._event_weights({})
        chance = sum((weights[event] / (1 + np.exp(-critic.log_odds(first))) for event, critic in self.critics.items()),
                     np.zeros(len(first.place)))  # fmt: skip
        examined = np.array(self.about["examined"])[np.minimum(np.arange(k), len(self.about["examined"]) - 1)]
        rng = rng or np.random.default_rng()
        earned = []
        check_places(k, 0, len(first.place))
        for one, away in ((Rules(), ()), (rules, resting)):
            logits = self.logits(columns, context, one.weights)
            opened = _opened(logits, columns, k, one, away)
            lists = (_drawn(logits, opened, k, rng).order for _ in range(draws))
            earned.append(np.mean([chance[order] @ examined for order in lists]))
        return float(1 - earned[1] / earned[0])

    def logits(
        self, columns: Mapping[str, Any], context: Mapping[str, Any], weights: Mapping[str, float]
    ) -> np.ndarray:
        """Return the logits of the layer's law at the first place, without rules."""
        logits = self.declared(columns)
        return logits if math.isinf(self.beta) else logits + self.advantage(columns, context, weights) / self.beta

    def declared(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Return the logits of the ranker's own law."""
        own = self._own(columns)
        if self.law["kind"] == "probabilities":
            if "probability" not in columns:
                raise DataError("candidates need their 'probability': this layer's log states its law by probabilities "
                                "alone. To tilt scores, log their 'temperature', and improve again.")  # fmt: skip
            probability = np.asarray(columns["probability"], np.float64)
            if not ((probability >= 0) & np.isfinite(probability)).all() or abs(probability.sum() - 1) > 1e-3:
                raise DataError("probabilities of all candidates must be 0 or more and sum to 1.")
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(probability))
        draws = self.draws
        if draws["standardise"] and len(own) > 1 and own.min() == own.max():
            raise DataError("all scores are equal, and this layer standardises them: there is no law to draw by. Show "
                            "a list of your own, and leave the request out of the log.")  # fmt: skip
        return law(own, **draws)

    @property
    def draws(self) -> dict[str, Any]:
        """Temperature of the ranker's own law, and whether scores are standardised; nothing if it has probabilities."""
        if self.law["kind"] == "probabilities":
            return {}
        known = self.law["kind"] == "scores" and self.law["temperature"] is not None
        temperature = self.temperature or (self.law["temperature"] if known else TEMPERATURE)
        return {"temperature": temperature, "standardise": self.law["standardise"] if known else True}

    def advantage(
        self, columns: Mapping[str, Any], context: Mapping[str, Any], weights: Mapping[str, float]
    ) -> np.ndarray:
        """Σ w Â: weighted log-odds at the first place, centred within the request."""
        first, event_weights = self._first(columns, context), self._event_weights(weights)
        with np.errstate(over="ignore", invalid="ignore"):
            found = sum((event_weights[event] * critic.log_odds(first) for event, critic in self.critics.items()),
                        np.zeros(len(first.place)))  # fmt: skip
            centred = np.asarray(found - found.mean())
            if not np.isfinite(centred / self.beta).all():
                raise ConfigError(f"weights: {dict(weights)} are too large for numbers. Only their ratio and β count.")
        return centred

    def _first(self, columns: Mapping[str, Any], context: Mapping[str, Any]) -> Seen:
        """Return the candidates' features at the first place."""
        self._warn_of_missing(columns, context)
        own = self._own(columns)
        seen = {**columns, SCORE: (own - own.mean()) / (own.std() or 1.0)}
        codes, numbers = self.encoder.of_request(seen, context)
        return Seen(codes, numbers, np.zeros(len(own), np.int64))

    def _warn_of_missing(self, columns: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        """Warn, once for each column, if a request lacks what the critic learned from: it counts as unknown."""
        for one in self.encoder.codings:
            known = one.name in (SCORE, ITEM) or one.name in (context if one.of_request else columns)
            if not known and one.name not in self._warned:
                self._warned.add(one.name)
                log.warning(
                    "%s without '%s', from which the critic learned: it counts as unknown, and the layer may earn less",
                    "a context" if one.of_request else "candidates", one.name,
                )  # fmt: skip

    def _event_weights(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the weight of each event's Â: the stated one, else the run's."""
        self._check_weights(weights)
        return {event: one["weight"] for event, one in self.about["critics"].items()} | dict(weights)

    def _own(self, columns: Mapping[str, Any]) -> np.ndarray:
        if SCORE in columns:
            return np.asarray(columns[SCORE], np.float64)
        return np.asarray(np.log(np.maximum(np.asarray(columns["probability"], np.float64), 1e-12)))

    def _check_weights(self, weights: Mapping[str, float]) -> None:
        for event in weights:
            if event not in self.about["critics"]:
                raise ConfigError(f"weights: no critic of '{event}'{nearest(event, self.about['critics'])}")


def _opened(
    logits: np.ndarray, columns: Mapping[str, Any], k: int, rules: Rules, resting: Sequence[Any]
) -> Openings | None:
    """Rules and resting items applied to the logits; None if they change nothing and every logit is finite."""
    if rules.model_copy(update={"weights": {}}) == Rules() and not resting:
        return None if np.isfinite(logits).all() else Openings(logits, {})
    if rules.group is not None:
        check_groups(rules.group, columns)
    items = [str(item) for item in columns["item"]]
    return openings(logits, k, rules, items, columns, [str(item) for item in resting])


def _drawn(logits: np.ndarray, opened: Openings | None, k: int, rng: np.random.Generator) -> Ranked:
    return draw(logits, k, rng=rng) if opened is None else draw_under(opened, k, rng=rng)


def _plain(values: Any) -> list[Any]:
    """Values of a column as plain JSON types."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _softmax(logits: np.ndarray) -> list[float]:
    weight = np.exp(logits - logits.max())
    return list((weight / weight.sum()).tolist())
