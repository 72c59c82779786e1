"""Request handlers: what each endpoint does, apart from HTTP. One object per worker."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from localpolicy.errors import DataError, LocalPolicyError
from localpolicy.limits import FALLBACK
from localpolicy.serving.batcher import Batcher, ListRequest, Made
from localpolicy.serving.config import ServeConfig
from localpolicy.serving.deployment import Deployment, Route
from localpolicy.serving.join import FATES, JoinConfig, ResponseReward
from localpolicy.serving.log import MOST_SHOWN, Found, Log, LogError, UnknownRequest
from localpolicy.serving.metrics import Metrics
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.records import Feedback, Request, Shadowed, Shown, is_made_with, new_id, now, time_of
from localpolicy.serving.sampling import check_floor, check_length, top
from localpolicy.serving.schema import (
    FeedbackReport,
    Listed,
    NamedList,
    PastEvent,
    Policies,
    PolicyState,
    Preview,
    PreviewRequest,
    Readiness,
    Recommend,
    ShownReport,
    Side,
    Stored,
)  # fmt: skip
from localpolicy.serving.tracing import span

LOG = logging.getLogger(__name__)
HOUR = 3_600_000  # ms
SHARED_SECONDS = 0.5  # time limit of the log for a health check or a request for metrics


class Service:
    """Request handlers of one worker, with its deployed policies, batch queue, log and metrics."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        check_floor(config.floor)
        self.deployment = self.deployed(config)
        self._rewards = JoinConfig(
            rewards=config.rewards or "*=0",
            smallest_reward=config.smallest_reward,
            largest_reward=config.largest_reward,
        )
        self.log = Log(config.log)
        self.batcher = Batcher(batch=config.batch, seed=config.seed)
        self.metrics = Metrics()
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned = False  # that a request named no person whose items could rest

    def deployed(self, config: ServeConfig) -> Any:
        """The policies to serve, opened from the export and the rollout's file."""
        return Deployment(config.export, rollout=config.rollout, threads=config.threads)

    def close(self) -> None:
        """Write the records that wait, and close the log and the queue."""
        self.batcher.close()
        self.log.close()

    async def watch(self) -> None:
        """Load new exports and rollout stages, and check the files of those served for damage, until cancelled."""
        checked = time.monotonic()
        while True:
            await asyncio.sleep(self.config.poll_seconds)
            try:
                await asyncio.to_thread(self.deployment.refresh)
                if time.monotonic() >= checked + self.config.verify_seconds:
                    await asyncio.to_thread(self.deployment.recheck)
                    checked = time.monotonic()
            except Exception:  # whatever is there now, the next export or stage must still be found
                LOG.exception("looking for a new export or stage failed; the policy in service is unchanged")
            self.count_totals()

    def count_totals(self) -> None:
        """Copy the totals that the queue, the log and the deployment count into the metrics."""
        totals = {
            "batches": self.batcher.batches, "batched_requests": self.batcher.questions,
            "log_records": self.log.records, "log_transactions": self.log.transactions,
        }  # fmt: skip
        self.metrics.follow(totals, refused=self.deployment.current.refused is not None)
        version = self.deployment.current.loaded.version
        for mode, policy in (("drawn", version), ("fallback", FALLBACK)):
            self.metrics.begin("lists", arm="", mode=mode, policy=policy)

    async def numbers(self) -> str:
        """Return the metrics as text, with rotated answers by outcome if the log answers in time."""
        self.count_totals()
        with suppress(TimeoutError, LogError):
            async with asyncio.timeout(SHARED_SECONDS):
                self.metrics.rotated(dict.fromkeys(FATES, 0) | await self.log.rotated())
        return self.metrics.text()

    async def written(self, answer: Awaitable[Any]) -> Any:
        """Return the log's answer, or raise LogError if it takes too long: then nothing is acknowledged."""
        try:
            async with asyncio.timeout(self.config.log_seconds):
                return await answer
        except TimeoutError:
            raise LogError(f"the log did not answer within {self.config.log_seconds:g} seconds.") from None

    async def ready(self) -> Readiness:
        """Return that lists can be made here; raise LogError if the log's own disk takes no record. Nothing is written.

        A database that several servers share is an exception: if it does not answer, no other server does better, so
        this one stays in service, and says 503 until the database is back.
        """
        if self.log.shared:
            try:
                async with asyncio.timeout(SHARED_SECONDS):
                    await self.log.look()
            except (TimeoutError, LogError) as error:
                LOG.warning("the shared log does not answer (%s)", error)
                return Readiness(status="ok", log="the shared database does not answer")
            return Readiness(status="ok", log="shared database")
        self.log.check_disk()
        await self.written(self.log.look())
        return Readiness(status="ok", log="own disk")

    # ------------------------------------------------------------------ lists

    async def recommend(self, asked: Recommend) -> Listed:
        """Make a list, log it, then return it."""
        began, moment = time.perf_counter(), now()
        request = new_id(moment, self.log.key)
        route = self.deployment.route(asked.person or request)
        arm = route.arm
        if resting := await self.shown_lately(asked.person, asked.rest_hours, moment):
            asked = asked.model_copy(update={"exclude": [*asked.exclude, *resting]})
        with span("policy", version=route.recommender.version, arm=arm, places=asked.k):
            question, made = await self._made(asked, route)
        logged = self._is_logged(request)
        recommender = question.recommender
        unknown = sum(item not in recommender.index for item in question.items)
        listed = Listed(
            request=request, items=made.items, propensities=made.propensities, policy=made.policy, mode=made.mode,
            beta=asked.beta, floor=question.floor, filter=question.item_filter.digest, arm=arm, unknown=unknown,
            logged=logged,
        )  # fmt: skip
        if asked.names:
            listed = NamedList(**vars(listed), names=recommender.called(made.items))
        if logged:
            record = Request(
                id=request, time=moment, person=asked.person, history=question.history,
                items=made.items, propensities=made.propensities, policy=made.policy,
                beta=None if made.mode == "fallback" else asked.beta, mode=made.mode, floor=question.floor,
                item_filter=question.item_filter, deferred=asked.defer, share=self.config.share, arm=arm,
                stage=route.stage, rollout=route.rollout,
            )  # fmt: skip
            try:
                with span("log"):
                    await self.written(self.log.append(record))
            except BaseException:  # also where this request is cancelled: the client gets no list
                self.log.withdraw(request)
                self.metrics.add("withdrawn")
                raise
        self._count(made, arm, time.perf_counter() - began)
        if route.shadow is not None:
            self._ask_candidate(self._answers(asked, route.shadow), request, route)
        return listed

    async def shown_lately(self, person: str | None, hours: float, until: int) -> list[Any]:
        """Return the items of this person's lists in the hours before `until`, in milliseconds; none for nobody.

        Raise DataError if the lists are more than are read for one request.
        """
        if person is None and hours and not self._warned:
            LOG.warning("rest_hours: a request names no person, so no item rests for it (reported once)")
            self._warned = True
        if person is None or not hours:
            return []
        found: list[Any] | None = await self.written(self.log.shown_to(person, until - round(hours * HOUR), until))
        if found is None:
            raise DataError(f"rest_hours: more than {MOST_SHOWN:,} lists were made for this person in {hours:g} hours. "
                            "Name fewer hours, or a person for each visitor.")  # fmt: skip
        return found

    async def _made(self, asked: Recommend, route: Route) -> tuple[ListRequest, Made]:
        """Make the list. If only the candidate cannot, use a fallback list: no request is refused for its arm."""
        try:
            question = self._question(asked, route.recommender)
            return question, await self.batcher.ask(question)
        except LocalPolicyError:
            current = self.deployment.current.loaded
            if route.arm != "candidate" or current is None:
                raise
            question = replace(self._question(asked, current), fallback=True)
            return question, replace(await self.batcher.ask(question), failed=True)

    def _question(self, asked: Recommend, recommender: Recommender) -> ListRequest:
        """Translate a request into the policy's items and events; raise DataError if it makes no sense."""
        config = self.config
        items, events = self._history(asked.history, recommender)
        for name, ids in (("candidates", asked.candidates or ()), ("exclude", asked.exclude)):
            _of_type(ids, recommender, name)
        check_length(asked.k, recommender.n_items)
        if asked.beta is not None:
            recommender.check_beta(asked.beta)
        return ListRequest(
            recommender, items, events, asked.k, asked.beta, asked.sample, config.floor if asked.sample else 0.0,
            asked.item_filter,
            fallback=not items and config.empty_history == "fallback",
        )  # fmt: skip

    def _history(self, history: Sequence[Any], recommender: Recommender) -> tuple[list[Any], list[str]]:
        items = [past.item if isinstance(past, PastEvent) else past for past in history]
        events = [past.event if isinstance(past, PastEvent) else recommender.default_event for past in history]
        _of_type(items, recommender, "history")
        recommender.check_events(events)
        return items, events

    def _is_logged(self, request: str) -> bool:
        """Whether a request is in the logged share; decided by its id, so that its reports are treated likewise."""
        if self.config.share >= 1:
            return True
        return int(hashlib.sha256(request.encode()).hexdigest()[:13], 16) / 16**13 < self.config.share

    def _count(self, made: Made, arm: str, seconds: float) -> None:
        self.metrics.add("lists", mode=made.mode, policy=made.policy, arm=arm)
        self.metrics.took(seconds)
        if made.failed:
            self.metrics.add("model_failures")

    async def _answers(self, asked: Recommend, candidate: Recommender) -> bool:
        """Whether the candidate can answer the question."""
        return not (await self.batcher.ask(self._question(asked, candidate))).failed

    def _ask_candidate(self, answers: Coroutine[Any, Any, bool], request: str, route: Route) -> None:
        """Ask the candidate too, and log only whether it could answer."""
        assert route.shadow is not None
        if len(self._tasks) >= self.config.batch:
            answers.close()
            return
        version, rollout = route.shadow.version, route.rollout

        async def ask_candidate() -> None:
            try:
                failed = not await answers
            except LocalPolicyError:
                failed = True  # the current policy answered the same question
            self.metrics.add("shadow", outcome="failed" if failed else "answered")
            await self.written(self.log.append(Shadowed(request, version, failed, rollout)))

        task = asyncio.create_task(ask_candidate())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------ reports of clients

    async def shown(self, report: ShownReport) -> Stored:
        """Log the number of places of a list that were seen."""
        logged = await self._find(report.request)
        if not self._is_logged(report.request):
            return Stored(stored=False)
        if logged is None:
            return Stored(stored=False, late=True)
        places = len(logged.items) if report.places is None else report.places
        if places > len(logged.items):
            raise DataError(f"the list has {len(logged.items)} places, {places} cannot have been shown.")
        arrived = now()
        record = Shown(report.request, places, self._check_time(report.time, logged.made, arrived), arrived)
        self.metrics.add("shown")
        return Stored(stored=await self.written(self.log.append(record)))

    async def feedback(self, answer: FeedbackReport) -> Stored:
        """Log an answer to one shown item. This server's clock alone decides whether it is late."""
        logged = await self._find(answer.request)
        if not self._is_logged(answer.request):
            return Stored(stored=False)
        arrived = now()
        made = time_of(answer.request) if logged is None else logged.made
        assert made is not None, "an invalid id was refused"
        moment = self._check_time(answer.time, made, arrived)
        if logged is not None and answer.item not in logged.items:
            raise DataError(f"the list of request {answer.request} holds no item {answer.item!r}.")
        self._check_reward(answer)
        late = logged is None or arrived > logged.seen + self.config.window_ms
        record = Feedback(
            answer.id, answer.request, answer.item, answer.event, answer.reward, moment, late, arrived
        )  # fmt: skip
        stored = await self.written(self.log.append(record))
        self.metrics.add("feedback", late=str(late).lower())
        return Stored(stored=stored, late=late)

    def _check_time(self, moment: int | None, made: int, arrived: int) -> int:
        """Return a client's time, or the arrival if it gave none; raise DataError if it is outside the list's life."""
        if moment is None:
            return arrived
        slack = round(1000 * self.config.clock_seconds)
        if not made - slack <= moment <= arrived + slack:
            raise DataError(
                f"time: {moment} is not between {made}, when the list was made, and {arrived}, now, in milliseconds "
                "since 1970. Leave it out: then the time at which the report arrives counts."
            )
        return moment

    def _check_reward(self, answer: FeedbackReport) -> None:
        """Raise DataError on an event or a reward that the settings `rewards` and `…_reward` exclude."""
        response_reward = ResponseReward(self._rewards)
        if response_reward.of(answer.event, answer.reward) is None:
            known = "" if self.config.rewards is None else f" (rewards: {self.config.rewards})"
            raise DataError(f"feedback was refused: {next(iter(response_reward.set_aside))}{known}.")

    async def _find(self, request: str) -> Found:
        """Return the logged list; None if it was made here but is rotated, or outside the logged share."""
        logged: Found = await self.written(self.log.find(request))
        if logged is None and not is_made_with(self.log.key, request):
            raise UnknownRequest(f"no request {request!r} was made here.")
        return logged

    # ------------------------------------------------------------------ previews

    async def preview(self, asked: PreviewRequest) -> Preview:
        """Return μ̂'s list and the list at this β, and the divergence between them."""
        recommender = self.deployment.current.loaded
        assert recommender is not None
        items, events = self._history(asked.history, recommender)
        check_length(asked.k, recommender.n_items)
        recommender.check_beta(asked.beta)
        return await asyncio.to_thread(_preview, recommender, items, events, asked.beta, asked.k)

    def policies(self) -> Policies:
        """Return the policies in service with their shares of traffic, and the rollout's stage."""
        share = 0.0 if self.deployment.rolled_out is None else self.deployment.assignment.share
        slots = [("current", self.deployment.current, 1 - share), ("candidate", self.deployment.candidate, share)]
        states = [
            PolicyState(
                arm=arm, version=slot.loaded.version, objective=slot.loaded.description.objective,
                items=slot.loaded.n_items, dial=slot.loaded.has_dial, share=part, events=slot.loaded.events,
            )
            for arm, slot, part in slots if slot is not None and slot.loaded is not None
        ]  # fmt: skip
        current = self.deployment.current
        assert current.loaded is not None
        samples = [
            {"history": sample.history, "events": sample.events} for sample in current.loaded.description.samples
        ]
        stage, candidate = self.deployment.assignment.stage, self.deployment.candidate
        refused = current.refused or (None if candidate is None else candidate.refused)
        return Policies(policies=states, stage=stage, refused=refused, samples=samples)


