"""`improve`: trains a layer on the ranker that wrote a log of requests, and judges it.

Persons are shared out once: critics are trained on some, chosen on others, β is chosen on third ones and the verdict is
given on the rest. β is the one with the largest lower bound of the capped gain over the drawn law, among tilts that
leave a tenth of the sample; where none is above 0 it is ∞, and the layer is the ranker as it was. Gains are by places;
where the log shows that people stop, by a cascade; where items below matter, no gain is estimated. The verdict compares
with the list that the ranker would show without any draw, and with the drawn lists, which may be an earlier layer's:
*deploy* takes a significant gain over each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator
from scipy.special import expit

from localpolicy.errors import DataError, nearest
from localpolicy.limits import LARGEST_SEED
from localpolicy.measure.list_tests import Checked, cascade_test, stopping_test
from localpolicy.ranker.critic import CRITICS, Crossed, log_loss
from localpolicy.ranker.features import Encoder, Seen
from localpolicy.ranker.law import Law, law_of, own_law, standard_scores
from localpolicy.ranker.layer import FILE, FORMAT, Layer
from localpolicy.ranker.log import Padded, RequestLog
from localpolicy.ranker.reading import read_requests
from localpolicy.ranker.values import CAP, Form, Gain, ListValues, Tilt
from localpolicy.results import Result
from localpolicy.runtime.files import sealed, sha256, write_json
from localpolicy.runtime.folders import check_target, whole_folder
from localpolicy.settings import Settings

TILTS = (0.25, 0.5, 1.0, 2.0, 4.0)  # κ = sd(Â) / β
LEAST_EFFECTIVE = 0.1  # least effective share of the sample under a tilt
SHARES = (0.5, 0.15, 0.15, 0.2)  # of persons: training, choice of the critic, of β, verdict
REFUSED = 0.005  # p of the test of items below: refusing costs the layer, so twice the persons and a tenth of the level
FEWEST = 100  # requests
FEWEST_PEOPLE = 10  # of each part that estimates: requests of one person are not independent
MOST_JUDGED = 20_000  # requests, of each part that estimates
LARGEST_QUANTILE = 0.999  # rewards above this quantile are cut to it in training
Verdict = Literal["deploy", "do not deploy", "cannot tell", "nothing to decide"]
PLAN = "'lpi explore plan' estimates what a draw costs and when it detects a gain"
OWN = "the ranker's own list without a draw"
CODES = {"deploy": 0, "do not deploy": 3, "cannot tell": 4, "nothing to decide": 6}


class ImproveConfig(Settings):
    """Settings of `improve`: the draw of the logged lists, events, and critics."""

    temperature: float | None = Field(
        None, gt=0, description="what scores were divided by before the draw; default: as each request states, else "
        "fitted to what was shown",
    )  # fmt: skip
    standardise: bool | None = Field(
        None, description="whether scores were first divided by their standard deviation within the request; default: "
        "what explains the lists better",
    )  # fmt: skip
    events: tuple[str, ...] = Field(
        (), description="events with a critic each, such as click,purchase; default: one critic of the reward"
    )
    critics: tuple[str, ...] = Field(
        (), description="kinds of critics to choose from: logistic, lightgbm; default: both, where LightGBM is "
        "installed",
    )  # fmt: skip
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="seed of the parts that the log is divided into")

    @field_validator("events", "critics", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Parse lists given as a,b on the command line."""
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


@dataclass(frozen=True)
class Tried:
    """A tilt that was tried, with the gain by which β was chosen."""

    kappa: float
    beta: float
    gain: Gain


