"""The paper's form of local policy improvement, for tests of what it alone has: weights, caps, a head for μ̂."""

from __future__ import annotations

from typing import Any


def weighted(settings: dict[str, Any]) -> dict[str, Any]:
    """The same settings of an objective; where it is LPI, in its weighted form unless they say otherwise."""
    name = settings.get("name")
    closed = name in ("lpi_cb", "lpi_rl") and "improve" not in settings
    return {**settings, "name": f"{name}_weighted"} if closed else settings
