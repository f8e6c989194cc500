"""Operations on tensors in shards (`DTensor`) for which torch has no rule, or one that gives a part of a result.

`float(p.norm())` is the norm of this worker's shard in torch: a number is read from a tensor whose sum over the workers
has not been formed. Here it is formed first, so all workers that share the tensor must read it. `p.copy_(x)` takes a
full tensor. Cost: where a script reads such a number, two small messages to each of these workers.

Arithmetic of tensors in shards with plain ones works too: `F.linear(x, block.weight)`, `loss + block.weight.norm()`.
Where a script calculates with a tensor in shards (`DTensor`) and a plain tensor, the former is gathered, and the result
is a plain tensor. The gradient of the gathered tensor is the mean over the workers of the replica, as of all others: a
term that all workers add alike counts once. All workers that share the tensor calculate alike. The same holds for
`full_tensor()` in a loss: torch's own takes each worker's gradient for that of all, and loses what the others add.

Cost for n numbers in S shards, sent by each worker in each use: n (S - 1) / S forward, the same backward, and two small
messages to each worker. A sum or norm of a tensor in shards stays one until it meets a plain tensor, and is one number.
Each attribute or function of torch on a tensor in shards takes 3 µs more: about 15 in a step for each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.sharding.script_access import piece_of

_meets: dict[DeviceMesh, Callable[[str], None]] = {}
"""For each mesh of shards: wait until all its workers have come to the same call."""


def define_operations(mesh: DeviceMesh, meet: Callable[[str], None]) -> None:
    """Let torch use the operations of this module. `meet(call)` waits until all workers of the mesh have reached
    `call`, as before a number is read. Other stages of a pipeline have other parameters, and are not waited for.
    """
    _meets[mesh] = meet
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    handlers[_aten._local_scalar_dense.default] = handlers[_aten.item.default] = _item
    handlers[_aten.copy_.default], handlers[_aten.fill_.Tensor] = _copy, _fill
    for operation in _IN_PLACE:
        handlers[operation] = _in_place
    for operation in _OF_SOME:
        handlers[operation] = _of_some
    handlers[_aten.linalg_vector_norm.default] = handlers[_aten._foreach_norm.Scalar] = _norms
    kind: Any = DTensor
    kind.__torch_function__ = classmethod(_called)
    kind.full_tensor = _full_tensor


def _item(operation: Any, args: Any, kwargs: Any) -> Any:
    x: Any = args[0]
    if x.numel() != 1:
        raise RuntimeError(f"a Tensor with {x.numel()} elements cannot be converted to Scalar")
    if all(isinstance(placement, Replicate) for placement in x.placements):
        return local(x).item()
    meet = _meets.get(x.device_mesh)
    if meet is not None:
        meet("reading a number of a tensor in shards, as in float(p.norm())")
    return x.detach().full_tensor().item()


def _check_rows(target: Any) -> None:
    """Raise `ConfigurationError` for a view of rows of a tensor in shards: torch gathers them into other memory."""
    base = target._base
    if (
        isinstance(base, DTensor)
        and base.placements != target.placements
        and all(isinstance(placement, Replicate) for placement in target.placements)
    ):
        raise ConfigurationError(
            "the script writes into some rows of a tensor in shards, where nothing would arrive; gather it on all "
            "workers, whole = p.full_tensor(), change that, and write it back by p.copy_(whole)"
        )


def _in_place(operation: Any, args: Any, kwargs: Any) -> Any:
    """Run torch's operation after a check."""
    if isinstance(args[0], DTensor):
        _check_rows(args[0])
    return _by_torch(operation, _in_place, args, kwargs)


