"""Trials with the blocks of a script, and on this machine, after its steps were timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

_PROBES = 5
_COPIED = 1 << 25
"""Bytes."""


def tensors_in(x: Any) -> list[Tensor]:
    """The first tensor that is there, in a list; none where there is none."""
    if isinstance(x, Tensor):
        return [x]
    inside = list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, tuple | list) else []
    return next((tensors for item in inside if (tensors := tensors_in(item))), [])


def fixed_shares(
    blocks: Mapping[str, Module], inputs: Mapping[str, tuple[Any, Any]], examples: int
) -> tuple[float, float]:
    """Return the shares of the seconds of both passes that do not depend on the number of examples, by a line through
    one example and all, with no parameters in a cache. 0 if blocks cannot be called with one example."""
    names = [name for name in blocks if name in inputs]
    if not names or examples < 2:
        return 0.0, 0.0
    calls = [(blocks[name], *inputs[name]) for name in names]
    try:
        whole = _seconds([(block, *_first(args, kwargs, examples, examples)) for block, args, kwargs in calls])
        one_example = _seconds([(block, *_first(args, kwargs, 1, examples)) for block, args, kwargs in calls])
    except (RuntimeError, TypeError, ValueError, IndexError):  # a block that is not of examples one by one
        return 0.0, 0.0
    shares = [
        (x - (most - x) / (examples - 1)) / most if most > 0 else 0.0
        for x, most in zip(one_example, whole, strict=True)
    ]
    return min(1.0, max(0.0, shares[0])), min(1.0, max(0.0, shares[1]))


def seconds_of_a_byte() -> float:
    """Return the seconds per byte of a copy that no cache holds."""
    source = torch.ones(_COPIED >> 2)
    into, seconds = torch.empty_like(source), []
    for _ in range(_PROBES):
        begin = time.perf_counter()
        into.copy_(source)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) / _COPIED


def _first(args: Any, kwargs: Any, count: int, examples: int) -> tuple[Any, Any]:
    def cut(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        part = x.detach()[:count].clone() if x.dim() and len(x) == examples else x.detach()
        return part.requires_grad_(x.requires_grad)

    return tuple(map(cut, args)), {name: cut(x) for name, x in kwargs.items()}


def _seconds(calls: Sequence[tuple[Module, Any, Any]]) -> tuple[float, float]:
    """Medians of the forward and of the backward passes of all these calls, one after the other."""
    forward, backward = [], []
    for _ in range(_PROBES):
        both = [0.0, 0.0]
        for block, args, kwargs in calls:
            begin = time.perf_counter()
            output = tensors_in(block(*args, **kwargs))[0]
            between = time.perf_counter()
            output.sum().backward()
            both[0] += between - begin
            both[1] += time.perf_counter() - between
        forward.append(both[0])
        backward.append(both[1])
    return statistics.median(forward), statistics.median(backward)
