"""How many heads a module of attention has, and what it is told where it has some of them only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.nn import Module

from quorate.core.errors import ConfigurationError
from quorate.sharding.tensor.plan import FUSED, widths

_SIZES = ("head_dim", "attention_head_size", "head_size", "dim_per_head", "d_head")
_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
_KEY_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head")
_WIDTHS = ("all_head_size", "split_size", "inner_dim")


def _number(module: Module, names: Sequence[str]) -> int | None:
    found = (vars(module).get(name) for name in names)
    return next((one for one in found if type(one) is int and one > 0), None)


def head_size(module: Module, inputs: Sequence[Any], *, is_fused: bool) -> int | None:
    """Numbers in one head, by what the module says of itself; None where it says nothing that fits."""
    width = widths(inputs[0])[1] // (FUSED if is_fused else 1)
    size, count = _number(module, _SIZES), _number(module, _COUNTS)
    if size is None and count is not None and width % count == 0:
        size = width // count
    fits = size is not None and all(widths(one)[1] % size == 0 for one in inputs)
    return size if fits else None


def tell_heads(name: str, module: Module, width: int, workers: int) -> None:
    """Let a module of attention know that it has so many heads less; `width` is what its query has in all.

    Raises `ConfigurationError` where its heads are not to be shared evenly.
    """
    for key in (*_COUNTS, *_KEY_COUNTS):
        count = vars(module).get(key)
        if type(count) is int:
            if count % workers:
                raise ConfigurationError(
                    f"{name or 'the model'} has {key}={count}, which {workers} workers cannot share evenly"
                )
            setattr(module, key, count // workers)
    for key in _WIDTHS:
        if vars(module).get(key) == width:
            setattr(module, key, width // workers)