def _of_type(ids: Sequence[Any], recommender: Recommender, name: str) -> None:
    """Raise DataError on ids of another type than the catalogue's: all of them would silently be unknown."""
    kind = type(recommender.ids[0])
    wrong = next((item for item in ids if type(item) is not kind), None)
    if wrong is not None:
        expected = "whole numbers" if kind is int else "texts"
        raise DataError(f"{name}: this policy's items are {expected}, got {wrong!r}.")


def _preview(recommender: Recommender, items: list[Any], events: list[str], beta: float, k: int) -> Preview:
    logs = [_log_softmax(recommender.logits([items], [events], beta=dial)[0]) for dial in (np.inf, beta)]
    logging, policy = logs
    middle = np.logaddexp(logging, policy) - np.log(2)
    kl = float((np.exp(policy) * (policy - logging)).sum())
    js = float(((np.exp(policy) * (policy - middle)).sum() + (np.exp(logging) * (logging - middle)).sum()) / 2)

    def side(mine: np.ndarray, other: np.ndarray) -> Side:
        best = top(mine[None], k).indices[0]
        ids = [recommender.ids[index] for index in best]
        return Side(
            items=ids, names=recommender.called(ids), probabilities=np.exp(mine[best]).tolist(),
            other=np.exp(other[best]).tolist(),
        )  # fmt: skip

    return Preview(
        logging=side(logging, policy), policy=side(policy, logging), beta=beta, js=max(js, 0.0), kl=max(kl, 0.0)
    )


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
