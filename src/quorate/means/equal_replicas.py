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
    """Write `root`'s numbers into everyone's `tensors` (of equal kinds).

    Cost: on the CPU one broadcast for each 32 MB, which is also the memory that it takes beside the largest tensor; on
    other devices one per device and dtype.
    """
    by_device: dict[torch.device, list[Tensor]] = {}
    for x in map(local, tensors):
        by_device.setdefault(x.device, []).append(x.detach())
    with torch.no_grad():
        for device, some in by_device.items():
            if device.type != "cpu":
                _copy_by_broadcasts(some, wire, root)
                continue
            for group in _groups(some):
                _copy_bytes(group, wire, root)


def _groups(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors that travel together, in their order."""
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
    for dtype, some in by_dtype.items():
        whole = torch.cat([x.reshape(-1) for x in some])
        carried = whole.view(torch.uint8) if dtype in (torch.bool, torch.int16) else whole
        wire.broadcast(carried, root).wait()
        write_back(some, whole)


def can_be_averaged(dtype: torch.dtype) -> bool:
    """Whether buffers of it have a mean."""
    return dtype.is_floating_point or dtype.is_complex


def widened(x: Tensor) -> Tensor:
    """`x` in a dtype in which it can be added up: float8 as float32, half complex numbers as complex64."""
    if x.dtype == torch.complex32:
        return x.to(torch.complex64)
    return x.float() if x.is_floating_point() and x.dtype.itemsize == 1 else x


def average_tensors(tensors: Sequence[Tensor], wire: Wire) -> None:
    """Make everyone's `tensors` the mean of all workers', one all-reduce per device and dtype."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for x in tensors:
        kinds.setdefault((x.device, x.dtype), []).append(x.detach())
    with torch.no_grad():
        for some in kinds.values():
            whole = widened(torch.cat([x.reshape(-1) for x in some])).div_(wire.size)
            write_back(some, wire.all_reduce(whole).wait())


def agree_on(buffers: Sequence[Tensor], kind: Literal["none", "mean", "rank0"], wire: Wire) -> None:
    """Make everyone's buffers what a strategy says of them; of a mean, what cannot be averaged is rank 0's."""
    if kind == "none":
        return
    if kind == "mean":
        average_tensors([x for x in buffers if can_be_averaged(x.dtype)], wire)
    copy_tensors([x for x in buffers if kind == "rank0" or not can_be_averaged(x.dtype)], wire)


def copy_optimizer(optimizer: Optimizer, wire: Wire, root: int = 0) -> None:
    """Give everyone `root`'s optimizer state and options; other than tensors, numbers and texts, all keep theirs."""
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
    """`root`'s `value`, plain JSON, on every worker."""
    pieces = [_bytes_of(json.dumps(value))] * wire.size if wire.rank == root else None
    return json.loads(_text_of(wire.scatter(pieces, root).wait()))


def _bytes_of(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)


def _text_of(x: Tensor) -> str:
    return bytes(x.tolist()).decode()


def level(tensors: Sequence[Tensor], optimizer: Optimizer, wire: Wire, updates: int, *, always: bool = False) -> int:
    """Copy `tensors` and the optimizer's state from the worker with the most `updates`; how many.

    Nothing where all have made equally many, unless `always`.
    """
    made = [int(x) for x in wire.all_gather(torch.tensor([updates])).wait()]
    if always or len(set(made)) > 1:
        ahead = made.index(max(made))
        copy_tensors(tensors, wire, ahead)
        copy_optimizer(optimizer, wire, ahead)
    return max(made)
