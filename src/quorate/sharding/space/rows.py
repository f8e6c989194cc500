"""A tensor that has some rows of images, and knows so: torch's functions give what they give for whole images.

Its shape is that of the whole. Functions that look at other rows fetch these; those that look at one number, or one
row, are called as they are; all others are refused, so that nothing is calculated wrongly in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.sharding.space.functions import FUNCTIONS, Part, shared
from quorate.sharding.space.halos import ROWS, dealt
from quorate.sharding.tensor.activations import Together

_NUMBER_BY_NUMBER = frozenset(
    [
        *("relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "hardtanh", "hardswish"),
        *("hardsigmoid", "sigmoid", "logsigmoid", "tanh", "softplus", "softsign", "threshold"),
        *("add", "sub", "mul", "div", "true_divide", "radd", "rsub", "rmul", "rdiv", "rtruediv", "truediv", "subtract"),
        *("multiply", "divide", "iadd", "isub", "imul", "idiv", "itruediv", "neg", "exp", "log", "sqrt", "rsqrt"),
        *("pow", "rpow", "square", "abs", "sin", "cos", "clamp", "clip", "reciprocal", "maximum", "minimum", "lerp"),
        *("addcmul", "where", "lt", "le", "gt", "ge", "eq", "ne", "zeros_like", "ones_like", "view_as"),
        *("detach", "clone", "contiguous", "to", "float", "double", "half", "bfloat16", "type_as", "requires_grad"),
        *("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d"),
    ]
)
_ALONG = {"cat": 1, "concat": 1, "softmax": 1, "log_softmax": 1, "chunk": 2, "split": 2, "unbind": -1}
"""Functions along a dimension, and where among the arguments it stands."""
_DRAW_FOR_EACH = ("dropout", "alpha_dropout")
_ASK = frozenset(
    [
        *("dim", "ndimension", "is_floating_point", "is_complex", "element_size", "get_device", "register_hook"),
        *("retain_grad", "is_contiguous", "len", "hash"),
    ]
)
_PLAIN = ("_base", "grad")
"""Attributes that are of the rows here alone; FSDP2 and activation checkpointing look at them."""
_OF_WHOLE = ("shape", "size", "numel", "nelement")


class Rows(Tensor):
    """Some rows (dimension 2) of a tensor of `count` rows, as many as `Tensor.tensor_split` gives this worker."""

    count: int
    together: Together

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See the head of this file. Raises `ConfigurationError` for functions that are not known."""
        with torch._C.DisableTorchFunctionSubclass():
            return _called(func, list(args), dict(kwargs or {}))


def rows_with(x: Tensor, count: int, together: Together) -> Rows:
    """`x`, which has the rows here."""
    found = x.as_subclass(Rows)
    found.count, found.together = count, together
    return found


def part_of(rows: Rows) -> Part:
    """The plain tensor in it."""
    return Part(rows.as_subclass(Tensor), rows.count, rows.together)


