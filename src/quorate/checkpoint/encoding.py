"""State as JSON beside tensors, without pickling; vectors of a worker's layout become their parts in it.

JSON has null, booleans, numbers, text and lists as they are. Everything else is an object with one member, its mark:

    {"tensor": "name"}          a tensor of the file, by name
    {"piece": ["name", 6, 12]}  the rows from 6 on of a tensor that has 12
    {"tuple": [...]}            a tuple
    {"dict": [[key, value]]}    a dict; keys are text or whole numbers
    {"Counter": [[key, value]]} a collections.Counter (some schedulers have one)

So a reader in plain torch is a function of one object, passed to `json.loads` as its `object_hook`: see `decoded`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from quorate.checkpoint.pieces import piece_from, piece_here, with_rows
from quorate.checkpoint.tensor_file import can_be_written
from quorate.core.errors import CheckpointError, ConfigurationError
from quorate.core.local_tensor import local
from quorate.core.vectors import Flat, Layout, bare_layout, header_in

ABOUT = "quorate"
"""The key of the JSON in a tensor file's metadata."""


_DEEPEST = 100
"""Nesting of lists, tuples and dicts; deeper values could not be read again."""
_LONGEST = 4096
"""Bits of a whole number, for the same reason."""
_LENGTH = 8
"""Bytes of a length."""


KEEP = "quorate.save cannot keep"


def check_tensor(name: str, x: Tensor, cannot: str = KEEP) -> Tensor:
    """Return `x`. Raises `ConfigurationError` for a tensor that cannot be kept."""
    if not can_be_written(x):
        kind = x.dtype if x.layout is torch.strided else x.layout
        raise ConfigurationError(f"{cannot} {name} ({kind}): it is not a dense tensor of usual numbers")
    return x


