"""Batches of concurrent requests: while one batch is computed, the next gathers.

No request waits for a batch to fill: one that comes alone is answered at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from localpolicy.errors import LocalPolicyError, RunError
from localpolicy.limits import FALLBACK
from localpolicy.serving.filters import Filter
from localpolicy.serving.recommender import MOST_SCORES, Recommender
from localpolicy.serving.records import Mode


@dataclass(frozen=True)
class ListRequest:
    """Request for one list: policy, history, length, β, filter, and whether to draw."""

    recommender: Recommender
    items: Sequence[Any]
    events: Sequence[str]
    k: int
    beta: float | None
    sample: bool
    floor: float
    item_filter: Filter
    fallback: bool = False  # do not ask the policy

    @property
    def history(self) -> list[tuple[Any, str]]:
        """Items of the history with their events."""
        return list(zip(self.items, self.events, strict=True))


@dataclass(frozen=True)
class Made:
    """A list with its propensities, and the policy and mode that made it."""

    items: list[Any]
    propensities: list[float]
    policy: str
    mode: Mode
    failed: bool = False  # the policy raised an error


class Batcher:
    """A queue of list requests and one thread that answers them in batches."""

    def __init__(self, *, batch: int, seed: int | None = None) -> None:
        self.batch = batch
        self.batches = self.questions = 0
        self._waiting: list[tuple[ListRequest, asyncio.Future[Made]]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lists")
        self._rng = np.random.default_rng(seed)
        self._worker: asyncio.Task[None] | None = None

    async def ask(self, question: ListRequest) -> Made:
        """Return the list; raise the error if the user can fix it."""
        answer: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            size = max(1, min(self.batch, MOST_SCORES // self._waiting[0][0].recommender.n_items))
            taken, self._waiting = self._waiting[:size], self._waiting[size:]
            made = await loop.run_in_executor(self._thread, self.answer, [question for question, _ in taken])
            self.batches, self.questions = self.batches + 1, self.questions + len(taken)
            for (_, answer), result in zip(taken, made, strict=True):
                if answer.done():  # the client is gone
                    continue
                if isinstance(result, Made):
                    answer.set_result(result)
                else:
                    answer.set_exception(result)

    def answer(self, questions: Sequence[ListRequest]) -> list[Made | LocalPolicyError]:
        """Return a list or an error for each request; requests of one policy and kind are computed together."""
        kinds: defaultdict[Hashable, list[int]] = defaultdict(list)
        for number, asked in enumerate(questions):
            _ = asked.item_filter.digest  # here, since the event loop has no time for long filters
            kind = id(asked.recommender), asked.beta, asked.k, asked.sample, asked.floor, asked.fallback
            kinds[kind].append(number)
        results: dict[int, Made | LocalPolicyError] = {}
        for numbers in kinds.values():
            batch = [questions[number] for number in numbers]
            results |= dict(zip(numbers, self._answer_batch(batch), strict=True))
        return [results[number] for number in range(len(questions))]

    def _answer_batch(self, questions: list[ListRequest]) -> list[Made | LocalPolicyError]:
        try:
            return list(self._draw(questions, fallback=questions[0].fallback))
        except Exception as error:
            if len(questions) > 1:  # one of them is at fault: the others are answered
                return [made for question in questions for made in self._answer_batch([question])]
            if isinstance(error, LocalPolicyError) and not isinstance(error, RunError):
                return [error]
        try:
            (made,) = self._draw(questions, fallback=True, failed=True)
        except LocalPolicyError as error:
            return [error]
        return [made]

    def _draw(self, questions: list[ListRequest], *, fallback: bool, failed: bool = False) -> list[Made]:
        first = questions[0]
        recommender, items = first.recommender, [question.items for question in questions]
        if fallback:
            logits = recommender.fallback(len(questions))
        else:
            logits = recommender.logits(items, [question.events for question in questions], beta=first.beta)
        sample = first.sample or fallback
        drawn = recommender.draw(
            logits, first.k, items, [question.item_filter for question in questions], rng=self._rng if sample else None,
            floor=first.floor,
        )  # fmt: skip
        mode: Mode = "fallback" if fallback else "drawn" if sample else "top"
        policy = FALLBACK if fallback else recommender.version
        return [
            Made([recommender.ids[index] for index in indices], propensity.tolist(), policy, mode, failed)
            for indices, propensity in zip(drawn.indices.tolist(), drawn.propensity, strict=True)
        ]

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
