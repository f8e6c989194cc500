"""Parameters in shards in arithmetic with whole tensors: `F.linear(x, block.weight)`, `loss + block.weight.norm()`.

Where a script calculates with a tensor in shards (`DTensor`) and a plain tensor, the former is gathered, and the result
is a plain tensor. The gradient of the gathered tensor is the mean over the workers of the replica, as of all others: a
term that all workers add alike counts once. All workers that share the tensor calculate alike. The same holds for
`full_tensor()` in a loss: torch's own takes each worker's gradient for that of all, and loses what the others add.

Cost for n numbers in S shards, sent by each worker in each use: n (S - 1) / S forward, the same backward, and two small
messages to each worker. A sum or norm of a tensor in shards stays one until it meets a plain tensor, and is one number.
Each attribute or function of torch on a tensor in shards takes 3 µs more: about 15 in a step for each parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

_CALL = "calculating with a parameter in shards outside its block"

_meets: dict[DeviceMesh, Callable[[str], None]] = {}
"""For each mesh of shards: wait until all its workers have come to the same call."""
_as_torch: Any = torch._C._disabled_torch_function_impl
_plain_full_tensor: Any = DTensor.full_tensor


def gather_beside_plain(mesh: DeviceMesh, meet: Callable[[str], None]) -> None:
    """Gather tensors in shards of `mesh` where they meet plain ones. `meet(call)` waits until all workers of the mesh
    have come to `call`: other stages of a pipeline have other parameters, and are not waited for."""
    _meets[mesh] = meet
    kind: Any = DTensor
    kind.__torch_function__ = classmethod(_called)
    kind.full_tensor = _full_tensor


def _called(kind: type, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """A function of torch that got a `DTensor`."""
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
        return type(x)(_replaced(one, gathered) for one in x)
    return x


def _is_mixed(tensors: list[Tensor]) -> bool:
    sharded = [x for x in tensors if isinstance(x, DTensor)]
    return len(sharded) < len(tensors) and all(x.device_mesh in _meets for x in sharded)


def _writes(function: Any, args: Any, kwargs: Any) -> bool:
    """Whether the function writes into a tensor in shards, or sets an attribute of it; torch copies by itself."""
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
