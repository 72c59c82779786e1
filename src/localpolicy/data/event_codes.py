"""Events and policies as codes, with the names and rewards of events."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from localpolicy.data.config import PrepareConfig
from localpolicy.data.engines import Engine
from localpolicy.data.log_schema import LogSchema, Raw, alias, joined
from localpolicy.data.reward_kind import unpaid_events
from localpolicy.data.rewards import DEFAULT, RewardMap, event_name, is_rating
from localpolicy.data.store import CONTEXT, NO_ANSWER
from localpolicy.errors import ConfigError, DataError, nearest, to_caller

log = logging.getLogger("localpolicy.data.prepare")
MOST_EVENTS = 256  # an event's code is one byte
MOST_POLICIES = 32_767  # a policy's code is two bytes


@dataclass(frozen=True)
class EventCodes:
    """Events and policies of a log, with their codes."""

    kind: str  # interactions or impressions
    names: Mapping[str, str]  # as the log wrote it -> ours, for events whose rows stay
    events: list[str]  # ours, by code
    rewards: dict[str, float]  # empty where the log itself states rewards
    reward_map: str | None
    policies: list[str]  # by code
    drops: bool  # whether some events' rows are left out
    unpaid: tuple[str, ...] = ()  # events that earn nothing, since the log's rewards are amounts of a sale

    def code(self, raw: str) -> int | str:
        """SQL for the code of an event as the log wrote it."""
        return self.events.index(self.names[raw]) if raw in self.names else "NULL"

    def codes(self, column: str) -> dict[str, int]:
        """Codes of events or policies by the names that the log wrote."""
        if column == "policy":
            return {name: code for code, name in enumerate(self.policies)}
        return {raw: self.events.index(name) for raw, name in self.names.items()}

    @property
    def rate_items(self) -> bool:
        """Whether every event is a response to its row's item (a rating, or to an impression), not an action."""
        return self.kind == "impressions" or all(is_rating(event) for event in self.events if event != CONTEXT)


def make_event_codes(
    engine: Engine,
    raws: Sequence[Raw],
    schema: LogSchema,
    config: PrepareConfig,
    *,
    earlier: Mapping[str, Any],
    first: bool,
) -> EventCodes:
    """Read the log's events and policies; fill the tables `event_codes` and `policies`. Earlier codes stay.

    For a `first` log settings must fit the events; a later one may lack some that an earlier one had.
    """
    acted = _distinct(engine, raws, "event", most=10 * MOST_EVENTS)
    raw_events = sorted({*acted, *_distinct(engine, raws, "past_event", most=10 * MOST_EVENTS)})
    named = {raw: config.rename.get(raw, config.rename.get(event_name(raw), event_name(raw))) for raw in raw_events}
    dropped = {*config.drop_events, *map(event_name, config.drop_events)}
    if first:
        known = {*named, *named.values()}
        for event in config.drop_events:
            if event not in known and event_name(event) not in known:
                raise DataError(f"drop_events: no event '{event}' in this log{nearest(event, known)}")
    shown = schema.has_propensity or NO_ANSWER in named.values()
    kind = config.kind if config.kind != "auto" else "impressions" if shown else "interactions"
    if kind == "interactions":
        dropped.add(NO_ANSWER)
    names = {raw: name for raw, name in named.items() if not {raw, name} & dropped}
    if raw_events and not names:
        raise DataError(f"no events are left of {', '.join(raw_events)}: drop fewer of them.")
    coded = list(earlier.get("events", ()))
    events = [*coded, *sorted(set(names.values()) - set(coded))]
    if len(events) > MOST_EVENTS:
        some = ", ".join(events[:5])
        raise DataError(f"{len(events):,} different events ({some}, …), at most {MOST_EVENTS}: is it the right column?")
    reward_map = config.rewards if config.rewards is not None or schema.has_reward else DEFAULT
    parsed_rewards = None if reward_map is None else RewardMap.parse(reward_map)
    if first and config.rewards is not None and parsed_rewards is not None:
        for event in sorted(parsed_rewards.names.keys() - {*events, *dropped, NO_ANSWER, CONTEXT}):
            log.info("note: the log has no event '%s' of the reward map%s", event, nearest(event, events))
    only_past = set(names.values()) - {names[raw] for raw in acted if raw in names} - set(coded)
    rewards = (
        {} if parsed_rewards is None else {event: event_reward(event, parsed_rewards, only_past) for event in events}
    )
    if config.reward_kind != "auto" and not all(
        is_rating(event) for event in rewards if event not in (CONTEXT, NO_ANSWER)
    ):
        raise ConfigError(
            f"reward_kind={config.reward_kind} needs a column of rewards, and here each event has one reward: name the "
            "column (--columns reward=NAME)."
        )
    before = list(earlier.get("policies", ()))
    logged = _distinct(engine, raws, "policy", most=MOST_POLICIES + 1)
    policies = [*before, *(policy for policy in logged if policy not in before)]
    if len(policies) > MOST_POLICIES:
        raise DataError(f"more than {MOST_POLICIES:,} different policies: is 'policy' the right column?")
    acts = [event for event in events if event not in (CONTEXT, NO_ANSWER)]
    column = str((config.columns or {}).get("reward", "reward"))
    unpaid = () if rewards else unpaid_events(acts, column, config.reward_kind)
    if unpaid:
        log.warning(to_caller(f"{column} is taken for what a sale brought: rows of {', '.join(unpaid)} earn nothing. "
                              "--reward-kind measure takes them as they stand"))  # fmt: skip
    made = EventCodes(kind, names, events, rewards, reward_map, policies, len(names) < len(named), unpaid)
    for table, column in (("event_codes", "event"), ("policies", "policy")):
        codes = made.codes(column)
        engine.small(
            table, pa.table({column: pa.array(codes, pa.string()), "code": pa.array(codes.values(), pa.int32())})
        )
    return made


def event_reward(event: str, rewards: RewardMap, only_past: Collection[str]) -> float:
    """Reward of an event; 0 if the reward map lacks it and it occurs only in histories."""
    try:
        return rewards.of(event)
    except DataError:
        if event not in only_past:
            raise
        return 0.0


def _distinct(engine: Engine, raws: Sequence[Raw], column: str, *, most: int) -> list[str]:
    """Distinct values of a text column over all tables."""
    values: set[str] = {raw.table.constants[column] for raw in raws if column in raw.table.constants}
    for raw in raws:
        if column in raw.table.columns:
            parts = [alias(raw.table, name) for name in raw.table.parts(raw.table.columns[column])]
            value = joined(parts)
            where = f"{parts[0]} IS NOT NULL AND {raw.where}"
            names = engine.rows(f"SELECT DISTINCT CAST({value} AS STRING) FROM {raw.view} WHERE {where} LIMIT {most}")
            values |= {str(name) for (name,) in names}
    return sorted(values)
