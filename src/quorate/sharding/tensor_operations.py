"""Operations on tensors in shards (`DTensor`) for which torch has no rule, or one that gives a part of a result.

`float(p.norm())` is the norm of this worker's shard in torch: a number is read from a tensor whose sum over the workers
has not been formed. Here it is formed first, so all workers of a replica must read it. `p.copy_(x)` takes a whole
tensor. Cost: where a script reads such a number, two small messages to each worker of the replica.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.sharding.script_access import piece_of
from quorate.sharding.traffic import Traffic

_traffic: dict[DeviceMesh, Traffic] = {}
"""Of each mesh of shards."""


def define_operations(mesh: DeviceMesh, traffic: Traffic) -> None:
    """Let torch use the operations of this module; workers that read a number meet over `traffic`."""
    _traffic[mesh] = traffic
    handlers = DTensor._op_dispatcher._custom_op_handlers
    aten: Any = torch.ops.aten
    handlers[aten._local_scalar_dense.default] = handlers[aten.item.default] = _item
    handlers[aten.copy_.default] = _copy


def _item(operation: Any, args: Any, kwargs: Any) -> Any:
    x: Any = args[0]
    if x.numel() != 1:
        raise RuntimeError(f"a Tensor with {x.numel()} elements cannot be converted to Scalar")
    if all(isinstance(placement, Replicate) for placement in x.placements):
        return local(x).item()
    traffic = _traffic.get(x.device_mesh)
    if traffic is not None:
        traffic.meet("reading a number of a tensor in shards, as in float(p.norm())")
    return x.detach().full_tensor().item()


def _copy(operation: Any, args: Any, kwargs: Any) -> Any:
    target, source = args[0], args[1]
    if not isinstance(target, DTensor):
        return target.copy_(source.full_tensor())
    if not isinstance(source, DTensor):
        if source.shape != target.shape:
            source = source.expand(target.shape)
        numbers: Tensor = piece_of(target, source)
    else:
        if source.shape != target.shape:
            raise ConfigurationError(
                f"copy_ of a tensor in shards of shape {tuple(source.shape)} into one of {tuple(target.shape)}; give "
                "it one of the same shape"
            )
        if source.device_mesh != target.device_mesh or source.placements != target.placements:
            source = source.redistribute(target.device_mesh, target.placements)
        numbers = local(source)
    local(target).copy_(numbers)
    return target
