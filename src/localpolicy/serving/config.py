"""Settings of the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from localpolicy.settings import Settings


class ServeConfig(Settings):
    """Settings of `lpi serve`: the export, the log, the rollout, and the limits of requests."""

    export: Path = Field(description="the export or layer that answers; a new one in its place is swapped in")
    log: str = Field("lpi-log.db", description="the log to write: a SQLite file, or postgresql://… for several servers")
    rollout: Path | None = Field(
        None, description="the rollout's file, to be followed once it is there (lpi rollout plan)"
    )
    rules: Path | None = Field(None, description="of a layer: a YAML file of the rules that hold for all its lists")
    shadow: bool = Field(False, description="of a layer: show the ranker's own order, and log what would be drawn")
    host: str = Field("127.0.0.1", description="address to listen on")
    hosts: tuple[str, ...] = Field(
        (), description="names that clients may call it by; default: local names and numbers on loopback, else any"
    )
    origins: tuple[str, ...] = Field(
        (), description="web pages that may ask, as https://shop.example; default: its own"
    )
    port: int = Field(8471, ge=0, le=65535, description="port; 0 takes any free one")
    workers: int = Field(1, ge=1, le=64, description="number of processes")
    threads: int = Field(1, ge=1, le=64, description="onnxruntime threads per worker")
    floor: float = Field(
        0.0, ge=0, le=1, description="exploration floor: probability that a place is drawn uniformly from what is left"
    )
    empty_history: Literal["fallback", "model"] = Field("fallback", description="what answers an empty history")
    share: float = Field(1.0, gt=0, le=1, description="share of requests that is logged")
    rewards: str | None = Field(
        None, description="events that may come back, as event=reward,…; others are refused (default: all are stored, "
        "and rotate sets aside what its own map does not know)"
    )  # fmt: skip
    smallest_reward: float | None = Field(None, description="feedback that states less is refused")
    largest_reward: float | None = Field(None, description="feedback that states more is refused")
    window: float = Field(3600.0, gt=0, description="seconds after which feedback is late, by the server's clock")
    clock_seconds: float = Field(
        60.0,
        ge=0,
        description="how far a client's clock may be off: times further outside of a list's life are refused",
    )
    longest_list: int = Field(200, ge=1, description="largest k")
    longest_history: int = Field(1000, ge=1, description="most events of a history")
    most_ids: int = Field(10_000, ge=1, description="most candidates, and most exclusions")
    largest_body: int = Field(1 << 20, ge=1024, description="bytes of a request's body")
    body_seconds: float = Field(10.0, gt=0, description="time a client has for its headers, and again for its body")
    queue: int = Field(256, ge=1, description="requests that may wait, per worker; more are refused")
    client_queue: int | None = Field(
        None, ge=1, description="of them from one address; default: half, so that no client keeps all others out"
    )
    waiting_bytes: int = Field(
        64 << 20, ge=1024, description="bytes of all bodies that wait, per worker; half of them from one address"
    )
    connections: int = Field(
        1024, ge=2, description="open connections per worker; half from one address, unless it is a proxy's"
    )
    batch: int = Field(32, ge=1, description="requests answered together at most")
    seed: int | None = Field(None, ge=0, description="of the draws, for tests; default: unpredictable")
    log_seconds: float = Field(10.0, gt=0, description="how long the log may take; then 503, and nothing is answered")
    access_log: bool = Field(False, description="write a line of JSON about each answer to stderr")
    without_token: bool = Field(
        False, description="answer whoever reaches the address; else only this machine is answered without a token"
    )
    proxies: tuple[str, ...] = Field(
        (), description="addresses or networks of proxies, whose X-Forwarded-For names the client; default: none"
    )
    open_metrics: bool = Field(False, description="/metrics needs no token: it counts, and names policies alone")
    poll_seconds: float = Field(1.0, gt=0, description="how often a new export or rollout stage is looked for")
    verify_seconds: float = Field(600.0, gt=0, description="how often the digests of what is served are compared again")

    @field_validator("hosts", "origins", "proxies", mode="before")
    @classmethod
    def _listed(cls, names: Any) -> Any:
        """Split a comma-separated text, as given on the command line, into names."""
        return [name.strip() for name in names.split(",")] if isinstance(names, str) else names

    @property
    def most_of_a_client(self) -> int:
        """Number of requests of one address that may wait."""
        return (self.queue + 1) // 2 if self.client_queue is None else self.client_queue

    @property
    def window_ms(self) -> int:
        """`window` in milliseconds."""
        return round(self.window * 1000)


def is_loopback(host: str) -> bool:
    """Whether this host name or address is reached from this machine only."""
    return host in ("127.0.0.1", "::1", "localhost")
