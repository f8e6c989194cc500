"""The size of a pruned model: its parameters, the bytes of a vector, and operations on kept numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.flop_counter import FlopCounterMode

from quorate.buckets.flat import sum_dtype
from quorate.core.masks import Mask


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


def size_of(
    model: Module,
    named: Sequence[tuple[str, Tensor]],
    masks: Mapping[Tensor, Mask],
    *,
    sample: Tensor | None = None,
    loss: float | None = None,
) -> Size:
    """Return the size of a model with these trained parameters and masks.

    Args:
        sample: A batch of inputs, for which operations of the forward pass are counted. A dense kernel makes all of
            them; the count is of those on kept weights.
    """
    counts = [(p.numel() if p not in masks else masks[p].count, sum_dtype(p.dtype).itemsize) for _, p in named]
    operations = None if sample is None else _operations(model, masks, sample)
    nbytes = sum(count * itemsize for count, itemsize in counts)
    return Size(sum(count for count, _ in counts), nbytes, operations, loss)


def _operations(model: Module, masks: Mapping[Tensor, Mask], sample: Tensor) -> float:
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(sample)
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
        ("operations", [_known(size.operations, "{:,.0f}") for size in sizes.values()]),
        ("loss", [_known(size.loss, "{:.4g}") for size in sizes.values()]),
    ):
        if any(values):
            rows.append([title, *values])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    return "\n".join(lines)


def _known(value: float | None, form: str) -> str:
    return "" if value is None or not math.isfinite(value) else form.format(value)
