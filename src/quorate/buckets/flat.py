"""Laying many tensors out in few flat parts (tensor fusion); pure.

Parts are filled from the last tensor to the first, because that is mostly the order in which a backward pass finishes
gradients; `Fusion` can say another one. A tensor is never cut. A part is full with the tensor that reaches its limit:
large weights end parts, so the part that can be sent only at the very end is small.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.core.masks import Mask
from quorate.core.vectors import Layout, Part, Segment

PART_BYTES = 8 << 20
"""Bytes at which a part on the CPU is full."""
PART_BYTES_ON_GPU = 25 << 20
"""Bytes at which a part on a GPU is full, as in DDP: NCCL is faster with few large sums."""
FIRST_PART_BYTES = 1 << 20
"""Bytes at which the first part is full: few, so that something is under way early."""

_COUNTS = (torch.float32, torch.float64)
_AVERAGED = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
)


def sum_dtype(dtype: torch.dtype, narrow: torch.dtype | None = None) -> torch.dtype:
    """Return the dtype in which tensors of `dtype` are summed: their own; for bf16 and fp16 float32, unless it is
    `narrow`."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) and dtype is not narrow else dtype


def layout_of(
    tensors: Sequence[tuple[str, Tensor]],
    *,
    header: int = 0,
    part_bytes: int | None = None,
    first_part_bytes: int = FIRST_PART_BYTES,
    order: Sequence[int] = (),
    ends: Collection[int] = (),
    coded: Callable[[str, Tensor], bool] | None = None,
    narrow: torch.dtype | None = None,
    masks: Mapping[Tensor, Mask] | None = None,
) -> Layout:
    """Return the layout of named tensors, with `header` more elements at the end of the last part (float32 or float64).

    Of a tensor that several processes hold together it contains the local piece. One part holds tensors of one device
    and one dtype of summation (`sum_dtype`, also for `narrow`). Tensors for which `coded` is true have separate parts
    (`Part.coded`), and parts are then in the order in which a backward pass fills them. Parts are filled in `order`
    (numbers of all tensors). Behind so many tensors as `ends` says parts end, in place of where they are full. Of a
    tensor with one of `masks` only the kept numbers have places. Raises `ConfigurationError` for
    tensors that cannot be averaged (integers, booleans, numbers of 8 bits), and for those without numbers of their own.
    """
    whole, tensors = tensors, [(name, local(x)) for name, x in tensors]
    masks_in_order = [None if masks is None else masks.get(x) for _, x in whole]
    places: list[tuple[int, int]] = [(0, 0)] * len(tensors)
    parts: list[Part] = []
    sizes: list[int] = []
    open_parts: dict[tuple[torch.device, torch.dtype, bool], int] = {}
    for place, index in enumerate(order or reversed(range(len(tensors))), 1):
        name, x = tensors[index]
        _check(name, x)
        key = (x.device, sum_dtype(x.dtype, narrow), coded is not None and coded(*whole[index]))
        number = open_parts.get(key)
        if number is None:
            number = open_parts[key] = len(sizes)
            sizes.append(0)
            parts.append(Part(0, key[1], key[0], key[2]))
        places[index] = (number, sizes[number])
        mask = masks_in_order[index]
        sizes[number] += x.numel() if mask is None else mask.count
        is_first = number == 0 or parts[number].coded > any(part.coded for part in parts[:number])
        most = part_bytes or (PART_BYTES if x.device.type == "cpu" else PART_BYTES_ON_GPU)
        if place in ends:
            open_parts.clear()
        elif not ends and sizes[number] * key[1].itemsize >= (first_part_bytes if is_first else most):
            del open_parts[key]  # full: later gradients must not delay it
    if coded is not None:
        places, order = _as_filled(places, parts)
        parts, sizes = [parts[number] for number in order], [sizes[number] for number in order]
    if header and (not parts or parts[-1].dtype not in _COUNTS or parts[-1].coded):
        parts.append(Part(0, torch.float32, tensors[0][1].device if tensors else torch.device("cpu")))
        sizes.append(0)
    if header:
        sizes[-1] += header
    shapes = [tuple(x.shape) if m is None else (m.count,) for (_, x), m in zip(tensors, masks_in_order, strict=True)]
    columns = zip(tensors, whole, places, shapes, masks_in_order, strict=True)
    segments = tuple(
        Segment(name, shape, x.dtype, part, offset, None if x is of else of.numel(), mask)
        for (name, x), (_, of), (part, offset), shape, mask in columns
    )
    return Layout(segments, tuple(replace(p, numel=n) for n, p in zip(sizes, parts, strict=True)), header)


