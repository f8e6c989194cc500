"""State as JSON beside tensors, so that nothing has to be pickled.

JSON says null, booleans, numbers, text and lists as they are. Everything else is an object with one member, its mark:

    {"tensor": "name"}          a tensor of the file, by name
    {"tuple": [...]}            a tuple
    {"dict": [[key, value]]}    a dict; keys are text or whole numbers
    {"Counter": [[key, value]]} a collections.Counter (some schedulers have one)

So a reader in plain torch is a function of one object, given to `json.loads` as its `object_hook`: see `decoded`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quorate.core.errors import CheckpointError, ConfigurationError

ABOUT = "quorate"
"""The key of a tensor file's metadata under which the JSON stands."""


def encoded(value: Any, name: str, put: Callable[[str, Tensor], str]) -> Any:
    """`value` as JSON; `put(name, tensor)` is called for each of its tensors and says the name it is kept under.

    Raises `ConfigurationError` naming the place of what cannot be kept: anything but None, booleans, numbers, text,
    dense tensors, and lists, tuples and dicts (with keys of text or whole numbers) of these.
    """
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise ConfigurationError(f"quorate.save cannot keep {name}: it is no dense tensor of numbers")
        return {"tensor": put(name, value.detach())}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | str | int | float):
        return value if value is None or isinstance(value, bool | str) else _number(value)
    if isinstance(value, list):
        return [encoded(item, _inside(name, place), put) for place, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": [encoded(item, _inside(name, place), put) for place, item in enumerate(value)]}
    if isinstance(value, Mapping):
        pairs = [[_key(key, name), encoded(item, _inside(name, key), put)] for key, item in value.items()]
        return {"Counter" if isinstance(value, Counter) else "dict": pairs}
    raise ConfigurationError(
        f"quorate.save cannot keep {name}, which is a {type(value).__name__}; it keeps numbers, text, tensors, and "
        "lists, tuples and dicts of these"
    )


def _inside(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def _number(value: int | float) -> int | float:
    return int(value) if isinstance(value, int) else float(value)


def _key(key: object, name: str) -> str | int:
    if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
        return key
    raise ConfigurationError(f"quorate.save cannot keep {name}: it has the key {key!r}, and keys are text or integers")


def decoded(text: str, tensors: Mapping[str, Tensor]) -> Any:
    """What `encoded` said; raises `CheckpointError` for anything else."""

    def plain(marked: dict[str, Any]) -> Any:
        ((mark, held),) = marked.items()
        if mark == "tensor":
            return tensors[held]
        return _KINDS[mark](held)

    try:
        return json.loads(text, object_hook=plain)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"what stands beside the tensors cannot be read: {error!r}") from None


_KINDS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "dict": dict, "Counter": lambda held: Counter(dict(held))}