@dataclass(frozen=True, repr=False)
class Improvement(Result):
    """Result of `improve`: the layer's folder, β, its gain and the verdict."""

    folder: Path
    law: Law
    requests: int
    losses: Mapping[str, Mapping[str, float]]  # by event and critic: held-out -log likelihood of an answer
    chosen: Mapping[str, str]  # critic by event
    tried: tuple[Tried, ...]
    beta: float
    earned: float | None  # reward of a drawn list, per request
    price: Gain | None  # price of the draw: gain of the undrawn list over the drawn one
    gain: Gain | None  # gain of the layer over the undrawn list, on requests used for no choice
    over_drawn: Gain | None  # gain of the layer over the drawn lists, on the same requests
    form: Form  # form of the layer's value
    stopping: Checked | None  # whether people stop after a reward
    below: Checked | None  # whether rewards depend on the items below
    verdict: Verdict
    why: str

    @property
    def exit_code(self) -> int:
        """0 deploy, 3 do not, 4 cannot tell, 6 nothing to decide."""
        return CODES[self.verdict]

    def summary(self) -> str:
        """Return the verdict and its reason in a sentence."""
        return f"{self.verdict}: {self.why}"

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers of the result, JSON-serialisable."""

        def gain(one: Gain | None) -> dict[str, Any] | None:
            return None if one is None else {**one._asdict(), "high": one.high}

        return {
            "folder": str(self.folder), "verdict": self.verdict, "why": self.why, "exit_code": self.exit_code,
            "requests": self.requests, "law": self.law.json(), "losses": {k: dict(v) for k, v in self.losses.items()},
            "chosen": dict(self.chosen), "beta": None if math.isinf(self.beta) else self.beta,
            "tried": [{"kappa": one.kappa, "beta": one.beta, **(gain(one.gain) or {})} for one in self.tried],
            "earned": self.earned, "price": gain(self.price), "gain": gain(self.gain),
            "over_drawn": gain(self.over_drawn), "form": self.form,
            **{name: one and one._asdict() for name, one in (("stopping", self.stopping), ("below", self.below))},
        }  # fmt: skip

    def to_arrow(self) -> Any:
        """Return a table with one row per tilt that was tried."""
        import pyarrow as pa

        return pa.Table.from_pylist(self.to_dict()["tried"])

    def layer(self, **asked: Any) -> Layer:
        """Open the layer; `asked` are the arguments of `Layer`."""
        return Layer(self.folder, **asked)


def improve(
    requests: Any,
    outcomes: Any = None,
    *,
    out: Path | str,
    items: Any = None,
    columns: Mapping[str, str] | None = None,
    config: ImproveConfig | None = None,
    force: bool = False,
    **settings: Any,
) -> Improvement:
    """Train critics on a ranker's log, choose β and give a verdict; the layer is written into `out`.

    `requests` and `outcomes` are frames or files (Parquet, JSON lines, CSV), `items` an item table; settings are those
    of `ImproveConfig`.
    """
    config = config or ImproveConfig.parse(settings)
    check_target(Path(out), force=force)  # before anything is trained
    log = read_requests(requests, outcomes, items=items, columns=columns)
    if len(log) < FEWEST:
        raise DataError(f"{log.label} holds {len(log)} requests; at least {FEWEST} are needed to train a critic.")
    if not len(log.answers.row):
        raise DataError(
            f"{log.label} has no answer to anything shown: give --outcomes, or the columns 'event' or 'reward'."
        )
    law = law_of(log, temperature=config.temperature, standardise=config.standardise, seed=config.seed)
    own = own_law(log, law, temperature=config.temperature, standardise=config.standardise)
    train, held, choice, verdict = persons_apart(log, config.seed)
    score = np.empty(len(log.item))
    for block in log.padded():
        score[block.rows[block.real]] = standard_scores(log, block)[block.real]
    rewards = _rewards(log, config.events)
    encoder = Encoder.learnt(log, _shown_of(log, train), score)
    critics, losses = {}, {}
    for event, reward in rewards.items():
        critics[event], losses[event] = _trained(log, encoder, score, reward, train, held, config.critics)
    whole = sum(rewards.values(), np.zeros(len(log.item)))
    weights = _event_weights(log, rewards)
    advantage = advantages(log, encoder, score, critics, weights, np.concatenate([choice, verdict]))
    examined = _examined(log, encoder, score, critics, train)
    found = judged(log, law, advantage, whole, examined, choice, verdict, own)
    result = Improvement(
        folder=Path(out), law=law, requests=len(log), losses=losses,
        chosen={event: critic.name for event, critic in critics.items()}, **found,
    )  # fmt: skip
    with whole_folder(Path(out), force=force) as folder:
        _write(folder, result, own.served(log), encoder, critics, weights, examined)
    return result


def persons_apart(log: RequestLog, seed: int) -> list[np.ndarray]:
    """Divide the requests into four groups by person, with SHARES of the persons."""
    people = np.unique(log.clusters)
    order = np.random.default_rng(seed).permutation(len(people))
    ends = (np.cumsum(SHARES)[:-1] * len(people)).astype(int)
    part = np.empty(len(people), np.int64)
    for number, some in enumerate(np.split(order, ends)):
        part[some] = number
    of_request = part[np.searchsorted(people, log.clusters)]
    found = [np.flatnonzero(of_request == number) for number in range(len(SHARES))]
    if min(map(len, found)) < 2:
        raise DataError(f"{log.label} has {len(people)} persons: too few to train on some and judge on others.")
    return found


def _rewards(log: RequestLog, events: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the rewards to learn, by event [M]; under "reward" if all events count together."""
    known = log.answers.events
    for event in events:
        if event not in known:
            raise DataError(f"events: the log has no answer '{event}'{nearest(event, known)}")
    if not events:
        found = {"reward": log.reward()}
    else:
        code = {event: known.index(event) for event in events}
        found = {event: np.bincount(log.answers.row, weights=np.where(log.answers.event == code[event],
                                    log.answers.reward, 0.0), minlength=len(log.item)) for event in events}  # fmt: skip
    for event, reward in found.items():
        if (reward < 0).any():
            where = log.ids[log.request[int(np.flatnonzero(reward < 0)[0])]]
            raise DataError(f"request '{where}' has a negative {event}. Capped weights err on the safe side only where "
                            "rewards are 0 or more: state them so, such as 1 - cost.")  # fmt: skip
    return found