def words_of_tables(named: Sequence[tuple[str, Tensor]]) -> tuple[str, ...]:
    """Return tables in words, for `vectors.with_tables`. Raises `ConfigurationError` as `layout_of`."""
    for name, x in named:
        _check(name, x)
    return tuple(f"{name} {x.dtype} {tuple(x.shape)}" for name, x in named)


def _as_filled(places: list[tuple[int, int]], parts: Sequence[Part]) -> tuple[list[tuple[int, int]], list[int]]:
    """Return `places` (part, offset) of tensors, with parts numbered in the order in which a backward pass fills them,
    and the old number of each part. The last dense part comes last, as the header is sent at the very end.
    """
    first = {part: index for index, (part, _) in reversed(list(enumerate(places)))}
    order = sorted(first, key=lambda part: -first[part])
    dense = [part for part in order if not parts[part].coded and parts[part].dtype in _COUNTS]
    if dense:
        order.remove(dense[-1])
        order.append(dense[-1])
    return [(order.index(part), offset) for part, offset in places], order


def _check(name: str, x: Tensor) -> None:
    """Raise `ConfigurationError` for a tensor that has no place in a layout."""
    if is_lazy(x):
        raise ConfigurationError(
            f"{name} has no shape yet; run its lazy module once before you call quorate.distribute"
        )
    if not (x.is_floating_point() or x.is_complex()):
        raise ConfigurationError(f"{name} is {x.dtype}; only floating-point and complex tensors can be averaged")
    if x.dtype not in _AVERAGED:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _AVERAGED)
        raise ConfigurationError(f"{name} is {x.dtype}, which cannot be averaged; allowed are {known}")
    if x.is_meta or x.layout is not torch.strided:
        kind = "is on the meta device" if x.is_meta else f"has the layout {x.layout}"
        raise ConfigurationError(f"{name} {kind}; only dense tensors with values can be averaged")
    if any(stride == 0 and count > 1 for stride, count in zip(x.stride(), x.shape, strict=True)):
        raise ConfigurationError(
            f"{name} is expanded, so that several of its elements are one number in memory, and cannot be updated; "
            "make the parameter from its clone()"
        )


@dataclass(frozen=True)
class Fusion:
    """The size of parts, or their order and ends; without them `buckets.flat` decides.

    On CPUs no choice changes a bit of a sum: each number is added over the workers in the order of their ranks.
    """

    part_bytes: int | None = None
    """Bytes at which a part is full."""
    first_part_bytes: int | None = None
    """Bytes at which the first part is full."""
    order: tuple[str, ...] = ()
    """The names of all tensors in the order in which they are sent; empty: from the last one to the first."""
    ends: tuple[int, ...] = ()
    """The number of tensors up to the end of each part, in that order; empty: parts end where they are full."""

    def arguments(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of `buckets.flat.layout_of` for tensors of these names; of others no order is known."""
        sizes = {"part_bytes": self.part_bytes, "first_part_bytes": self.first_part_bytes}
        chosen: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
        if self.order and sorted(self.order) == sorted(names):
            numbers = {name: number for number, name in enumerate(names)}
            chosen |= {"order": [numbers[name] for name in self.order], "ends": self.ends}
        return chosen


BY_SIZE = Fusion()
"""Parts end where they are full, at the usual sizes."""
