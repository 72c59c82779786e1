"""Batches: windows of sequences cut by index arithmetic alone, on the device of the arrays.

Each sequence gives its most recent T actions; of these the last m are positions (scored). The token before the window's
first action is the item that really preceded it, and START only if the sequence itself begins there: an empty context
always means an empty history.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from localpolicy.data.config import WindowConfig
from localpolicy.data.first_meetings import earned_by_meeting, met_before
from localpolicy.data.store import CONTEXT, Prepared, Split
from localpolicy.settings import AUTO
from localpolicy.types import START, Batch, Following, ItemFilters

NO_POSITION = 256  # an event that no log has
QUANTILE, LONGEST = 0.99, 200  # of the training sequences' lengths


def window_length(data: Prepared) -> int:
    """Length of windows that `auto` stands for: it holds 99 of 100 training sequences, up to 200 actions."""
    lengths = np.diff(data["train"].histories[0])
    return int(np.clip(np.quantile(lengths, QUANTILE), 1, LONGEST)) if len(lengths) else LONGEST


def epoch_order(sequences: int, *, seed: int, epoch: int) -> Tensor:
    """Order of the sequences in an epoch, which depends on seed and epoch alone."""
    return torch.randperm(sequences, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


class Windows:
    """Histories of one split (sequences, or parts with a context of their own), cut into batches on `device`."""

    def __init__(self, data: Prepared, split: str, config: WindowConfig, *, device: str | torch.device = "cpu") -> None:
        source = data[split]
        if config.length == AUTO:  # of a policy that was not trained here; a run's config is resolved
            config = config.model_copy(update={"length": window_length(data)})
        # Where the last event alone is held out, what came before it is history.
        self.config = config.model_copy(update={"last": 1}) if data.holds_out_last and split != "train" else config
        offsets, sequence = source.histories
        self.offsets = torch.from_numpy(offsets).to(device)
        self.sequence = torch.from_numpy(sequence).to(device)  # sequence of each history
        self.arrays = {name: torch.from_numpy(np.asarray(array)).to(device) for name, array in source.arrays.items()}
        self.context = data.events.index(CONTEXT) if CONTEXT in data.events else None
        self.following = _following(source, self.context).to(device) if "anew" in source.arrays else None
        self.filters: ItemFilters | None = None
        if data.filters is not None:
            self.filters = ItemFilters(*(torch.from_numpy(np.asarray(array)).to(device) for array in data.filters))
        # Without position bias, or if it is unknown, places are not distinguished.
        places = data.position_bias
        self.examined: Tensor | None = None  # [K]
        if places is not None and (places.examined != 1).any():
            self.examined = torch.from_numpy(places.examined).float().to(device)
        self.one_reward = data.one_reward
        self.chosen: Tensor | None = None  # indices of the chosen histories; None: all
        self.meetings = False  # whether first meetings are credited

    def __len__(self) -> int:
        return len(self.offsets) - 1 if self.chosen is None else len(self.chosen)

    def part(self, number: int, parts: int) -> Windows:
        """Every `parts`-th sequence, from the `number`-th on, so that choice and evaluation use different parts."""
        return self._among(self.sequence % parts == number)

    def only(self, sequences: np.ndarray) -> Windows:
        """Windows restricted to these sequences of the split, given by index."""
        return self._among(torch.isin(self.sequence, torch.from_numpy(np.asarray(sequences, np.int64)).to(self.device)))

    def _among(self, chosen: Tensor) -> Windows:
        part = copy(self)
        part.__dict__.pop("positions", None)
        part.chosen = chosen.nonzero().squeeze(1)
        return part

    @property
    def history_of_rows(self) -> Tensor:
        """Index of the history that each row of the split belongs to: [E]."""
        count = torch.arange(len(self.offsets) - 1, device=self.device)
        return torch.repeat_interleave(count, self.offsets.diff())

    def of_first_meetings(self, *, repeats: bool = False) -> Windows:
        """Windows in which each first meeting is credited with the item's rewards per meeting (see
        `data.first_meetings`).

        Repeats are no positions then; or, with `repeats`, positions that earned the mean of all first meetings. Context
        rows (`context`) are no meetings.
        """
        meetings, item, event, reward = copy(self), *(self.arrays[name] for name in ("item", "event", "reward"))
        meetings.__dict__.pop("positions", None)
        history = self.history_of_rows
        again = met_before(history, item)
        earned = earned_by_meeting(history, item, event, reward)
        passive = event == (-1 if self.context is None else self.context)
        mean = earned[~again & ~passive].mean() if repeats else earned.new_zeros(())
        meetings.meetings = True
        meetings.arrays = {**self.arrays, "reward": torch.where(again, mean, earned).to(reward.dtype)}
        if not repeats:
            meetings.context = NO_POSITION
            meetings.arrays |= {"event": event.short().masked_fill(again | passive, NO_POSITION), "past_event": event}
        return meetings

    def _numbers(self, index: Tensor) -> Tensor:
        """Convert indices of this part's histories to indices among all of the split's histories."""
        return index if self.chosen is None else self.chosen[index]

    def places_at(self, sequence: Tensor, history: Tensor) -> Tensor | None:
        """Logged places of actions after `history` others of their sequences; None if the log states no places."""
        place = self.arrays.get("place")
        return None if place is None else place[self.offsets[sequence] + history].long()

    @property
    def device(self) -> torch.device:
        """Device of the arrays, on which batches are cut."""
        return self.offsets.device

    @cached_property
    def positions(self) -> int:
        """Number of positions that a whole pass scores."""
        return sum(len(batch.scored) for batch in self.in_order(8192))

    def beyond(self, min_history: int) -> int:
        """Number of positions after `min_history` steps that a whole pass leaves out: they lie before their window."""
        histories = self._numbers(torch.arange(len(self), device=self.device))
        start, stop = self.offsets[histories], self.offsets[histories + 1]
        first = torch.minimum(start + min_history, stop)
        if self.config.last is not None:
            first = torch.maximum(first, stop - self.config.last)
        end = torch.maximum(stop - self.config.length, first)
        if self.context is None:
            return int((end - first).sum())
        chosen = (self.arrays["event"] != self.context).long().cumsum(0)
        before = torch.cat([chosen.new_zeros(1), chosen])
        return int((before[end] - before[first]).sum())

    def cut(self, sequences: Tensor) -> Batch:
        """Batch of the last `config.length` steps of these histories (indices [B]), flat and without padding."""
        start, stop = self.offsets[sequences], self.offsets[sequences + 1]
        widths = (stop - start).clamp(max=self.config.length)
        row = torch.repeat_interleave(torch.arange(len(sequences), device=self.device), widths)
        first = widths.cumsum(0) - widths
        column = torch.arange(len(row), device=self.device) - first[row]
        index = (stop - widths)[row] + column
        begins = index == start[row]
        before = torch.where(begins, index, index - 1)
        event = self.arrays["event"][index].long()
        previous_item = self.arrays["item"][before].long().masked_fill_(begins, START)
        past = self.arrays.get("past_event", self.arrays["event"])
        previous_event = past[before].long().masked_fill_(begins, 0)
        scored = torch.ones_like(begins)
        if self.config.last is not None:
            scored = column >= (widths - self.config.last)[row]
        if self.context is not None:
            scored = scored & (event != self.context)
        context = None
        if (above := self.arrays.get("above")) is not None:
            behind = above[index].long()
            scored = scored & (behind <= column)  # if the window begins within a list, the list's context is cut off
            context = torch.arange(len(row), device=self.device) - torch.minimum(behind, column)
        reward, list_reward = self.arrays["reward"][index], None
        if self.one_reward and context is not None:
            list_reward = torch.zeros_like(reward).index_add_(0, context, reward)[context]
        examined = None
        if self.examined is not None:
            place = self.arrays.get("place", self.arrays["above"])[index].long()
            examined = self.examined[place.clamp(min=0, max=len(self.examined) - 1)]
        propensity, number = self.arrays.get("propensity"), self.arrays.get("filter")
        return Batch(
            sequences=sequences,
            owner=self.sequence[sequences] if "anew" in self.arrays else None,
            following=self.following,
            row=row,
            column=column,
            previous_item=previous_item,
            previous_event=previous_event,
            item=self.arrays["item"][index].long(),
            event=event,
            reward=reward,
            list_reward=list_reward,
            history=index - start[row],
            scored=scored.nonzero().squeeze(1),
            propensity=None if propensity is None else propensity[index],
            context=context,
            examined=examined,
            filter=None if number is None else number[index],
            filters=self.filters,
            meetings=self.meetings,
        )

    def in_order(self, size: int, *, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """Batches of every sequence once, in order; rank r of R takes each R-th batch, and all take equally many."""
        for start in range(rank * size, len(self) + rank * size, size * ranks):
            if start < len(self):
                yield self.cut(self._numbers(torch.arange(start, min(start + size, len(self)), device=self.device)))
            else:
                yield self.idle()

    def idle(self) -> Batch:
        """Batch without positions, for a rank that has nothing to do while others do."""
        batch = self.cut(torch.zeros(1, dtype=torch.long, device=self.device))
        return replace(batch, scored=batch.scored[:0])

    def shuffled(
        self, size: int, *, seed: int, epoch: int, skip: int = 0, rank: int = 0, ranks: int = 1
    ) -> Iterator[Batch]:
        """Batches of every sequence once, in an order by seed and epoch alone; the first `skip` batches are left out.

        Of several ranks each takes its share of every batch; one left without any gets a batch without positions.
        """
        order = epoch_order(len(self), seed=seed, epoch=epoch).to(self.device)
        for start in range(skip * size, len(self), size):
            share = order[start : start + size][rank::ranks]
            yield self.cut(self._numbers(share)) if len(share) else self.idle()


def _following(split: Split, context: int | None) -> Following:
    """Rewards of each sequence by step (a list, or a single row), and the first step after each history."""
    chosen = np.asarray(split.arrays["event"]) != (-1 if context is None else context)
    before = np.append(0, np.cumsum(chosen & (np.asarray(split.arrays["above"]) == 0)))  # steps before each row
    count = int(before[-1])
    earned = np.bincount(before[1:][chosen] - 1, weights=split.arrays["reward"][chosen], minlength=count)
    steps = np.diff(before[split.offsets])
    stop = np.repeat(before[split.offsets[1:]], steps)
    histories, sequence = split.histories
    first = before[histories[1:]]
    first = np.where(first < before[split.offsets[sequence + 1]], first, count)
    return Following(torch.from_numpy(earned).float(), torch.from_numpy(stop), torch.from_numpy(first))


def batch_of_histories(items: list[list[int]], events: list[list[int]] | None = None, *, length: int) -> Batch:
    """Batch with one position per history, after all of its items (item indices, most recent last)."""
    seen = torch.tensor([len(history) for history in items], dtype=torch.long)

    def flat(values: list[list[int]]) -> Tensor:
        return torch.from_numpy(np.fromiter(chain.from_iterable(values), np.int64, int(seen.sum())))

    batch = batch_of_flat(flat(items), None if events is None else flat(events), seen, length=length)
    return replace(batch, ends_only=True)


def batch_of_flat(items: Tensor, events: Tensor | None, seen: Tensor, *, length: int) -> Batch:
    """Batch of one position per history, from histories one after the other, `seen` [B] actions in each."""
    width = (seen + 1).clamp(max=length)  # START comes first, unless it is cut off
    row = torch.repeat_interleave(torch.arange(len(seen)), width)
    column = torch.arange(len(row)) - (width.cumsum(0) - width)[row]
    step = (seen + 1 - width)[row] + column  # 0: START
    taken = (seen.cumsum(0) - seen)[row] + step - 1

    def before(values: Tensor, start: int) -> Tensor:
        begins = step == 0
        return values[taken.masked_fill(begins, 0)].masked_fill_(begins, start) if len(values) else begins * start

    unknown = torch.zeros(len(row), dtype=torch.long)
    return Batch(
        sequences=torch.arange(len(seen)),
        row=row,
        column=column,
        previous_item=before(items, START),
        previous_event=torch.zeros_like(row) if events is None else before(events, 0),
        item=unknown,
        event=unknown,
        reward=torch.zeros(len(row)),
        history=step,
        scored=width.cumsum(0) - 1,
    )
