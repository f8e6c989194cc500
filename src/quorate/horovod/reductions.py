"""Reductions of tensors over all workers, as Horovod's `allreduce` and `reducescatter`.

Those that return a new tensor are differentiable, as in Horovod. Minima, maxima and products gather the tensors of all
workers on each; otherwise the cost is that of `Wire.all_reduce` and `Wire.all_to_all`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Work
from quorate.core.errors import ConfigurationError
from quorate.horovod.compression import Compression, Compressor
from quorate.horovod.exchanges import allgather_async
from quorate.horovod.handles import Grouped, Handle, applied, check, into, rows_of
from quorate.horovod.workers import (
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    ReduceOp,
    Sum,
    global_process_set,
    when_members,
    workers,
)
from quorate.means.algorithms.adaptive_sums import adaptive_sum
from quorate.wire.exchange import sum_in_order


def op_of(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """Return the operation asked for; `average` is Horovod's older argument."""
    if average is not None and op is not None:
        raise ConfigurationError("average and op say the same; pass op alone")
    if op is not None:
        if not isinstance(op, ReduceOp):
            raise ConfigurationError(f"op must be one of hvd.Average, Sum, Adasum, Min, Max, Product, not {op!r}")
        return op
    return Sum if average is False else Average


def _scaled(x: Tensor, factor: float) -> Tensor:
    if factor == 1.0:
        return x
    if x.is_floating_point() or x.is_complex():
        return x.mul_(factor)
    return x.copy_((x.double() * factor).to(x.dtype))


def _reduced(
    tensor: Tensor,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    call: str,
) -> tuple[Work[Any], Callable[[Any], Tensor]]:
    """Begin a reduction of a copy; return its work, and what makes the result from that of the work."""
    check(tensor, call)
    when_members(process_set, call)
    wire, size = workers().channel(name, process_set), process_set.size()
    x = _scaled(tensor.detach().clone(memory_format=torch.contiguous_format), prescale)
    if op in (Average, Sum):
        factor = postscale / size if op is Average else postscale
        return wire.all_reduce(x.view(-1) if x.dim() else x.view(1)), lambda sums: _scaled(sums.view(x.shape), factor)

    def reduced(gathered: list[Tensor]) -> Tensor:
        values = [y.view(x.shape).to(x.device) for y in gathered]
        if op is ReduceOp.ADASUM:
            flat = [y.reshape(-1) for y in values]
            result = adaptive_sum(flat, [(0, flat[0].numel())]).view(x.shape)
        else:
            stacked = torch.stack(values)
            reductions: dict[ReduceOp, Any] = {Min: stacked.amin, Max: stacked.amax, Product: stacked.prod}
            result = reductions[op](0).to(x.dtype)
        return _scaled(result, postscale)

    return wire.all_gather(x.reshape(-1)), reduced


