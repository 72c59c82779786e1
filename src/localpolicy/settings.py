"""The base of every config: frozen, strict about names, and clear about what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from localpolicy.errors import ConfigError, nearest, shown


class Settings(BaseModel):
    """A frozen group of named values; a variant is a copy with changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, prefix: str = "", context: Mapping[str, Any] | None = None) -> Self:
        """Validate `values`, turning every problem into one line that names the key, which `prefix` completes."""
        try:
            return cls.model_validate(values, context=dict(context or {}))
        except ValidationError as error:
            raise ConfigError("\n".join(prefix + _line(cls, problem) for problem in error.errors())) from None

    def with_changes(self, assignments: Iterable[str]) -> Self:
        """A copy with `key.sub=value` assignments applied; values are read as YAML."""
        values = self.model_dump(exclude_unset=True)
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or not key:
                raise ConfigError(f"expected key=value, got '{assignment}'.")
            group = values
            *path, last = key.strip().split(".")
            for step in path:
                group = group.setdefault(step, {})
                if not isinstance(group, dict):
                    raise ConfigError(f"{key}: '{step}' is a value, not a group of settings.")
            group[last] = _yaml(text, key)
        return type(self).parse(values)


def _yaml(text: str, key: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(f"{key}: {shown(text)} cannot be read as a value.") from None
    if isinstance(value, str):
        try:  # YAML reads 1e-3 as text; people mean the number
            return float(value)
        except ValueError:
            return value
    return value


def _line(settings: type[BaseModel], problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        return f"{key}: no such key{nearest(location[-1], _fields_at(settings, location[:-1]))}"
    return f"{key}: {problem['msg'][0].lower()}{problem['msg'][1:]} (got {shown(problem['input'])})"


def _fields_at(settings: type[BaseModel], path: list[str]) -> list[str]:
    for step in path:
        annotation = settings.model_fields[step].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        settings = annotation
    return list(settings.model_fields)
