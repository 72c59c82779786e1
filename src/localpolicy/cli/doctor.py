"""`lpi doctor`: what is here, what is missing, and how to get it."""

from __future__ import annotations

import sys

from localpolicy.cli.output import show_table


def doctor() -> None:
    """Versions, devices and extras: what is found, what is missing and how to get it."""
    from localpolicy.report.doctor import HEADS
    from localpolicy.report.doctor import doctor as look

    found = look()
    show_table("localpolicy on this machine", HEADS, found.rows)
    if not found.healthy:
        sys.exit(2)
