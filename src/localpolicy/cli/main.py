"""`lpi`: the verbs, and what happens when one goes wrong.

Exit codes (docs/faq.md): 0 done; 1 a bug of ours; 2 the user can fix it, and the message says how; 3 the gate
says no, or no point of a sweep is within its budget; 4 the gate cannot tell; 130 stopped by Ctrl-C, saved; 141 output
pipe closed early (`lpi … | head -1`).
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from localpolicy.cli.data import prepare, simulate
from localpolicy.cli.doctor import doctor, verify
from localpolicy.cli.evaluate import compare, evaluate, gate
from localpolicy.cli.go import go
from localpolicy.cli.log import audit, erase, rotate
from localpolicy.cli.options import Verb, complete
from localpolicy.cli.output import exit_on_closed_pipe, show_messages
from localpolicy.cli.ranker import explore, explore_plan, improve
from localpolicy.cli.runs import distill, export, extend, register
from localpolicy.cli.serve import plan, recommend, rollout, serve, size
from localpolicy.cli.studies import PAPER, demo, loop, paper, sweep
from localpolicy.cli.train import train
from localpolicy.errors import LocalPolicyError, Stopped, bounded, nearest, on_command_line
from localpolicy.version import __version__

LOG = logging.getLogger(__name__)
VERBS: dict[str, Verb] = {
    verb.__name__: verb
    for verb in (
        demo, go, doctor, simulate, prepare, train, evaluate, compare, gate, sweep, distill, extend, recommend, export,
        improve, serve, rotate, audit, erase, register, loop, verify,
    )
}  # fmt: skip
GROUPS: dict[str | None, dict[str, Verb]] = {
    "paper": PAPER, "rollout": {"plan": plan, "size": size}, "explore": {"plan": explore_plan},
}  # fmt: skip


class Verbs(TyperGroup):
    """Command group that suggests the nearest verb for a misspelt one and adds options from settings."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"no such command '{name}'{nearest(name, self.list_commands(ctx))}")
        verb = GROUPS.get(self.name, VERBS).get(name)
        if hasattr(verb, "fields") and verb is not None:
            whole = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            whole.command(name)(complete(verb))
            self.commands[name] = typer.main.get_command(whole)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Verbs,
    help="Turn the log of a deployed recommender into a better policy, and know how far it has moved.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _verb in VERBS.items():
    app.command(_name)(_verb)
app.add_typer(paper, name="paper", cls=Verbs)
app.add_typer(rollout, name="rollout", cls=Verbs)
app.add_typer(explore, name="explore", cls=Verbs)


def _version(show: bool) -> None:
    if show:
        print(f"localpolicy {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", help="a module with objectives, backbones or readers of your own; may be repeated"),
    ] = None,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="write messages to stderr as JSON, one object per line")
    ] = False,
) -> None:
    show_messages(as_json=log_json)
    if modules:
        from localpolicy import plugins

        for name in modules:
            plugins.load(name)


def _check_folder() -> None:
    """Exit with a message if the current folder was removed, before torch's libraries crash on it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise LocalPolicyError("the current folder was removed. Change to one that exists.") from None


def main() -> None:
    """Run `lpi`."""
    exit_on_closed_pipe()
    show_messages()
    with on_command_line():
        _run()


def _run() -> None:
    try:
        _check_folder()
        app()
    except Stopped as stop:
        LOG.error("%s", stop)
        sys.exit(130)  # as a shell reports a program that Ctrl-C ended
    except LocalPolicyError as error:
        LOG.error("%s", error)
        sys.exit(2)
    except ModuleNotFoundError as error:
        from localpolicy.serving.doctor import remedy

        if (told := remedy(error.name)) is None:
            raise  # not a package that we need
        LOG.error("%s", told)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            raise  # not about a file of the user's
        LOG.error("%s: %s. Check the path and who may read or write it.", error.filename, error.strerror)
        sys.exit(2)
    except UnicodeEncodeError as error:  # a library writes a name that is not UTF-8
        LOG.error("the name %s is not valid UTF-8. Rename it.", bounded(ascii(error.object)))
        sys.exit(2)
    finally:
        sys.stdout.flush()  # now, while a closed pipe can still be reported
