"""Sound values in files of a run: rows of records as objects of their kind, and values of wrong types as missing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_type_hints

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter


MOST = 1e15
"""The greatest number that is accepted, of seconds, bytes, examples or anything else: floats are whole up to here."""


def is_number(value: object) -> bool:
    """Return whether it is a finite number within bounds."""
    return type(value) in (int, float) and -MOST <= value <= MOST  # type: ignore[operator]


def has_numbers(row: Mapping[str, Any], *names: str) -> bool:
    """Return whether all of these are present, and numbers."""
    return all(is_number(row.get(name)) for name in names)


def is_count(value: object) -> bool:
    """Return whether it is a whole number from 0 on."""
    return type(value) is int and 0 <= value <= MOST


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no file, or no object in it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def finite(value: Any) -> Any:
    """Return `value` for JSON, where NaN and infinity, and whole numbers beyond 64 bits, are text."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if type(value) is int and abs(value) > 2**63:
        return f"{'-' * (value < 0)}2^{value.bit_length() - 1}"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


T = TypeVar("T")
_BETWEEN = {"workers": (0, 10**6), "status": (1 - 2**31, 2**31 - 1)}
"""Bounds of whole numbers in some fields, whatever row they are in."""
_MODELS: dict[type, type[BaseModel]] = {}
_CHECKERS: dict[type, dict[str, TypeAdapter[Any]]] = {}


def row_of(kind: type[T], row: Mapping[str, Any]) -> T | None:
    """Return `row` as an object of its kind; None if a value is missing or damaged. Further keys are ignored."""
    if kind not in _MODELS:
        _MODELS[kind] = _model(kind)
    try:
        return kind(**_MODELS[kind].model_validate(row).__dict__)
    except ValueError:
        return None


def sound_parts(values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the values of the right types in the dataclass `kind`, and those of keys that it does not have."""
    if kind not in _CHECKERS:
        _CHECKERS[kind] = _checkers(kind)
    checkers = _CHECKERS[kind]
    return {key: x for key, x in values.items() if key not in checkers or x is None or _fits(checkers[key], x)}


def _fits(checker: TypeAdapter[Any], value: object) -> bool:
    try:
        checker.validate_python(value, strict=True)
    except ValueError:
        return False
    return True


def _model(kind: Any) -> type[BaseModel]:
    from pydantic import ConfigDict, create_model  # 0.1 s, which a closing line without rows does not take

    hints = _believed(kind)
    wanted: Any = {
        entry.name: (hints[entry.name], ... if entry.default is MISSING else entry.default) for entry in fields(kind)
    }
    return create_model(kind.__name__, __config__=ConfigDict(strict=True), **wanted)


def _checkers(kind: Any) -> dict[str, TypeAdapter[Any]]:
    from pydantic import TypeAdapter

    return {name: TypeAdapter(hint) for name, hint in _believed(kind).items()}


def _believed(kind: Any) -> dict[str, Any]:
    """Return the types by field, with bounds of numbers: whole ones are counts, ranks and seeds; a loss is any."""
    from pydantic import Field

    believed: dict[object, Any] = {
        float: Annotated[float, Field(ge=-MOST, le=MOST, allow_inf_nan=False)],
        int: Annotated[int, Field(ge=0, le=int(MOST))],
    }
    believed |= {kind_of_number | None: Union[as_believed, None] for kind_of_number, as_believed in believed.items()}  # type: ignore[operator]  # noqa: UP007
    special = {"loss": get_type_hints(kind).get("loss")}
    special |= {name: Annotated[int, Field(ge=least, le=most)] for name, (least, most) in _BETWEEN.items()}
    hints = {name: special.get(name, believed.get(hint, hint)) for name, hint in get_type_hints(kind).items()}
    return {entry.name: hints[entry.name] for entry in fields(kind)}