def encoded(value: Any, name: str, put: Callable[[str, Tensor], str], *, depth: int = 0, cannot: str = KEEP) -> Any:
    """Return `value` as JSON; `put(name, tensor)` is called for each of its tensors, and returns its name in the file.

    Raises `ConfigurationError` with the place of a value that cannot be kept. None, booleans, numbers, text and dense
    tensors can be kept. So can lists, tuples and dicts of these (keys of text or whole numbers), at most 100 deep.
    `cannot` is the beginning of the sentence.
    """
    if isinstance(value, Tensor):
        kept_name, rows = put(name, local(check_tensor(name, value, cannot)).detach()), piece_here(value)
        return {"tensor": kept_name} if rows is None else {"piece": [kept_name, *rows.as_json]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | str | int | float):
        return value if value is None or isinstance(value, bool | str) else _number(value, name, cannot)
    if depth > _DEEPEST:
        outermost = ".".join(name.split(".")[:2])
        raise ConfigurationError(f"{cannot} {outermost}: it is more than {_DEEPEST} deep, or contains itself")
    inside = partial(encoded, put=put, depth=depth + 1, cannot=cannot)
    if isinstance(value, list):
        return [inside(item, _inside(name, place)) for place, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": [inside(item, _inside(name, place)) for place, item in enumerate(value)]}
    if isinstance(value, Mapping):
        pairs = [[_key(key, name, cannot), inside(item, _inside(name, key))] for key, item in value.items()]
        return {"Counter" if isinstance(value, Counter) else "dict": pairs}
    raise ConfigurationError(
        f"{cannot} {name}, which is a {type(value).__name__}; allowed are numbers, text, tensors, and lists, tuples "
        "and dicts of these"
    )


def _inside(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def _number(value: int | float, name: str, cannot: str) -> int | float:
    if isinstance(value, int) and value.bit_length() > _LONGEST:
        raise ConfigurationError(f"{cannot} {name}: it is a number of more than {_LONGEST} bits")
    return int(value) if isinstance(value, int) else float(value)


def _key(key: object, name: str, cannot: str) -> str | int:
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return int(_number(key, f"a key of {name}", cannot))
    raise ConfigurationError(f"{cannot} {name}: it has the key {key!r}, and keys are text or integers")


def decoded(text: str, tensors: Mapping[str, Tensor], *, prefix: str | None = None) -> Any:
    """Return the value that was `encoded`; raises `CheckpointError` for anything else. With `prefix`, the name passed
    to `encoded`, every tensor must have the name of its own place."""
    try:
        return _plain(json.loads(text), tensors, prefix)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the entry beside the tensors cannot be read: {error!r}") from None


def as_bytes(value: Any, name: str, cannot: str) -> Tensor:
    """Return `value` as bytes, uint8 (n): the length of its JSON, the JSON, and its tensors as safetensors. Raises as
    `encoded`."""
    tensors: dict[str, Tensor] = {}

    def put(_: str, x: Tensor) -> str:
        tensors[str(len(tensors))] = x.cpu().clone(memory_format=torch.contiguous_format)
        return str(len(tensors) - 1)

    text = json.dumps(encoded(value, name, put, cannot=cannot)).encode()
    tail = safetensors.torch.save(tensors) if tensors else b""
    return torch.frombuffer(bytearray(len(text).to_bytes(_LENGTH) + text + tail), dtype=torch.uint8)


def from_bytes(payload: Tensor) -> Any:
    """Return the value of which `as_bytes` returned the bytes."""
    whole = payload.numpy().tobytes()
    end = _LENGTH + int.from_bytes(whole[:_LENGTH])
    return decoded(whole[_LENGTH:end].decode(), safetensors.torch.load(whole[end:]) if whole[end:] else {})


def _plain(value: Any, tensors: Mapping[str, Tensor], name: str | None) -> Any:
    def inside(item: Any, key: object) -> Any:
        return _plain(item, tensors, None if name is None else _inside(name, key))

    if isinstance(value, list):
        return [inside(item, place) for place, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    ((mark, held),) = value.items()
    if mark in ("tensor", "piece"):
        kept, *rows = [held] if mark == "tensor" else held
        if name is not None and kept != name and not re.fullmatch(re.escape(name) + r"#\d+", kept):
            raise ValueError(f"{name} is said to be the tensor {kept}")
        return tensors[kept] if mark == "tensor" else with_rows(tensors[kept], piece_from(rows))
    if mark == "tuple" and isinstance(held, list):
        return tuple(inside(item, place) for place, item in enumerate(held))
    if mark not in _DICTS or not isinstance(held, list):
        raise ValueError(f"nothing is marked as {mark}")
    pairs = {_key_of(key): inside(item, key) for key, item in held}
    if len(pairs) != len(held):
        raise ValueError(f"{name or 'a dict'} has a key twice")
    return _DICTS[mark](pairs)


def _key_of(key: Any) -> str | int:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise TypeError(f"a key is {key!r}")
    return key


_DICTS: dict[str, Callable[[dict[str | int, Any]], Any]] = {"dict": dict, "Counter": Counter}


FLAT = "\x00flat"
"""The mark of the parts of a vector, and its header, separately."""
PIECES = "\x00pieces"
"""The mark of a vector by names of parameters, of which each file has some rows, and its header."""


def flats_as_parts(value: Any, of: Callable[[Flat], Any] | None = None) -> Any:
    """Return `value` with every `Flat` inside as a marked list of its parts, the header separately; or as
    `of(flat)`."""
    if isinstance(value, Flat):
        if of is not None:
            return of(value)
        *parts, last = value.parts
        numbers = last[: last.numel() - value.layout.header]
        return {FLAT: [*parts, numbers, header_in(value)]}  # the header's length differs with the size of the world
    if isinstance(value, dict):
        return {key: flats_as_parts(item, of) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([flats_as_parts(item, of) for item in value])
    return value


def parts_as_flats(value: Any, reads: Layout | Mapping[str, Callable[[Any], Flat]]) -> Any:
    """Return `value` with vectors in place of marked lists, over a layout, or read by their marks. Raises
    `CheckpointError` for vectors of another model."""
    by_mark = {FLAT: partial(flat_from, layout=reads)} if isinstance(reads, Layout) else reads
    if isinstance(value, dict):
        if len(value) == 1 and (mark := next(iter(value))) in by_mark:
            return by_mark[mark](value[mark])
        return {key: parts_as_flats(item, by_mark) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([parts_as_flats(item, by_mark) for item in value])
    return value


def flat_from(parts: list[Tensor], layout: Layout) -> Flat:
    """Return a vector over `layout` of these parts, the last of which is the header; one of another size is left out. A
    vector that had no header has none again. Raises `CheckpointError` for parts of another layout."""
    *numbers, header = parts
    layout = layout if header.numel() else bare_layout(layout)
    wanted = [
        (p.numel - layout.header * (place == len(layout.parts) - 1), p.dtype) for place, p in enumerate(layout.parts)
    ]
    if [(x.numel(), x.dtype) for x in numbers] != wanted:
        raise CheckpointError(
            "the checkpoint's vectors are of another model: their parts have other sizes or types; what was frozen "
            "then has to be frozen before quorate.distribute()"
        )
    vector = Flat.zeros(layout)
    for there, x in zip(vector.parts, numbers, strict=True):
        there[: x.numel()].copy_(x)
    if header.numel() == layout.header:
        header_in(vector).copy_(header)
    return vector