def _of_some(operation: Any, args: Any, kwargs: Any, handler: Any = None) -> Any:
    """Run an operation that needs at least one number, on a tensor of which some workers may have none."""
    x: Any = args[0]
    if not isinstance(x, DTensor) or not _is_empty_somewhere(x):
        return _by_torch(operation, handler or _of_some, args, kwargs)
    mesh = x.device_mesh
    result = operation(x.full_tensor(), *args[1:], **kwargs)
    return DTensor.from_local(result, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _norms(operation: Any, args: Any, kwargs: Any) -> Any:
    """Run a norm; on a worker without numbers the largest number is none."""
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    if abs(order) != math.inf:
        return _by_torch(operation, _norms, args, kwargs)
    if isinstance(args[0], Tensor):
        return _of_some(operation, args, kwargs, _norms)
    return [torch.linalg.vector_norm(x, order, dtype=kwargs.get("dtype")) for x in args[0]]


def _is_empty_somewhere(x: DTensor) -> bool:
    for size, placement in zip(x.device_mesh.shape, x.placements, strict=True):
        if isinstance(placement, Shard):
            rows = x.shape[placement.dim]
            if -(-rows // size) * (size - 1) >= rows > 0:
                return True
    return False


def _by_torch(operation: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers
    handlers.pop(operation, None)
    try:
        return operation(*args, **kwargs)
    finally:
        handlers[operation] = handler


def _fill(operation: Any, args: Any, kwargs: Any) -> Any:
    target, value = args
    _check_rows(target)
    local(target).fill_(value.full_tensor() if isinstance(value, DTensor) else value)
    return target


def _copy(operation: Any, args: Any, kwargs: Any) -> Any:
    target, source, *more = args
    if not isinstance(target, DTensor):
        return target.copy_(source.full_tensor(), *more, **kwargs)
    _check_rows(target)
    if source.shape != target.shape:
        source = source.expand(target.shape)
    if not isinstance(source, DTensor):
        numbers: Tensor = piece_of(target, source)
    elif source.device_mesh != target.device_mesh or source.placements != target.placements:
        numbers = local(source.redistribute(target.device_mesh, target.placements))
    else:
        numbers = local(source)
    local(target).copy_(numbers, *more, **kwargs)
    return target


_aten: Any = torch.ops.aten
_IN_PLACE = (
    _aten.add_.Tensor,
    _aten.sub_.Tensor,
    _aten.mul_.Tensor,
    _aten.div_.Tensor,
    _aten.clamp_.default,
    _aten.zero_.default,
    _aten.fill_.Scalar,
    _aten.normal_.default,
    _aten.uniform_.default,
    _aten.lerp_.Scalar,
)


_OF_SOME = (_aten.max.default, _aten.min.default, _aten.amax.default, _aten.amin.default)


_CALL = "calculating with a parameter in shards outside its block"

_as_torch: Any = torch._C._disabled_torch_function_impl
_plain_full_tensor: Any = DTensor.full_tensor


def _called(kind: type, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Run a function of torch on a `DTensor`."""
    if len(args) == 1 and type(args[0]) is DTensor and not kwargs:  # nearly all: attributes, norms
        return _as_torch(function, types, args)
    tensors = list(_tensors(args)) + list(_tensors((kwargs or {}).values()))
    if not _is_mixed(tensors) or _writes(function, args, kwargs):
        return _as_torch(function, types, args, kwargs or {})
    gathered = {id(x): _Whole.apply(x) for x in tensors if isinstance(x, DTensor)}  # type: ignore[no-untyped-call]
    whole = _replaced(list(args), gathered)
    return function(*whole, **{name: _replaced(x, gathered) for name, x in (kwargs or {}).items()})


def _full_tensor(x: Any, *, grad_placements: Any = None) -> Tensor:
    is_in_a_loss = torch.is_grad_enabled() and x.requires_grad and x.device_mesh in _meets
    if grad_placements is not None or not is_in_a_loss:
        return _plain_full_tensor(x, grad_placements=grad_placements)  # type: ignore[no-any-return]
    return _Whole.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for x in values:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from _tensors(x)


def _replaced(x: Any, gathered: dict[int, Tensor]) -> Any:
    if isinstance(x, Tensor):
        return gathered.get(id(x), x)
    if isinstance(x, list | tuple) and not hasattr(x, "_fields"):
        return type(x)(_replaced(element, gathered) for element in x)
    return x


def _is_mixed(tensors: list[Tensor]) -> bool:
    sharded = [x for x in tensors if isinstance(x, DTensor)]
    return len(sharded) < len(tensors) and all(x.device_mesh in _meets for x in sharded)


def _writes(function: Any, args: Any, kwargs: Any) -> bool:
    """Return whether the function writes to a tensor in shards, or sets an attribute of it; torch copies by itself."""
    if kwargs and isinstance(kwargs.get("out"), DTensor):
        return True
    name = getattr(function, "__name__", "")
    is_first = bool(args) and isinstance(args[0], DTensor | list | tuple)
    return name == "copy_" or (is_first and (name in _WRITING or (name.endswith("_") and not name.endswith("__"))))


_WRITING = frozenset(
    ("__set__", "__delete__", "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "backward")
)


class _Whole(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Tensor:
        ctx.mesh, ctx.placements, ctx.meet = x.device_mesh, x.placements, _meets[x.device_mesh]
        ctx.meet(_CALL)
        whole: Tensor = _plain_full_tensor(x.detach())
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        ctx.meet(f"{_CALL}, backward")
        placements = [Replicate() if placement.is_partial() else placement for placement in ctx.placements]
        own = DTensor.from_local(grad.contiguous(), ctx.mesh, [Partial("avg")] * ctx.mesh.ndim, run_check=False)
        return own.redistribute(ctx.mesh, placements)
