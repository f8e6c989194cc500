"""The size of a smaller model: parameters, bytes, operations on kept numbers, and the time of its passes."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.flop_counter import FlopCounterMode

from quorate.buckets.flat import sum_dtype
from quorate.core.masks import Mask

_SECONDS = 0.4
"""After about so long the time of passes is known well enough."""
_LEAST, _MOST = 3, 20
"""Passes that are timed."""


@dataclass(frozen=True)
class Inputs:
    """The arguments of a forward pass."""

    positional: Sequence[Any] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Size:
    """The size of a model, and its loss where there is an evaluation."""

    parameters: int
    """Trained numbers that are kept."""
    vector_bytes: int
    """Bytes of these in a vector, without a header: kept numbers times their bytes."""
    operations: float | None = None
    """Multiplications and additions of one forward pass that involve kept weights; None without a sample."""
    loss: float | None = None
    forward: float | None = None
    """Seconds of a forward pass on the sample: the fastest of several."""
    backward: float | None = None
    """Seconds of a backward pass."""
    file_bytes: int | None = None
    """Bytes of the packed file, where it was asked for."""


def size_of(
    model: Module,
    named: Sequence[tuple[str, Tensor]],
    masks: Mapping[Tensor, Mask],
    *,
    sample: Tensor | Inputs | None = None,
    loss: float | None = None,
    is_timed: bool = False,
) -> Size:
    """Return the size of a model with these trained parameters and masks.

    Args:
        sample: A batch of inputs, for which operations of the forward pass are counted. A dense kernel makes all of
            them; the count is of those on kept weights.
        is_timed: Whether forward and backward passes on the sample are timed as well.

    Cost: a forward pass; if timed, a copy of the model and some passes, for about half a second.
    """
    inputs = Inputs((sample,)) if isinstance(sample, Tensor) else sample
    counts = [(p.numel() if p not in masks else masks[p].count, sum_dtype(p.dtype).itemsize) for _, p in named]
    operations = None if inputs is None else _operations(model, masks, inputs)
    forward, backward = (None, None) if inputs is None or not is_timed else pass_seconds(model, inputs)
    nbytes = sum(count * itemsize for count, itemsize in counts)
    return Size(sum(count for count, _ in counts), nbytes, operations, loss, forward, backward)


def pass_seconds(model: Module, inputs: Inputs) -> tuple[float | None, float | None]:
    """Return the seconds of a forward and of a backward pass of a copy of `model`: the fastest of 3 to 20.

    The backward pass begins from the sum of all outputs of floats. Generators of random numbers stay as they are. None
    for a model that cannot be copied.
    """
    twin = _without_hooks(model)
    if twin is None:
        return None, None
    parameters = [p for p in twin.parameters() if p.requires_grad]
    device = next((p.device for p in parameters), torch.device("cpu"))
    times: list[tuple[float, float]] = []
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        end = _now(device)
        until = end + _SECONDS
        while len(times) <= _LEAST or (len(times) <= _MOST and end < until):
            begin = end
            total = sum(x.float().sum() for x in _floats(twin(*inputs.positional, **inputs.named)))
            middle = _now(device)
            if isinstance(total, Tensor) and total.requires_grad:
                torch.autograd.grad(total, parameters, allow_unused=True)
            end = _now(device)
            times.append((middle - begin, end - middle))
    forwards, backwards = zip(*times[1:], strict=True)
    return min(forwards), min(backwards)


def _without_hooks(model: Module) -> Module | None:
    """Return a copy of `model` without the hooks of its modules; None if it cannot be copied."""
    hooks = (x for module in model.modules() for name, x in vars(module).items() if "_hooks" in name and x)
    try:
        return copy.deepcopy(model, {id(x): type(x)() for x in hooks})
    except (TypeError, RuntimeError):  # it holds a lock, a generator, or tensors of a graph
        return None


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.clock_gettime(time.CLOCK_MONOTONIC)  # not virtual time, if workers are virtual


def _floats(outputs: Any) -> Iterator[Tensor]:
    """Yield the tensors of floats in the outputs of a model."""
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point():
            yield outputs
    elif isinstance(outputs, Mapping):
        yield from _floats(list(outputs.values()))
    elif isinstance(outputs, list | tuple):
        for x in outputs:
            yield from _floats(x)


def _operations(model: Module, masks: Mapping[Tensor, Mask], inputs: Inputs) -> float:
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(*inputs.positional, **inputs.named)
    finally:
        for module, training in was_training.items():
            module.training = training
    counts = {path: sum(flops.values()) for path, flops in counter.get_flop_counts().items()}
    total, root = float(counts.get("Global", 0)), type(model).__name__
    for name, module in model.named_modules():
        flops = counts.get(f"{root}.{name}" if name else root, 0) if not list(module.children()) else 0
        weights = [masks[p] for p in module.parameters(recurse=False) if p in masks and p.dim() > 1]
        if flops and weights:
            kept, numel = sum(mask.count for mask in weights), sum(mask.kept.numel() for mask in weights)
            total -= flops * (1 - kept / numel)
    return total


def table(sizes: Mapping[str, Size]) -> str:
    """Return sizes side by side, one row for each figure that is known."""
    rows = [["", *sizes]]
    for title, values in (
        ("parameters", [f"{size.parameters:,}" for size in sizes.values()]),
        ("bytes of a vector", [f"{size.vector_bytes:,}" for size in sizes.values()]),
        ("bytes of the packed file", [_known(size.file_bytes, "{:,}") for size in sizes.values()]),
        ("operations", [_known(size.operations, "{:,.0f}") for size in sizes.values()]),
        ("forward pass, ms", [_known(size.forward, "{:.3g}", 1e3) for size in sizes.values()]),
        ("backward pass, ms", [_known(size.backward, "{:.3g}", 1e3) for size in sizes.values()]),
        ("loss", [_known(size.loss, "{:.4g}") for size in sizes.values()]),
    ):
        if any(values):
            rows.append([title, *values])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    return "\n".join(lines)


def _known(value: float | None, form: str, factor: int | float = 1) -> str:
    return "" if value is None or not math.isfinite(value) else form.format(value * factor)