def _begin_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None,
    name: str | None,
    op: ReduceOp | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    call: str,
    finish: Callable[[list[Tensor]], Any],
) -> Handle:
    chosen = op_of(average, op)
    names = [name if name is None or len(tensors) == 1 else f"{name}/{place}" for place in range(len(tensors))]
    begun = [
        _reduced(x, of, chosen, prescale_factor, postscale_factor, process_set, call)
        for x, of in zip(tensors, names, strict=True)
    ]
    return Handle(
        [work for work, _ in begun],
        lambda results: finish([made(result) for (_, made), result in zip(begun, results, strict=True)]),
        call,
    )


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin a reduction of `tensor` over all workers; see `allreduce`. The result is a new tensor."""
    arguments = [tensor], average, name, op, prescale_factor, postscale_factor, process_set, "allreduce"
    return _begin_allreduce(*arguments, lambda results: results[0])


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin a reduction of `tensor` in place; see `allreduce`."""
    arguments = [tensor], average, name, op, prescale_factor, postscale_factor, process_set, "allreduce_"
    return _begin_allreduce(*arguments, lambda results: into([tensor])(results)[0])


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, begin: Callable[[Tensor], Handle]) -> Tensor:
        ctx.begin = begin
        result: Tensor = begin(tensor).synchronize()
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return ctx.begin(grads[0]).synchronize(), None


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the reduction of the `tensor` of all workers: their mean, unless `op` says otherwise.

    Args:
        tensor: Any shape and dtype, equal on all workers. A mean of integers is rounded towards zero.
        average: Older form of `op`: True for the mean, False for the sum.
        name: Collectives of one name are matched with each other; those without one, by the order of calls.
        compression: What is sent in place of the tensor.
        op: `hvd.Average`, `Sum`, `Adasum`, `Min`, `Max` or `Product`.
        prescale_factor: Factor of the tensor before the reduction.
        postscale_factor: Factor of the result.
        process_set: The workers among which it is reduced.

    Returns:
        A new tensor. Its gradient is reduced in the same way.
    """

    def begin(x: Tensor) -> Handle:
        return allreduce_async(x, average, name, op, prescale_factor, postscale_factor, process_set)

    sent, about = compression.compress(tensor)
    return compression.decompress(applied(_Allreduce, sent, begin), about)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce `tensor` over all workers in place, and return it; see `allreduce`."""
    result: Tensor = allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    ).synchronize()
    return result


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin reductions of several tensors; the result is a list of new ones."""
    arguments = tensors, average, name, op, prescale_factor, postscale_factor, process_set, "grouped_allreduce"
    return _begin_allreduce(*arguments, list)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin reductions of several tensors in place."""
    arguments = tensors, average, name, op, prescale_factor, postscale_factor, process_set, "grouped_allreduce_"
    return _begin_allreduce(*arguments, into(tensors))


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return the reductions of several tensors; each as `allreduce`."""
    arguments = average, name, compression, op, prescale_factor, postscale_factor, process_set
    if any(x.requires_grad for x in tensors):
        return [allreduce(x, *arguments) for x in tensors]
    sent = [compression.compress(x) for x in tensors]
    results = grouped_allreduce_async(
        [x for x, _ in sent], average, name, op, prescale_factor, postscale_factor, process_set
    ).synchronize()
    return [compression.decompress(x, about) for x, (_, about) in zip(results, sent, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce several tensors in place, and return them."""
    results: list[Tensor] = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).synchronize()
    return results


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin to reduce and divide; see `reducescatter`."""
    check(tensor, "reducescatter")
    when_members(process_set, "reducescatter")
    if op not in (Average, Sum):
        raise ConfigurationError("hvd.reducescatter takes op=hvd.Average or hvd.Sum")
    x, size = rows_of(tensor), process_set.size()
    pieces = [_scaled(piece.clone(), prescale_factor) for piece in x.tensor_split(size)]
    work = workers().channel(name, process_set).all_to_all(pieces)
    factor = postscale_factor / size if op is Average else postscale_factor

    def finish(results: list[Any]) -> Tensor:
        return _scaled(sum_in_order([y.to(tensor.device) for y in results[0]]), factor)

    return Handle([work], finish, "reducescatter")


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, begin: Callable[[Tensor], Handle], gather: Any, factor: float) -> Tensor:
        ctx.gather, ctx.factor, ctx.shape = gather, factor, tensor.shape
        result: Tensor = begin(tensor).synchronize()
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:
        return (ctx.gather(grads[0]).synchronize() * ctx.factor).reshape(ctx.shape), None, None, None


def reducescatter(
    tensor: Tensor,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce `tensor` over all workers, and return this worker's share of the rows; the first ranks get one more."""
    factor = prescale_factor * postscale_factor / (process_set.size() if op is Average else 1)
    sent, about = compression.compress(tensor)

    def begin(x: Tensor) -> Handle:
        return reducescatter_async(x, name, op, process_set, prescale_factor, postscale_factor)

    def gather(grad: Tensor) -> Handle:
        return allgather_async(grad, name and f"{name}/grad", process_set)

    return compression.decompress(applied(_Reducescatter, sent, begin, gather, factor), about)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin to reduce and divide several tensors; the result is a list."""
    handles = [
        reducescatter_async(x, name and f"{name}/{place}", op, process_set, prescale_factor, postscale_factor)
        for place, x in enumerate(tensors)
    ]
    return Grouped(handles, "grouped_reducescatter")


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduce and divide several tensors; each as `reducescatter`."""
    return [
        reducescatter(x, compression, op, name and f"{name}/{place}", process_set, prescale_factor, postscale_factor)
        for place, x in enumerate(tensors)
    ]
