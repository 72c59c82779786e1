"""Options made from settings: an option of a verb is a field of a settings class, with its name, type and help.

A verb names the classes whose fields it takes, and gets those that were given as `**settings`. They are looked up when
the verb is asked for, not before: `lpi --help` need not import what they are made of.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import typer

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Verb = Callable[..., None]


class Setting(NamedTuple):
    """Option of one verb with the name and help of a settings field, and a default of its own."""

    home: str  # 'package.module:Class'
    name: str

    def option(self) -> Any:
        """Option of the command line for this setting."""
        return typer.Option(help=Fields(self.home).found()[self.name].description)


# Options that verbs of several files share.
Against = Annotated[list[Path] | None, Setting("localpolicy.study.settings:SweepConfig", "against")]
ExcludeSeen = Annotated[bool, Setting("localpolicy.measure.metrics:EvaluateConfig", "exclude_seen")]
Device = Annotated[str, Setting("localpolicy.runs.config:TrainConfig", "device")]
Why = Annotated[bool, typer.Option("--why", help="the reason of every check, and what was not asked")]
Force = Annotated[bool, typer.Option("--force", help="replace the folder")]
Preset = Annotated[str | None, typer.Option(help="the paper's settings: rl or bandit")]
ConfigFile = Annotated[Path | None, typer.Option(help="YAML with the groups data, model, objective, train")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="change a setting, such as train.epochs=4; may be repeated"),
]


class Fields(NamedTuple):
    """Settings whose fields are options: 'package.module:Class', or a function there that gives fields by name."""

    home: str
    panel: str | None = None  # the heading they stand under in --help
    only: tuple[str, ...] | None = None  # these alone
    of: str | None = None  # what such a function is asked for
    env: Mapping[str, str] | None = None  # variables of the environment that may state some of them

    def found(self) -> Mapping[str, FieldInfo]:
        """Fields by option name."""
        module, _, name = self.home.partition(":")
        home = getattr(importlib.import_module(module), name)
        asked = () if self.of is None else (self.of,)
        fields: Mapping[str, FieldInfo] = getattr(home, "model_fields", None) or home(*asked)
        return {name: field for name, field in fields.items() if self.only is None or name in self.only}


def takes(*fields: Fields) -> Callable[[Verb], Verb]:
    """Decorator: the verb has these fields as options, in addition to its own parameters."""

    def marked(verb: Verb) -> Verb:
        vars(verb)["fields"] = fields
        signature = inspect.signature(verb)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        vars(verb)["__signature__"] = signature.replace(parameters=own)
        return verb

    return marked


def settings_fields(verb: Verb) -> Iterator[tuple[str, FieldInfo, Fields]]:
    """Name, field and source of every option that a verb has from settings. Groups of settings have none."""
    seen = set()
    for fields in vars(verb).get("fields", ()):
        for name, field in fields.found().items():
            if name not in seen and not hasattr(field.annotation, "model_fields"):
                seen.add(name)
                yield name, field, fields


def complete(verb: Verb) -> Verb:
    """Function with all options of the verb in its signature; those from settings reach the verb only if given."""
    own = inspect.signature(verb).parameters
    hints = {name: _explained(hint) for name, hint in get_type_hints(verb, include_extras=True).items()}
    parameters = [one.replace(annotation=hints[one.name], kind=one.KEYWORD_ONLY) for one in own.values()]
    derived = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=unless, annotation=_option(name, field, home))
        for name, field, home in settings_fields(verb)
        for unless in (inspect.Parameter.empty if field.is_required() else None,)
        if name not in own
    ]

    def command(**given: Any) -> None:
        verb(**{name: value for name, value in given.items() if name in own or value not in (None, [])})

    vars(command)["__signature__"] = inspect.Signature([*parameters, *derived])
    command.__annotations__ = {one.name: one.annotation for one in (*parameters, *derived)}
    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    return command


def _explained(annotation: Any) -> Any:
    """Annotation whose setting, if it names one, has become an option."""
    kind, *about = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    setting = next((each for each in about if isinstance(each, Setting)), None)
    return annotation if setting is None else Annotated[kind, setting.option()]


def _option(name: str, field: FieldInfo, home: Fields) -> Any:
    stated = (home.env or {}).get(name)
    about: dict[str, Any] = {"help": _help(field), "rich_help_panel": home.panel, "envvar": stated}
    marks: Any = field.json_schema_extra or {}
    if "repeated" in marks:
        several: Any = list[_kind(get_args(field.annotation)[0])[0]]  # type: ignore[misc]  # of what a setting says
        return Annotated[several | None, typer.Option(marks["repeated"], metavar=marks["metavar"], **about)]
    kind, words = (str, None) if "read" in marks else _kind(field.annotation)
    if kind in (int, float, bool) and isinstance(field.default, str):  # a number, or a word such as auto
        kind, words = str, f"{kind.__name__}|{field.default}"
    return Annotated[kind | None, typer.Option(metavar=words, **about)]


def _kind(annotation: Any) -> tuple[Any, str | None]:
    """Type that the command line reads, and its name; settings parse other types from text themselves."""
    inner = [one for one in get_args(annotation) if one is not type(None)]
    if get_origin(annotation) in (Union, types.UnionType):
        return _kind(inner[0]) if len(inner) == 1 else (str, None)
    if get_origin(annotation) is Literal:
        return str, "|".join(str(one) for one in inner)
    plain = annotation in (int, float, bool, Path)
    return (annotation if plain else str), None


def _help(field: FieldInfo) -> str:
    said = field.description or ""
    default = field.get_default(call_default_factory=True)
    if field.is_required() or default is None or isinstance(default, bool) or "default" in said or default in ((), {}):
        return said
    shown = ",".join(f"{one}" for one in default) if isinstance(default, tuple) else f"{default}"
    return f"{said} (default: {shown})"
