"""What users bring: objectives, backbones and readers, by name.

A name is `package.module:Name`, or one that an installed package registers under the entry point group
`localpolicy.objectives`, `localpolicy.backbones` or `localpolicy.readers`. Only what the user names is imported (an
option, an argument, an installed package); a name that stands in a run's files finds what is imported already.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import entry_points
from typing import Any

from localpolicy.errors import ConfigError

_modules: list[str] = []  # that the user named, for processes that this one starts


def named_modules() -> tuple[str, ...]:
    """Modules that the user named in this process."""
    return tuple(dict.fromkeys(_modules))


def load(name: str) -> Any:
    """Import `package.module:Name`, or a whole module where no name follows. For what a user names, never a file."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # as `python -m` has it: a module beside the user's data
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"'{name}': cannot import {module} ({error}). Expected package.module:Name.") from None
    _modules.append(module)
    for part in filter(None, attribute.split(".")):
        if not hasattr(found, part):
            raise ConfigError(f"'{name}': {module} has no {attribute}.")
        found = getattr(found, part)
    return found


def registered(kind: str) -> set[str]:
    """The names that installed packages register."""
    return {point.name for point in entry_points(group=f"localpolicy.{kind}")}


def find(kind: str, name: str) -> Any:
    """What goes by this name, or None: registered by an installed package, or in a module that is imported already."""
    for point in entry_points(group=f"localpolicy.{kind}"):
        if name in (point.name, point.value):
            try:
                return point.load()
            except (ImportError, AttributeError) as error:
                raise ConfigError(
                    f"'{name}' is registered as {point.value}, which cannot be imported ({error}). Mend or remove its "
                    "package."
                ) from None
    module, _, attribute = name.partition(":")
    found: Any = sys.modules.get(module) if attribute else None
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found


def name_of(brought: Any) -> str:
    """`package.module:Name` of a class, or of an object's class, which the user brought."""
    made = brought if isinstance(brought, type) else type(brought)
    if made.__module__ != "__main__":  # that one is run again by a new process itself
        _modules.append(made.__module__)
    return f"{made.__module__}:{made.__qualname__}"
