"""`lpi train`: one policy."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from localpolicy.cli.options import Changes, ConfigFile, Fields, Force, Preset, takes
from localpolicy.cli.output import show, show_steps
from localpolicy.runtime.progress import EPOCH_LINES

LOG = logging.getLogger(__name__)


@takes(
    Fields("localpolicy.runs.config:objective_fields", "objective: what is maximised"),
    Fields("localpolicy.runs.config:TrainConfig", "train: how, and which weights are kept"),
    Fields("localpolicy.model.config:ModelConfig", "model: the network's shape"),
    Fields("localpolicy.data.config:WindowConfig", "data: how sequences are cut into windows"),
)
def train(
    data: Annotated[Path, typer.Argument(help="a prepared data set")],
    objective: Annotated[
        str | None,
        typer.Option(
            help="the objective (docs/objectives.md lists them), or popularity, last-item, item-knn; auto: lpi_rl if "
            "the log shows that what is shown now changes later rewards, or cannot tell, else lpi_cb"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the run")] = None,
    preset: Preset = None,
    config: ConfigFile = None,
    changes: Changes = None,
    processes: Annotated[
        int, typer.Option(min=1, max=1024, help="processes on this machine (for several machines use torchrun)")
    ] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="resume a stopped run, or start a new one")] = False,
    resume_older: Annotated[
        bool, typer.Option("--resume-older", help="resume from the checkpoint before the last")
    ] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="show the whole configuration and stop")] = False,
    force: Force = False,
    **settings: Any,
) -> None:
    """Train one policy on a prepared data set.

    Settings come in four groups: data (windows), model (network), objective (what is maximised) and train (how). Each
    is an option by its own name: --epochs 4 is short for --set train.epochs=4. --print-config shows them all.
    """
    import yaml

    from localpolicy.data.store import Prepared
    from localpolicy.errors import ConfigError
    from localpolicy.report.results import run_table
    from localpolicy.runs.baselines import baseline_called
    from localpolicy.runs.config import configure, option_key
    from localpolicy.training.selection import events_left_out
    from localpolicy.training.train import AUTO, improving_objective
    from localpolicy.training.train import train as run

    if objective is not None and (baseline := baseline_called(objective)):
        _fit_baseline(baseline, data, out, resume=resume, force=force)
        return
    if objective == AUTO:
        objective, why = improving_objective(Prepared(data))
        LOG.info("objective %s: %s", objective, why)
    short = {"objective.name": objective, **{option_key(name): value for name, value in settings.items()}}
    configured = configure(preset=preset, file=config, changes=changes or (), short=short)
    if print_config:
        print(yaml.safe_dump(configured.model_dump(), sort_keys=False), end="")
        return
    if out is None:
        raise ConfigError("--out is missing: name the folder of the run.")
    if processes > 1:
        sys.exit(_under_torchrun(processes))
    if int(os.environ.get("RANK", "0")) > 0:
        run(data, out=out, config=configured, resume=resume or resume_older, resume_older=resume_older, force=force)
        return  # only rank 0 prints
    if not sys.stderr.isatty():
        show_steps(EPOCH_LINES)  # a terminal has a progress bar instead
    LOG.info("training %s on %s into %s", configured.objective.name, data, out)
    if note := events_left_out(configured.train.select, Prepared(data), configured.objective):
        LOG.info("note: %s", note)
    done = run(
        data, out=out, config=configured, resume=resume or resume_older, resume_older=resume_older, force=force,
    )  # fmt: skip
    show(run_table(done))


def _fit_baseline(name: str, data: Path, out: Path | None, *, resume: bool, force: bool) -> None:
    """Fit a simple baseline and save it like a run; `gate` and `recommend` accept it as one."""
    from localpolicy.errors import ConfigError
    from localpolicy.runs.baselines import fit_baseline

    if out is None:
        raise ConfigError("--out is missing: name the folder of the baseline.")
    if not (resume and (out / "manifest.json").exists()):
        fit_baseline(name, data, out=out, force=force or resume)
    LOG.info("%s fitted into %s", name, out)


def _under_torchrun(processes: int) -> int:
    """Run the same command in several processes by torchrun, which stops all when one dies; return the exit code."""
    words = [word for word in sys.argv[1:] if not word.startswith("--processes=")]
    if "--processes" in words:
        position = words.index("--processes")
        del words[position : position + 2]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    code = subprocess.run([*torchrun, "-m", "localpolicy", *words], check=False).returncode
    if code:
        LOG.warning(
            "a process stopped, so torchrun stopped the others. Saved files are complete: continue with --resume."
        )
    return code
