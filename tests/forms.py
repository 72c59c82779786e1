"""The paper's form of local policy improvement, for tests of what it alone has: weights, caps, a head for μ̂."""

from __future__ import annotations

from typing import Any


def weighted(settings: dict[str, Any]) -> dict[str, Any]:
    """The same settings of an objective; where it is LPI, in its weighted form unless they say otherwise."""
    return {"improve": "weighted", **settings} if str(settings.get("name")).startswith("lpi_") else settings
