"""Parts from outside: an object that is passed, `package.module:Name`, or an installed entry point.

Only what the user names, by argument or by installing a package that registers it, is ever imported. A name that
stands in a file is looked up in our own tables alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from localpolicy.errors import ConfigError, nearest


def find_part(name: str, ours: Mapping[str, Any], *, group: str, what: str) -> Any:
    """The part called `name`: one of ours, `package.module:Name`, or an entry point of `group`."""
    if name in ours:
        return ours[name]
    if ":" in name:
        return _imported(name, what)
    registered = {entry.name: entry for entry in entry_points(group=group)}
    if name not in registered:
        raise ConfigError(f"no {what} '{name}'{nearest(name, {*ours, *registered})}")
    try:
        return _made(registered[name].load())
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the {what} '{name}' is registered but cannot be imported ({error}).") from None


def _imported(name: str, what: str) -> Any:
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for step in path.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the {what} '{name}' cannot be imported ({error}). Expected package.module:Name of something that is "
            "installed or lies on PYTHONPATH."
        ) from None
    return _made(found)


def _made(found: Any) -> Any:
    """A class stands for what it makes without arguments."""
    return found() if isinstance(found, type) else found