def _event_weights(log: RequestLog, rewards: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the weight of each event's Â: its share of the total reward."""
    total = {event: float(reward.sum()) for event, reward in rewards.items()}
    return {event: 1.0 if len(total) == 1 else one / (sum(total.values()) or 1.0) for event, one in total.items()}


def _shown_of(log: RequestLog, requests: np.ndarray) -> np.ndarray:
    """Return the rows of the items that these requests showed."""
    inside = np.zeros(len(log), bool)
    inside[requests] = True
    return np.asarray(log.shown[inside[log.request[log.shown]]])


def _seen(log: RequestLog, encoder: Encoder, score: np.ndarray, rows: np.ndarray) -> Seen:
    codes, numbers = encoder.of_log(log, rows, score)
    return Seen(codes, numbers, np.maximum(log.place[rows] - 1, 0))


def _trained(
    log: RequestLog, encoder: Encoder, score: np.ndarray, reward: np.ndarray, train: np.ndarray, held: np.ndarray,
    kinds: tuple[str, ...],
) -> tuple[Any, dict[str, float]]:  # fmt: skip
    """Train a critic of each kind; return the one of the best held-out likelihood, and the loss of each."""
    for kind in kinds:
        if kind not in CRITICS:
            raise DataError(f"critics: no critic '{kind}'{nearest(kind, CRITICS)}")
    kinds = kinds or tuple(kind for kind in CRITICS if kind == Crossed.name or find_spec(kind))
    rows, others = _shown_of(log, train), _shown_of(log, held)
    largest = float(np.quantile(reward[rows][reward[rows] > 0], LARGEST_QUANTILE)) if (reward[rows] > 0).any() else 0.0
    if not largest:
        raise DataError("the persons to train on have no answer: the log is too small, or its answers are missing.")
    label, y = np.minimum(reward[rows] / largest, 1.0), np.minimum(reward[others] / largest, 1.0)
    weight, w = log.weight[log.request[rows]], log.weight[log.request[others]]
    first, second = _seen(log, encoder, score, rows), _seen(log, encoder, score, others)
    losses, critics = {}, {}
    for kind in kinds:
        critic = CRITICS[kind](encoder.codings, int(log.place.max()))
        critic.fit(first, label, weight, second, y, w)
        losses[kind], critics[kind] = log_loss(critic.log_odds(second), y, w), critic
    return critics[min(losses, key=lambda kind: losses[kind])], losses


def advantages(
    log: RequestLog, encoder: Encoder, score: np.ndarray, critics: Mapping[str, Any], weights: Mapping[str, float],
    requests: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Σ w Â [M]: log-odds at the first place, centred within the request; NaN for other requests."""
    inside = np.zeros(len(log), bool)
    inside[requests] = True
    rows = np.flatnonzero(inside[log.request])
    found = np.full(len(log.item), np.nan)
    for some in np.array_split(rows, 1 + len(rows) // (1 << 19)):
        codes, numbers = encoder.of_log(log, some, score)
        seen = Seen(codes, numbers, np.zeros(len(some), np.int64))
        found[some] = sum(weights[event] * critic.log_odds(seen) for event, critic in critics.items())
    request = log.request[rows]
    mean = np.bincount(request, found[rows], len(log)) / np.maximum(np.bincount(request, minlength=len(log)), 1)
    found[rows] -= mean[request]
    return np.asarray(found)


def _examined(
    log: RequestLog, encoder: Encoder, score: np.ndarray, critics: Mapping[str, Any], train: np.ndarray
) -> np.ndarray:
    """Return c [K], the examination of each place relative to the first, by the critics' effects of places."""
    rows = _shown_of(log, train)[: 1 << 17]
    codes, numbers = encoder.of_log(log, rows, score)
    places = int(log.place.max())
    found = np.zeros(places)
    for critic in critics.values():
        for place in range(places):
            found[place] += expit(critic.log_odds(Seen(codes, numbers, np.full(len(rows), place)))).mean()
    return np.asarray(found / found[0])


def judged(
    log: RequestLog, law: Law, advantage: np.ndarray, reward: np.ndarray, examined: np.ndarray, choice: np.ndarray,
    verdict: np.ndarray, own: Law | None = None,
) -> dict[str, Any]:  # fmt: skip
    """β and the verdict of a layer on the ranker's `own` law, from lists that were drawn by `law`."""
    own = law if own is None else own
    other = own != law
    nothing: dict[str, Any] = {"tried": (), "beta": math.inf, "earned": None, "price": None, "gain": None,
                               "over_drawn": None, "form": "by places", "stopping": None, "below": None}  # fmt: skip
    drawn = law.drawn(log) if law.known else np.empty(0, np.int64)
    choice, verdict = (np.intersect1d(part, drawn)[:MOST_JUDGED] for part in (choice, verdict))
    if not law.known:
        why = f"{law.why}. The critic is trained; draw lists, and judge it by the next log. {PLAN}"
        return {**nothing, "verdict": "cannot tell", "why": why}
    if min(len(choice), len(verdict)) < 2:
        return {**nothing, "verdict": "cannot tell", "why": "hardly any list was drawn"}
    people = min(len(np.unique(log.clusters[part])) for part in (choice, verdict))
    if people < FEWEST_PEOPLE:
        why = f"β or the verdict would depend on lists of {people} persons, and {FEWEST_PEOPLE} are needed"
        return {**nothing, "verdict": "cannot tell", "why": why}

    def tilt(beta: float) -> Tilt:
        return lambda block: block.of(advantage, 0.0) / beta + (_difference(log, own, law, block) if other else 0.0)

    for_choice, judge = (ListValues(log, law, part, examined, reward) for part in (choice, verdict))
    spread = for_choice.spread(advantage)
    stopping = below = None
    if spread > 0:
        lists, others = (values.decisions(tilt(spread)) for values in (for_choice, judge))
        stopping = stopping_test(lists, advantage[for_choice.shown.row])
        below = cascade_test(lists.with_more(others))
    form: Form = "cascade" if stopping is not None and stopping.fails else "by places"
    checked = nothing | {"form": form, "stopping": stopping, "below": below}
    if below is not None and below.p < REFUSED:
        why = f"rewards depend on the items below (p = {below.p:.1e}), so no list's value is known"
        return {**checked, "verdict": "cannot tell", "why": why}
    tried = []
    as_it_is = for_choice.weights(tilt(math.inf), form) if other else None
    for kappa in TILTS if spread > 0 else ():
        beta = spread / kappa
        tried.append(Tried(kappa, beta, for_choice.gain(for_choice.weights(tilt(beta), form), over=as_it_is)))
    held = [one for one in tried if one.gain.low > 0 and one.gain.effective >= LEAST_EFFECTIVE]
    best = max(held, key=lambda one: one.gain.low, default=None)
    undrawn = judge.undrawn_whole if other else judge.undrawn
    found = {**checked, "tried": tuple(tried), "earned": judge.earned,
             "price": judge.gain(undrawn, cap=math.inf if other else CAP)}  # fmt: skip
    if best is None:
        return {**found, "verdict": "nothing to decide",
                "why": "no tilt earns significantly more than the ranker as it is: β = ∞"}  # fmt: skip
    weight = judge.weights(tilt(best.beta), form)
    rivals = {OWN: judge.gain(weight, over=undrawn), "the drawn lists": judge.gain(weight)}
    rival, gain = min(rivals.items(), key=lambda one: one[1].low)
    answer: Verdict = "deploy" if gain.low > 0 else "do not deploy" if gain.high < 0 else "cannot tell"
    texts = {"deploy": f"the layer earns significantly more than {' and '.join(rivals)}",
            "do not deploy": f"the layer earns significantly less than {rival}",
            "cannot tell": f"the layer's gain over {rival} may be 0. {PLAN}"}  # fmt: skip
    return {**found, "beta": best.beta, "gain": rivals[OWN], "over_drawn": rivals["the drawn lists"],
            "verdict": answer, "why": texts[answer]}  # fmt: skip


def _difference(log: RequestLog, own: Law, law: Law, block: Padded) -> np.ndarray:
    """Logits of `own` minus those of `law` [B, C]; 0 for items that `law` never shows."""
    logits = law.logits(log, block)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(np.isfinite(logits), own.logits(log, block) - logits, 0.0))


def _write(
    folder: Path, result: Improvement, served: Law, encoder: Encoder, critics: Mapping[str, Any],
    weights: Mapping[str, float], examined: np.ndarray,
) -> None:  # fmt: skip
    written = {}
    for number, (event, critic) in enumerate(critics.items(), 1):
        where = folder / f"critic-{number}"
        where.mkdir()
        critic.save(where)
        written[event] = {"name": critic.name, "folder": where.name, "places": len(examined), "weight": weights[event],
                          "sha256": sha256(where / critic.FILE)}  # fmt: skip
    about = {"format": FORMAT.current, "columns": [asdict(one) for one in encoder.codings], "critics": written,
             "examined": examined.tolist(), **{name: value for name, value in result.to_dict().items()
                                               if name != "folder"}, "law": served.json()}  # fmt: skip
    write_json(folder / FILE, sealed(about))
