"""Objectives, backbones and readers of users, found by name.

A name is `package.module:Name`, or one that an installed package registers under the entry point group
`localpolicy.objectives`, `localpolicy.backbones` or `localpolicy.readers`. Only names that the user gives are imported
(an option, an argument, an installed package). A name in a run's files only finds modules that are imported already.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import entry_points
from typing import Any

from localpolicy.errors import ConfigError

_modules: list[str] = []  # modules that the user named, for processes that this one starts


def named_modules() -> tuple[str, ...]:
    """Modules that the user named in this process."""
    return tuple(dict.fromkeys(_modules))


def load(name: str) -> Any:
    """Import `package.module:Name`, or a whole module if no name follows. For names from the user, never a file."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # like `python -m`: modules in the user's working directory
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"'{name}': cannot import {module} ({error}). Expected package.module:Name.") from None
    _modules.append(module)
    for part in filter(None, attribute.split(".")):
        if not hasattr(value, part):
            raise ConfigError(f"'{name}': {module} has no {attribute}.")
        value = getattr(value, part)
    return value


def registered(kind: str) -> set[str]:
    """Names that installed packages register."""
    return {point.name for point in entry_points(group=f"localpolicy.{kind}")}


def find(kind: str, name: str) -> Any:
    """The part that an installed package registers under this name, or that an imported module holds; else None."""
    for point in entry_points(group=f"localpolicy.{kind}"):
        if name in (point.name, point.value):
            try:
                return point.load()
            except (ImportError, AttributeError) as error:
                raise ConfigError(
                    f"'{name}' is registered as {point.value}, which cannot be imported ({error}). Fix or remove its "
                    "package."
                ) from None
    module, _, attribute = name.partition(":")
    value: Any = sys.modules.get(module) if attribute else None
    for part in attribute.split("."):
        value = getattr(value, part, None)
    return value


def name_of(part: Any) -> str:
    """`package.module:Name` of a user's class, or of the class of a user's object."""
    cls = part if isinstance(part, type) else type(part)
    if cls.__module__ != "__main__":  # a new process runs that one by itself
        _modules.append(cls.__module__)
    return f"{cls.__module__}:{cls.__qualname__}"