def _called(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = getattr(func, "__name__", str(func))
    of = getattr(getattr(func, "__self__", None), "__name__", "")
    name = of if given in ("__get__", "__set__") else given.strip("_")
    if name in _OF_WHOLE:
        return _of_whole(name, *args, **kwargs)
    if given in ("__get__", "__set__") or name in _ASK:
        found = func(*args, **kwargs)
        if isinstance(found, Tensor) and name not in _PLAIN:
            raise _unknown(name)
        return found
    if name in FUNCTIONS:
        if not args:
            args = [kwargs.pop("input")]
        if not isinstance(args[0], Rows) or kwargs.get("out") is not None:
            raise _unknown(name)
        return _wrapped(FUNCTIONS[name](func, part_of(args[0]), *args[1:], **kwargs))
    if name in _ALONG:
        at = _ALONG[name]
        dim = kwargs.get("dim", args[at] if len(args) > at else 0)
        every = _rows_in(args)
        if not isinstance(dim, int) or name == "unbind" or dim % every[0].dim() == ROWS:
            raise _unknown(name)
    elif name == "getitem":
        _check_index(args[1])
    elif name not in _NUMBER_BY_NUMBER or "out" in kwargs:
        raise _unknown(name)
    return _each(func, name, args, kwargs, is_written=_writes(given, kwargs))


def _unknown(name: str) -> ConfigurationError:
    return ConfigurationError(
        f'{name} was called with images of which each worker has some rows (tensor="space"), and is not known for '
        "these; known are convolutions, poolings, norms over channels, and functions of single numbers"
    )


def _writes(given: str, kwargs: Mapping[str, Any]) -> bool:
    is_plain = given.endswith("_") and not given.endswith("__")
    return is_plain or given in ("__iadd__", "__isub__", "__imul__", "__itruediv__") or kwargs.get("inplace") is True


def _of_whole(name: str, x: Rows, *args: Any, **kwargs: Any) -> Any:
    shape = torch.Size([*Tensor.size(x)[:ROWS], x.count, *Tensor.size(x)[ROWS + 1 :]])
    if name in ("numel", "nelement"):
        return shape.numel()
    at = args[0] if args else kwargs.get("dim")
    return shape if name == "shape" or at is None else shape[at]


def _check_index(index: Any) -> None:
    """Channels may be chosen by slices."""
    every = index if isinstance(index, tuple) else (index,)
    if any(not isinstance(one, slice) for one in every) or (len(every) > ROWS and every[ROWS] != slice(None)):
        raise _unknown("an index of more than examples and channels")


def _rows_in(values: Sequence[Any]) -> list[Rows]:
    found: list[Rows] = []
    for value in values:
        if isinstance(value, Rows):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _rows_in(value)
    return found


def _each(func: Any, name: str, args: list[Any], kwargs: dict[str, Any], *, is_written: bool) -> Any:
    """A function that takes each row by itself."""
    every = _rows_in([*args, *kwargs.values()])
    first = every[0]
    if any((one.count, one.dim()) != (first.count, first.dim()) for one in every):
        shapes = ", ".join(str(tuple(_of_whole("shape", one))) for one in every)
        raise ConfigurationError(f'{name} was given images of other heights (tensor="space"): {shapes}')
    if is_written and not (args and isinstance(args[0], Rows)):
        raise _unknown(f"{name} into a tensor that is whole")
    args = [_fitted(x, first, name) for x in args]
    kwargs = {key: _fitted(x, first, name) for key, x in kwargs.items()}
    if name not in _DRAW_FOR_EACH:
        return _wrapped(func(*args, **kwargs), first)
    first.together.draw_apart()
    found = func(*args, **kwargs)
    first.together.draw_alike()
    return _wrapped(found, first)


def _fitted(x: Any, like: Rows, name: str) -> Any:
    """A tensor that all have whole: its rows here, where it has rows."""
    if isinstance(x, list | tuple) and any(isinstance(one, Tensor) for one in x):
        return type(x)(_fitted(one, like, name) for one in x)
    if not isinstance(x, Tensor) or isinstance(x, Rows):
        return x
    x = shared(x, like.together)
    at = x.dim() - like.dim() + ROWS
    if at < 0 or x.shape[at] == 1:
        return x
    if at > ROWS or x.shape[at] != like.count:
        raise ConfigurationError(
            f'{name} was given a tensor of the shape {tuple(x.shape)} with images of {like.count} rows (tensor="space")'
        )
    rows = dealt(like.count, like.together.size)[like.together.rank]
    return x.narrow(at, rows.start, len(rows))


def _wrapped(found: Any, like: Rows | None = None) -> Any:
    """Rows where there are some."""
    if isinstance(found, Part):
        return rows_with(found.x, found.count, found.together)
    if isinstance(found, list | tuple):
        return type(found)(_wrapped(one, like) for one in found)
    if like is None or not isinstance(found, Tensor) or (isinstance(found, Rows) and hasattr(found, "together")):
        return found
    return rows_with(found, like.count, like.together)
