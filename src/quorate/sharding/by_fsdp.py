"""A model in shards by torch's FSDP2. Importing this takes torch a second."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn import Module, Parameter

from quorate.core.axes import Zero
from quorate.sharding.allocator import give_back
from quorate.sharding.collectives import Pieces, WireAllGather, WireReduceScatter
from quorate.sharding.mesh import Seat
from quorate.sharding.offload import Offloaded, TorchAllGather, count
from quorate.sharding.script_access import HooksBefore, check_shardable, give_access
from quorate.sharding.tensor_operations import define_operations
from quorate.wire.metered import Metered


def is_sharded_already(model: Module) -> bool:
    """Whether a module of it is in shards."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def shard(
    model: Module,
    blocks: Sequence[Module],
    seat: Seat,
    zero: Zero,
    precision: str | None,
    rests: Offloaded | None,
    apart: Collection[Parameter] = (),
    *,
    is_whole: bool = True,
) -> list[Any]:
    """Shard `model`, in place, each of the `blocks` as one piece, and the rest where it `is_whole`; `rests` says what
    is on the host. Parameters `apart` are left as they are. Returns the modules that are in shards."""
    is_on_cpu = seat.shards.device_type == "cpu"
    chosen: dict[str, Any] = {"mesh": seat.shards}
    if apart:
        chosen["ignored_params"] = set(apart)
    if precision is not None:
        chosen["mp_policy"] = MixedPrecisionPolicy(param_dtype=getattr(torch, precision), reduce_dtype=torch.float32)
    is_on_host = rests is not None and rests.where == "all"
    if is_on_host and not is_on_cpu:
        chosen["offload_policy"] = CPUOffloadPolicy()
    check_shardable(model)
    hooks = HooksBefore(model)
    for block in blocks:
        fully_shard(block, reshard_after_forward=zero == 3, **chosen)
    if is_whole:
        fully_shard(model, reshard_after_forward=False if zero < 3 else None, **chosen)
    gathering: Any = TorchAllGather()
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if is_on_cpu and seat.axes.shards > 1:
        pieces = Pieces(Metered(seat.beside.channel("fsdp"), seat.traffic.meter), seat.traffic)
        seat.traffic.meet_also(pieces.meet)
        gathering = WireAllGather(pieces)
        reducing: Any = WireReduceScatter(pieces)
        for module in modules:
            module.set_custom_all_gather(gathering)
            module.set_custom_reduce_scatter(reducing)
            module._set_unshard_async_op(True)  # else a buffer is kept until the next block is gathered
    if rests is not None and is_on_host:
        count(modules, rests.boundary, gathering, is_converted=precision is not None)
    if zero == 1 and is_whole:
        root: Any = model
        seat.traffic.reduces = root.set_requires_gradient_sync
    seat.traffic.forget = partial(_step_ended, modules, is_on_cpu)
    model.register_forward_hook(partial(_forget_without_backward, modules))
    give_access(model)
    hooks.move(model)
    define_operations(seat.shards, seat.traffic)
    return list(modules)


def _step_ended(modules: Sequence[FSDPModule], is_on_cpu: bool) -> None:
    _forget(modules)
    if is_on_cpu:
        give_back()


def _forget(modules: Sequence[FSDPModule]) -> None:
    for module in modules:
        module.reshard()


def _forget_without_backward(modules: Sequence[FSDPModule], *_: object) -> None:
    """After a forward pass that has no backward pass, which would do it."""
    if not torch.is_grad_enabled():
        _forget(modules)
