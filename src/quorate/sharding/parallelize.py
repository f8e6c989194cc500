"""`parallelize`: spread a model, and what its optimizer keeps, over the workers of each replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn import Module

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.sharding.allocator import fix_threshold
from quorate.sharding.axes import Axes, Meshes, Seat, mesh_of, seat_in
from quorate.sharding.blocks import blocks_of, in_words, named_blocks
from quorate.sharding.collectives import use_wire
from quorate.wire import current
from quorate.wire.current import Place

M = TypeVar("M", bound=Module)
Zero = Literal[1, 2, 3]
Precision = Literal["float32", "bfloat16", "float16"]
_PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Sharded:
    """A model that is spread over the workers of its replica."""

    seat: Seat
    zero: Zero
    blocks: Sequence[str]


@dataclass
class _Models:
    """Of each worker."""

    sharded: WeakKeyDictionary[Module, Sharded] = field(default_factory=WeakKeyDictionary)
    calls: int = 0


def parallelize(
    model: M,
    mesh: DeviceMesh | None = None,
    *,
    zero: Zero = 3,
    precision: Precision | None = None,
    blocks: Sequence[str | Module | type[Module]] | None = None,
) -> M:
    """Spread `model` over the shards of each replica of `mesh`, in place; returns it. Every worker calls it.

    Call it before the optimizer is made. `mesh` is what `world.mesh(replicas=R, shards=S)` returns; None: what the
    command line says (`--mesh`), else one replica over all workers. All workers begin with rank 0's parameters and
    buffers. Each of the R x S workers trains on batches of its own; gradients are the mean over all of them.

    `zero=3` shards parameters, gradients and the optimizer's state, and gathers the parameters of a block when it is
    used, forward and backward; `zero=2` keeps gathered parameters from the forward to the backward pass; `zero=1` does
    so as well, and does not reduce gradients inside `optimizer.accumulate()`, where they are whole. `precision` is the
    dtype of gathered parameters and of activations; parameters, sums and the optimizer stay in their own. `blocks`
    lists what is gathered as one (names, modules or classes); None: the repeated parts of the model.

    Cost for Psi numbers, sent by each worker in a step: 2 Psi (S - 1) / S with `zero` 1 or 2, 3 Psi (S - 1) / S with 3
    (Rajbhandari et al. 2020, arXiv 1910.02054, section 7), and what the strategy sends of 1 / S of the model.

    Raises `ConfigurationError` before `quorate.join()`, for what is no model, a model that is sharded or distributed
    already, virtual workers, and a mesh of other workers or axes.
    """
    place = current.here()
    if not isinstance(model, Module):
        raise ConfigurationError(f"parallelize takes a torch.nn.Module, not {type(model).__name__}")
    if zero not in (1, 2, 3) or isinstance(zero, bool):
        raise ConfigurationError(f"zero={zero!r} is unknown; known: 1, 2, 3")
    if precision is not None and precision not in _PRECISIONS:
        raise ConfigurationError(f"precision={precision!r} is unknown; known: {', '.join(_PRECISIONS)}")
    known = place.context(_Models)
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ConfigurationError("the model is sharded already; call quorate.parallelize once, on a plain model")
    parameters = list(model.parameters())
    if not parameters:
        raise ConfigurationError("the model has no parameters to shard")
    if mesh is None:
        axes = place.context(Meshes).told or Axes(1, place.wire.size)
        mesh = mesh_of(place, axes, parameters[0].device)
    seat = seat_in(mesh, place.wire)
    known.calls += 1
    _begin_alike(model, place.wire.channel(f"parallelize/{known.calls}"))
    found = blocks_of(model) if blocks is None else named_blocks(model, blocks)
    told = in_words(found)  # before torch gives their classes other names
    if seat.axes.shards > 1 or precision is not None:
        _shard(model, [block for _, block in found], seat, zero, precision)
        if place.wire.rank == 0:
            spread = f"{seat.axes.shards} workers for each of {_replicas(seat)}"
            tell(f"quorate: ZeRO {zero} over {spread}: {told}\n")
        known.sharded[model] = Sharded(seat, zero, [name for name, _ in found])
    return model


def _replicas(seat: Seat) -> str:
    return "1 replica" if seat.axes.replicas == 1 else f"{seat.axes.replicas} replicas"


def sharded(model: Module, place: Place) -> Sharded | None:
    """What `parallelize` has done to `model`; None where it has not."""
    return place.context(_Models).sharded.get(model)


def _begin_alike(model: Module, wire: Wire) -> None:
    """Give everyone rank 0's parameters and buffers, one after the other."""
    for x in (*model.parameters(), *model.buffers()):
        if wire.size > 1 and x.numel():
            carried = x.detach().contiguous()
            plain = carried.view(torch.uint8) if carried.dtype in (torch.bool, torch.int16) else carried
            wire.broadcast(plain, 0).wait()
            if carried.data_ptr() != x.data_ptr():
                x.detach().copy_(carried)


def _shard(model: Module, blocks: Sequence[Module], seat: Seat, zero: Zero, precision: Precision | None) -> None:
    is_on_cpu = next(model.parameters()).device.type == "cpu"
    if is_on_cpu:
        fix_threshold()
    chosen: dict[str, Any] = {"mesh": seat.shards}
    if precision is not None:
        chosen["mp_policy"] = MixedPrecisionPolicy(param_dtype=getattr(torch, precision), reduce_dtype=torch.float32)
    for block in blocks:
        fully_shard(block, reshard_after_forward=zero == 3, **chosen)
    fully_shard(model, reshard_after_forward=False if zero < 3 else None, **chosen)
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if is_on_cpu:
        use_wire(modules, seat.within.channel("fsdp"))
    model.register_forward_hook(partial(_forget_gathered, modules))


def _forget_gathered(modules: Sequence[FSDPModule], *_: object) -> None:
    """After a forward pass that has no backward pass: the next one gathers parameters anew, as they are by then."""
    if not torch.is_grad_enabled():
        for module in modules:
            module.reshard()
