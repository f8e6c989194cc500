"""Settings as a user writes them, held against the dataclass that declares them."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from quorate.core.errors import ConfigurationError, unknown

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def settings_for(declared: type, raw: Mapping[str, object], label: str | None = None) -> dict[str, Any]:
    """Return `raw`, each value checked against the type of the field of `declared` (a dataclass) that it names.

    Types are strict: `True`, `"3"` and 3.5 are no integers; 3 is a float. Types that JSON and TOML lack are converted
    (a list to a tuple). Fields missing in `raw` are missing in the result. `label` names `declared` in errors (by
    default its class name). Raises `ConfigurationError` for an unknown field (the known ones are listed) and for a
    value of another type.
    """
    known = [field.name for field in dataclasses.fields(declared) if field.init]
    of_what = label or declared.__name__
    settings = {}
    for name, value in raw.items():
        if name not in known:
            raise unknown(f"setting of {of_what}", name, known)
        settings[name] = _checked(f"{name} of {of_what}", _adapter(declared, name), value)
    return settings


def written_settings(text: str, kind: str) -> tuple[str, dict[str, object]]:
    """Parse `name:key=value,key=value` into the name and the settings. Raises `ConfigurationError` for any other text.

    Semicolons separate settings as well, where commas separate other things; commas in brackets separate the items of a
    list. `kind` is the noun for the name in the error.
    """
    name, _, rest = text.partition(":")
    raw: dict[str, object] = {}
    for piece in filter(None, re.split(r"[,;](?![^\[]*\])", rest)):
        key, equals, value = piece.partition("=")
        if not equals:
            raise ConfigurationError(
                f'"{piece}" in the {kind} "{text}" is not a setting; write {name}:key=value,key=value'
            )
        raw[key] = _value(value)
    return name, raw


def _value(written: str) -> object:
    try:
        return json.loads(written)
    except ValueError:
        return written


def _checked(place: str, adapter: TypeAdapter[Any], value: object) -> Any:
    from pydantic import ValidationError  # it takes a tenth of a second, which a wrong option need not wait for

    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        if isinstance(value, str | list | dict):
            try:
                return adapter.validate_json(json.dumps(value), strict=True)
            except (ValidationError, TypeError):
                pass  # the first error describes the value as it was given
        ways = dict.fromkeys(wanted_in_words(line["msg"]) for line in error.errors())
        if "a number" in ways:
            ways.pop("a whole number", None)
        wanted = " or ".join(ways)
        raise ConfigurationError(f"the setting {place} is {value!r}; it should be {wanted}") from None


@cache
def _hints(declared: type) -> Mapping[str, Any]:
    return typing.get_type_hints(declared, include_extras=True)


@cache
def _adapter(declared: type, name: str) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter

    hint = _hints(declared)[name]
    try:
        return TypeAdapter(hint)
    except PydanticSchemaGenerationError:
        # A class of ours, such as a codec: an instance of it is right, anything else is not.
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))


_WORDS = (
    (r"a valid integer(, (unable to parse|got a number).*)?", "a whole number"),
    (r"a valid number(, unable to parse.*)?", "a number"),
    (r"a valid boolean(, unable to interpret input)?", "true or false"),
    (r"a valid string", "text"),
    (r"a valid (list|tuple|sequence)", "a list"),
    (r"a valid (dictionary|dict)", "a table"),
    (r"greater than or equal to (\S+)", r"at least \1"),
    (r"less than or equal to (\S+)", r"at most \1"),
    (r"greater than (\S+)", r"above \1"),
    (r"less than (\S+)", r"below \1"),
)


def wanted_in_words(message: str) -> str:
    """Return "a whole number" for "Input should be a valid integer"; other messages lose their beginning."""
    type_in_words = message.removeprefix("Value error, ").removeprefix("Input should be ")
    for pattern, words in _WORDS:
        if (match := re.fullmatch(pattern, type_in_words)) is not None:
            return match.expand(words)
    return type_in_words
