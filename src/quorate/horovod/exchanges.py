"""Gathers, broadcasts and exchanges of tensors, as Horovod's `allgather`, `broadcast`, `alltoall` and `barrier`.

Those that return a new tensor are differentiable, as in Horovod.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.horovod.handles import Grouped, Handle, applied, check, into, rows_of
from quorate.horovod.workers import ProcessSet, global_process_set, wait, when_members, workers


def summed(grad: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
    """Return the sum of the gradients of all workers."""
    x = grad.contiguous().clone()
    total = wait(workers().channel(name and f"{name}/grad", process_set).all_reduce(x.view(-1)), "allreduce")
    return total.view(grad.shape)


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Begin to gather the tensors of all workers; see `allgather`."""
    check(tensor, "allgather")
    when_members(process_set, "allgather")
    work = workers().channel(name, process_set).all_gather(rows_of(tensor))
    return Handle([work], lambda results: torch.cat([x.to(tensor.device) for x in results[0]]), "allgather")


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.name, ctx.process_set, ctx.shape = name, process_set, tensor.shape
        counts = allgather_async(torch.tensor([len(rows_of(tensor))]), name and f"{name}/counts", process_set)
        result: Tensor = allgather_async(tensor, name, process_set).synchronize()
        ctx.counts = counts.synchronize().tolist()
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        name, process_set = ctx.name, ctx.process_set
        total = summed(grads[0], name, process_set)
        return total.split(ctx.counts)[process_set.rank()].reshape(ctx.shape), None, None


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Return the tensors of all workers behind one another along their first axis, in order of rank.

    The first axes may differ in length, the others not. The gradient of the result is summed over all workers.
    """
    if not tensor.requires_grad:
        result: Tensor = allgather_async(tensor, name, process_set).synchronize()
        return result
    gathered: Tensor = applied(_Allgather, tensor, name, process_set)
    return gathered


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin to gather several tensors; the result is a list."""
    handles = [allgather_async(x, name and f"{name}/{place}", process_set) for place, x in enumerate(tensors)]
    return Grouped(handles, "grouped_allgather")


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Return several gathered tensors; each as `allgather`."""
    return [allgather(x, name and f"{name}/{place}", process_set) for place, x in enumerate(tensors)]


def _begin_broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, call: str) -> Handle:
    check(tensor, call)
    when_members(process_set, call)
    ranks = range(workers().joined.size) if process_set.ranks is None else process_set.ranks
    if root_rank not in ranks:
        raise ConfigurationError(f"hvd.{call} was given root_rank={root_rank!r}; the ranks are {list(ranks)}")
    x = tensor.detach().clone(memory_format=torch.contiguous_format)
    work = workers().channel(name, process_set).broadcast(x.view(-1), list(ranks).index(root_rank))
    return Handle([work], lambda results: results[0].view(tensor.shape), call)


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin to copy the tensor of `root_rank` to all workers; the result is a new tensor."""
    return _begin_broadcast(tensor, root_rank, name, process_set, "broadcast")


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Begin to copy the tensor of `root_rank` into that of all workers."""
    handle = _begin_broadcast(tensor, root_rank, name, process_set, "broadcast_")
    return Handle([], lambda _: into([tensor])([handle.synchronize()])[0], "broadcast_")


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.options = root_rank, name, process_set
        result: Tensor = broadcast_async(tensor, root_rank, name, process_set).synchronize()
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:
        root_rank, name, process_set = ctx.options
        total = summed(grads[0], name, process_set)
        return (total if workers().joined.rank == root_rank else torch.zeros_like(total)), None, None, None


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return a copy of the tensor of `root_rank`, which has the same shape and dtype on all workers."""
    if not tensor.requires_grad:
        result: Tensor = broadcast_async(tensor, root_rank, name, process_set).synchronize()
        return result
    copied: Tensor = applied(_Broadcast, tensor, root_rank, name, process_set)
    return copied


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Copy the tensor of `root_rank` into that of all workers, and return it."""
    result: Tensor = broadcast_async_(tensor, root_rank, name, process_set).synchronize()
    return result


def _splits(tensor: Tensor, splits: Tensor | Sequence[int] | None, size: int) -> list[int]:
    rows = len(tensor)
    if splits is None:
        if rows % size:
            raise ConfigurationError(
                f"hvd.alltoall was given {rows} rows, which {size} workers do not divide; pass splits"
            )
        return [rows // size] * size
    counts = [int(count) for count in splits]
    if len(counts) != size or min(counts) < 0 or sum(counts) != rows:
        raise ConfigurationError(f"hvd.alltoall was given splits {counts} for {rows} rows and {size} workers")
    return counts


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin to exchange rows; the result is as of `alltoall`."""
    check(tensor, "alltoall")
    when_members(process_set, "alltoall")
    pieces = rows_of(tensor).split(_splits(rows_of(tensor), splits, process_set.size()))
    work = workers().channel(name, process_set).all_to_all([piece.contiguous() for piece in pieces])

    def finish(results: list[Any]) -> Any:
        received = [x.to(tensor.device) for x in results[0]]
        rows = torch.cat(received)
        if splits is None:
            return rows
        return rows, torch.tensor([len(x) for x in received], dtype=torch.int32)

    return Handle([work], finish, "alltoall")


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Sequence[int], name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        rows, received = alltoall_async(tensor, splits, name, process_set).synchronize()
        ctx.options, ctx.shape = (received, name and f"{name}/grad", process_set), tensor.shape
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:
        rows, _ = alltoall_async(grads[0], *ctx.options).synchronize()
        return rows.reshape(ctx.shape), None, None, None


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of `tensor` to each worker, and return those received, behind one another in order of rank.

    Args:
        tensor: Shape (n, ...).
        splits: The number of rows for each worker; None: equally many.
        name: See `allreduce`.
        process_set: See `allreduce`.

    Returns:
        The rows received; with `splits`, also how many came from each worker (int32).
    """
    if not tensor.requires_grad:
        return alltoall_async(tensor, splits, name, process_set).synchronize()
    counts = _splits(rows_of(tensor), splits, process_set.size())
    rows, received = applied(_Alltoall, tensor, counts, name, process_set)
    return rows if splits is None else (rows, received)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all workers of the set have called it."""
    when_members(process_set, "barrier")
    wait(workers().channel(None, process_set).barrier(), "barrier")
