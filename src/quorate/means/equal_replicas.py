"""Making replicas equal: copying one worker's numbers to all others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.core.contracts import Wire
from quorate.core.local_tensor import local
from quorate.replica.optimizer_state import optimizer_from_plain, optimizer_to_plain, write_back, write_numbers

_WORD = 8
"""Bytes."""
_AT_ONCE = 1 << 25
"""Bytes of one broadcast."""


def copy_tensors(tensors: Sequence[Tensor], wire: Wire, root: int = 0) -> None:
    """Write the numbers of `root` into the `tensors` of every worker, which have the same shapes and dtypes.

    Cost: on the CPU one broadcast for each 32 MB, which is also the memory that it takes beside the largest tensor; on
    other devices one per device and dtype.
    """
    by_device: dict[torch.device, list[Tensor]] = {}
    for x in map(local, tensors):
        by_device.setdefault(x.device, []).append(x.detach())
    with torch.no_grad():
        for device, own in by_device.items():
            if device.type != "cpu":
                _copy_by_broadcasts(own, wire, root)
                continue
            for group in _groups(own):
                _copy_bytes(group, wire, root)


def _groups(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield groups of tensors that travel together, in order."""
    group, nbytes = list[Tensor](), 0
    for x in tensors:
        if group and nbytes + x.numel() * x.itemsize > _AT_ONCE:
            yield group
            group, nbytes = [], 0
        group.append(x)
        nbytes += x.numel() * x.itemsize
    yield group


def _copy_bytes(tensors: list[Tensor], wire: Wire, root: int) -> None:
    words = [-(-x.numel() * x.element_size() // _WORD) for x in tensors]
    if not sum(words):
        return
    whole = wire.empty(sum(words), torch.int64)
    pieces = [
        piece.view(torch.uint8)[: x.numel() * x.element_size()].view(x.dtype)
        for x, piece in zip(tensors, whole.split(words), strict=True)
    ]
    if wire.rank == root:
        for x, piece in zip(tensors, pieces, strict=True):
            piece.copy_(x.reshape(-1))
    wire.broadcast(whole, root).wait()
    if wire.rank != root:
        for x, piece in zip(tensors, pieces, strict=True):
            write_numbers(x, piece)


def _copy_by_broadcasts(tensors: list[Tensor], wire: Wire, root: int) -> None:
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for x in tensors:
        by_dtype.setdefault(x.dtype, []).append(x)
    for dtype, own in by_dtype.items():
        whole = torch.cat([x.reshape(-1) for x in own])
        carried = whole.view(torch.uint8) if dtype in (torch.bool, torch.int16) else whole
        wire.broadcast(carried, root).wait()
        write_back(own, whole)


def can_be_averaged(dtype: torch.dtype) -> bool:
    """Return whether buffers of this dtype have a mean."""
    return dtype.is_floating_point or dtype.is_complex


def widened(x: Tensor) -> Tensor:
    """Return `x` in a dtype that supports addition: float8 as float32, half complex numbers as complex64."""
    if x.dtype == torch.complex32:
        return x.to(torch.complex64)
    return x.float() if x.is_floating_point() and x.dtype.itemsize == 1 else x


def average_tensors(tensors: Sequence[Tensor], wire: Wire) -> None:
    """Make the `tensors` of every worker the mean of all workers'. Cost: one all-reduce per device and dtype."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for x in tensors:
        kinds.setdefault((x.device, x.dtype), []).append(x.detach())
    with torch.no_grad():
        for own in kinds.values():
            whole = widened(torch.cat([x.reshape(-1) for x in own])).div_(wire.size)
            write_back(own, wire.all_reduce(whole).wait())


def agree_on(buffers: Sequence[Tensor], kind: Literal["none", "mean", "rank0"], wire: Wire) -> None:
    """Make the buffers of all workers equal: their mean, or rank 0's; those that have no mean become rank 0's."""
    if kind == "none":
        return
    if kind == "mean":
        average_tensors([x for x in buffers if can_be_averaged(x.dtype)], wire)
    copy_tensors([x for x in buffers if kind == "rank0" or not can_be_averaged(x.dtype)], wire)


def copy_optimizer(optimizer: Optimizer, wire: Wire, root: int = 0) -> None:
    """Copy the optimizer state and options of `root` to every worker: tensors, numbers and texts. Others stay."""
    tensors: list[Tensor] = []
    sent: Any = None
    if wire.rank == root:
        about, tensors = optimizer_to_plain(optimizer)
        kinds = [[list(x.shape), str(x.dtype).removeprefix("torch."), x.device.type] for x in tensors]
        sent = {**about, "tensors": kinds}
    sent = scatter_json(sent, wire, root)
    if wire.rank != root:
        here = optimizer.param_groups[0]["params"][0].device
        tensors = [
            torch.empty(shape, dtype=getattr(torch, dtype), device="cpu" if device == "cpu" else here)
            for shape, dtype, device in sent["tensors"]
        ]
    copy_tensors(tensors, wire, root)
    if wire.rank != root:
        optimizer_from_plain(optimizer, sent, tensors)


def scatter_json(value: Any, wire: Wire, root: int = 0) -> Any:
    """Return the `value` of `root`, plain JSON, on every worker."""
    pieces = [_bytes_of(json.dumps(value))] * wire.size if wire.rank == root else None
    return json.loads(_text_of(wire.scatter(pieces, root).wait()))


def _bytes_of(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)


def _text_of(x: Tensor) -> str:
    return bytes(x.tolist()).decode()


def level(tensors: Sequence[Tensor], optimizer: Optimizer, wire: Wire, updates: int, *, always: bool = False) -> int:
    """Copy `tensors` and the optimizer state from the worker with the most `updates`; return their number.

    Nothing is copied where all workers have made equally many, unless `always`.
    """
    counts = [int(x) for x in wire.all_gather(torch.tensor([updates])).wait()]
    if always or len(set(counts)) > 1:
        ahead = counts.index(max(counts))
        copy_tensors(tensors, wire, ahead)
        copy_optimizer(optimizer, wire, ahead)
    return max(counts)
