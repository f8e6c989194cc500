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

_AT_ONCE, _AT_ONCE_ON_GPU = 1 << 22, 1 << 25
"""Bytes of one broadcast; on the CPU they stay in the processor's cache between two copies."""


def copy_tensors(tensors: Sequence[Tensor], wire: Wire, root: int = 0) -> None:
    """Write the numbers of `root` into the `tensors` of every worker, which have the same shapes and dtypes.

    Cost: on the CPU one broadcast for each 4 MB, on other devices for each 32 MB, which is also the memory that it
    takes. Tensors that are not contiguous take their own size more.
    """
    by_device: dict[torch.device, list[Tensor]] = {}
    for x in map(local, tensors):
        if x.numel():
            by_device.setdefault(x.device, []).append(x.detach())
    with torch.no_grad():
        for device, own in by_device.items():
            _copy_bytes(own, _AT_ONCE if device.type == "cpu" else _AT_ONCE_ON_GPU, wire, root)


def _copy_bytes(tensors: Sequence[Tensor], most: int, wire: Wire, root: int) -> None:
    """Copy the bytes of all `tensors`, one after the other, in equal pieces of at most `most` bytes."""
    lengths = [x.numel() * x.itemsize for x in tensors]
    total = sum(lengths)
    at_once = -(-total // -(-total // most))  # no last piece is small, and would go by messages
    memory = torch.empty(at_once, dtype=torch.uint8, device=tensors[0].device)
    homes: dict[int, Tensor] = {}
    for piece in _pieces(lengths, at_once):
        for index, _ in piece:
            homes.setdefault(index, _bytes_in(tensors[index]))
        parts = [homes[index][here] for index, here in piece]
        carried = memory[: sum(map(len, parts))]
        places = carried.split([len(part) for part in parts])
        if wire.rank == root:
            for part, place in zip(parts, places, strict=True):
                place.copy_(part)
        wire.broadcast(carried, root).wait()
        if wire.rank != root:
            for part, place in zip(parts, places, strict=True):
                part.copy_(place)
        for index, here in piece:
            x = tensors[index]
            if here.stop == lengths[index]:
                home = homes.pop(index)
                if wire.rank != root and not _lie_in_order(x):
                    write_numbers(x, home.view(x.dtype))


def _pieces(lengths: Sequence[int], most: int) -> Iterator[list[tuple[int, slice]]]:
    """Yield the pieces of `most` bytes of many tensors: the place of each tensor, and its bytes there."""
    piece, room = list[tuple[int, slice]](), most
    for index, length in enumerate(lengths):
        begin = 0
        while begin < length:
            end = min(length, begin + room)
            piece.append((index, slice(begin, end)))
            room, begin = room - (end - begin), end
            if not room:
                yield piece
                piece, room = [], most
    if piece:
        yield piece


def _lie_in_order(x: Tensor) -> bool:
    """Whether the bytes of `x` are in order in its memory."""
    return x.is_contiguous() and not x.is_conj() and not x.is_neg()


def _bytes_in(x: Tensor) -> Tensor:
    """Return the bytes of `x`, in its memory if they lie there in order."""
    own = x if _lie_in_order(x) else x.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return own.as_strided((own.numel(),), (1,)).view(torch.uint8)


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
