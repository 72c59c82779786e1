"""Base class of every config: frozen, strict about names, and clear about mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    field_validator,
)
from pydantic_core import PydanticKnownError

from localpolicy.errors import ConfigError, nearest, shown

AUTO: Any = "auto"  # value of a setting that follows the log, until it is resolved
T = TypeVar("T")
# A field that may be `auto`. Its type is that of the resolved value: code behind `resolve` never meets the word, and
# arithmetic with it would fail at once.
OrAuto = Annotated[
    T,
    WrapValidator(lambda value, rest: AUTO if isinstance(value, str) and value == AUTO else rest(value)),
    PlainSerializer(lambda value: value),
]


def repeated(option: str, metavar: str | None = None) -> dict[str, JsonValue]:
    """Schema extra of a list that the command line takes as a repeated option; others are written a,b."""
    return {"repeated": option, "metavar": metavar}


class Settings(BaseModel):
    """A frozen group of named values; a variant is a copy with changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError("\n".join(_line(type(self), problem) for problem in error.errors())) from None

    # Pydantic's mark of an __init__ that only validates: within a larger config ours is not called, and the larger one
    # reports where in it the problem lies.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("*", mode="before")
    @classmethod
    def _tell_truth_from_numbers(cls, value: Any, about: ValidationInfo) -> Any:
        """Refuse YAML's `yes` and `on` for a number, and 0, `f` and `off` for a truth value."""
        if about.field_name is None or not isinstance(value, bool | int | float | str):
            return value
        kinds = _kinds(cls.model_fields[about.field_name].annotation)
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise PydanticKnownError("float_type" if float in kinds else "int_type")
        if kinds - {type(None)} == {bool} and str(value).lower() not in ("true", "false"):
            raise PydanticKnownError("bool_type")
        return value

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, prefix: str = "", context: Mapping[str, Any] | None = None) -> Self:
        """Validate `values`; ConfigError with one line per problem, each naming the key, which `prefix` completes."""
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


def _kinds(annotation: Any) -> set[Any]:
    """Types that a field may have."""
    inside = get_args(annotation)
    return set().union(*map(_kinds, inside)) if inside else {annotation} if isinstance(annotation, type) else set()


# Pydantic's kinds of problem -> what was expected, in our words.
EXPECTED = {
    "greater_than": "a number greater than {gt:g}",
    "greater_than_equal": "a number greater than or equal to {ge:g}",
    "less_than": "a number less than {lt:g}",
    "less_than_equal": "a number less than or equal to {le:g}",
    "finite_number": "a finite number",
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "literal_error": "{expected}",
    "dict_type": "names with values",
    "missing": "a value",
}


def _line(settings: type[BaseModel], problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        return f"{key}: no such key{nearest(location[-1], _fields_at(settings, location[:-1]))}"
    came = "" if problem["type"] == "missing" else f", got {shown(problem['input'])}"
    if problem["type"] in EXPECTED:
        return f"{key}: expected {EXPECTED[problem['type']].format(**problem.get('ctx', {}))}{came}"
    said, came = problem["msg"].removeprefix("Value error, "), "" if problem["type"] == "value_error" else came
    return f"{key}: {said[0].lower()}{said[1:]}{came}" if key else f"{said}{came}"


def _fields_at(settings: type[BaseModel], path: list[str]) -> list[str]:
    for step in path:
        annotation = settings.model_fields[step].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        settings = annotation
    return list(settings.model_fields)
