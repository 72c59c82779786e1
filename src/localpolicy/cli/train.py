"""`lpi train`: one policy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.output import say, show_table


def train(
    data: Annotated[Path, typer.Argument(help="a prepared data set")],
    objective: Annotated[str | None, typer.Option(help="what is maximised; docs/objectives.md lists them")] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the run")] = None,
    preset: Annotated[str | None, typer.Option(help="the paper's settings: rl or bandit")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML with the groups data, model, objective, train")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="one setting")] = None,
    beta: Annotated[float | None, typer.Option(help="short for --set objective.beta=")] = None,
    epochs: Annotated[int | None, typer.Option(help="short for --set train.epochs=")] = None,
    seed: Annotated[int | None, typer.Option(help="short for --set train.seed=")] = None,
    device: Annotated[str | None, typer.Option(help="short for --set train.device=")] = None,
    processes: Annotated[int, typer.Option(min=1, help="processes on this machine; several machines: torchrun")] = 1,
    shard_catalogue: Annotated[
        bool, typer.Option("--shard-catalogue", help="split the items' rows over the processes instead of copying them")
    ] = False,
    warm_start: Annotated[
        str | None, typer.Option(help="short for --set train.warm_start=: start from an older run's weights")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="short for --set train.tensorboard=true")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on where a run stopped, or start one")] = False,
    resume_older: Annotated[
        bool, typer.Option("--resume-older", help="go on from the checkpoint before the last")
    ] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="show the whole configuration and stop")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace the folder")] = False,
) -> None:
    """Train one policy on a prepared data set.

    Settings come in four groups: data (windows), model (network), objective (what is maximised) and train (how).
    docs/settings.md lists them all with defaults and allowed values; --print-config shows those of this command.
    """
    import yaml

    from localpolicy.errors import ConfigError
    from localpolicy.runs.config import configure
    from localpolicy.training.loop import train as run

    short: dict[str, Any] = {
        "objective.name": objective,
        "objective.beta": beta,
        "train.epochs": epochs,
        "train.seed": seed,
        "train.device": device,
        "train.shard_catalogue": True if shard_catalogue else None,
        "train.warm_start": warm_start,
        "train.tensorboard": tensorboard or None,
    }
    settings = configure(preset=preset, file=config, changes=changes or (), short=short)
    if print_config:
        print(yaml.safe_dump(settings.model_dump(), sort_keys=False), end="")
        return
    if out is None:
        raise ConfigError("--out is missing: name the folder of the run.")
    if processes > 1:
        sys.exit(_under_torchrun(processes))
    if int(os.environ.get("RANK", "0")) > 0:
        run(data, out=out, config=settings, resume=resume or resume_older, resume_older=resume_older, force=force)
        return  # the first rank talks for all
    say(f"training {settings.objective.name} on {data} into {out}")
    done = run(
        data, out=out, config=settings, resume=resume or resume_older, resume_older=resume_older, force=force,
        say=None if sys.stderr.isatty() else say,
    )  # fmt: skip
    manifest, last = done.manifest, done.selected_metrics()
    within = f" (step {last['step']})" if "epoch_share" in last else ""  # of a validation within an epoch
    rows = [
        ("selected epoch", f"{manifest['selected']['epoch']} of {manifest['epochs']}{within}"),
        (f"selected by {manifest['selected']['by']}", f"{manifest['selected']['value']:.5f}"),
        *((f"loss: {name}", f"{value:.5f}") for name, value in last["losses"].items()),
        ("effective sample of the weights", f"{last['weights']['effective_share']:.1%}"),
        ("weights capped or clamped", f"{last['weights']['clipped_share']:.1%}"),
        *_beginnings(manifest),
        ("sha256 of policy.safetensors", manifest["policy_sha256"]),
    ]
    show_table(f"{manifest['objective']} in {out}", ("what", "value"), rows)


def _beginnings(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """What an older run gave: the weights to start from, or the logging policy."""
    rows = []
    if start := manifest.get("warm_start"):
        rows.append((f"started from {start['run']}: items known, new", f"{start['known_items']}, {start['new_items']}"))
        rows.append(("heads that started fresh", ", ".join(start["fresh_heads"]) or "none"))
    if (logging := manifest.get("logging")) and "unseen_items" in logging:
        what = f"actions on items that {logging['run']} never saw (they weigh {logging['unseen_actions_weigh']})"
        rows.append((what, f"{logging['unseen_actions']:,} of {logging['actions']:,}"))
    return rows


def _under_torchrun(processes: int) -> int:
    """The same command, in several processes; torchrun ends all of them when one dies."""
    words = [word for word in sys.argv[1:] if not word.startswith("--processes=")]
    if "--processes" in words:
        place = words.index("--processes")
        del words[place : place + 2]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    code = subprocess.run([*torchrun, "-m", "localpolicy", *words], check=False).returncode
    if code:
        say("a process stopped, and the others with it. What was saved is whole: go on with --resume.")
    return code
