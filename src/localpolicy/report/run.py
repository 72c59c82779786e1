"""A finished run as a table: what was selected, its losses and weights, where it began."""

from __future__ import annotations

from typing import Any

from localpolicy.report.table import Table, cells
from localpolicy.runs.run import Run


def run_table(run: Run) -> Table:
    """The selected epoch, its losses and weights, and the digest of the weights."""
    manifest, last = run.manifest, run.selected_metrics()
    within = f" (step {last['step']})" if "epoch_share" in last else ""  # of a validation within an epoch
    rows = [
        ("selected epoch", f"{manifest['selected']['epoch']} of {manifest['epochs']}{within}"),
        (f"selected by {manifest['selected']['by']}", f"{manifest['selected']['value']:.5f}"),
        ("patience, in validations", str(manifest["patience"] or "none: all epochs")),
        *((f"loss: {name}", f"{value:.5f}") for name, value in last["losses"].items()),
        *_weights(last["weights"]),
        *_improvement(manifest.get("improvement")),
        *_beginnings(manifest),
        ("sha256 of policy.safetensors", manifest["policy_sha256"]),
    ]
    return Table(f"{manifest['objective']} in {run.folder}", ["what", "value"], [cells(*row) for row in rows])


def _weights(weights: dict[str, float]) -> list[tuple[str, str]]:
    """How training weighed the log; empty for the closed form, which has no weights."""
    shown = {"effective_share": "effective sample of the weights", "clipped_share": "weights capped or clamped"}
    return [(title, f"{weights[name]:.1%}") for name, title in shown.items() if name in weights]


def _improvement(improvement: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What the closed form chose, and what its critic knows."""
    if improvement is None:
        return []
    calibration, by, errors = improvement["calibration"], improvement["chosen_by"], improvement.get("critic_error")
    said = improvement["said"]
    return [
        ("β, as given" if by == "given" else f"β, chosen by {by}", f"{improvement['beta']:.4g}"),
        ("the critic's calibration: slope (lower bound)", f"{calibration['slope']:.3f} ({calibration['low']:.3f})"),
        ("what it explains within contexts, held out (R²)", f"{calibration['r2']:.4f}"),
        ("the critic counts", f"{improvement['slope']:.3f} times"),
        *(
            [("its squared error, held out (item and user means)", f"{errors['critic']:.4g} ({errors['plain']:.4g})")]
            if errors
            else []
        ),
        *([("note", said)] if said else []),
    ]


def _beginnings(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """What came from an older run: the weights to start from, or the logging policy."""
    rows = []
    if start := manifest.get("warm_start"):
        rows.append((f"started from {start['run']}: items known, new", f"{start['known_items']}, {start['new_items']}"))
        rows.append(("heads that started fresh", ", ".join(start["fresh_heads"]) or "none"))
    if (logging := manifest.get("logging")) and "unseen_items" in logging:
        what = f"actions on items that {logging['run']} never saw (they weigh {logging['unseen_actions_weigh']})"
        rows.append((what, f"{logging['unseen_actions']:,} of {logging['actions']:,}"))
    return rows
