"""`parallelize`: spread a model, and what its optimizer keeps, over the workers of each replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from quorate.core.axes import Axes, Zero, stage_of
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import is_sharded
from quorate.core.telling import tell
from quorate.data.context import data_context
from quorate.sharding.blocks import blocks_of, in_words, named_blocks
from quorate.sharding.mesh import Meshes, Seat, deal_to, mesh_of, seat_in
from quorate.wire import current
from quorate.wire.current import Place

M = TypeVar("M", bound=Module)
Precision = Literal["float32", "bfloat16", "float16"]
_PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Sharded:
    """A model that is spread over the workers of its replica."""

    seat: Seat
    zero: Zero
    blocks: Sequence[str]
    precision: Precision | None = None
    plan: Mapping[str, str] | None = None
    """Which layers several workers compute together."""


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
    tensor: Literal["auto"] | Mapping[str, str] | None = None,
) -> M:
    """Spread `model` over the shards of each replica of `mesh`, in place; returns it. Every worker calls it.

    Call it before the optimizer is made. `mesh` is what `world.mesh(replicas=R, shards=S)` returns; None: one
    replica over all workers. `quorate run --mesh` and `--zero` go before it and `zero`. All workers begin with rank 0's
    parameters and buffers. Each of the R x S workers trains on batches of its own; gradients are the mean of all.

    `zero=3` shards parameters, gradients and the optimizer's state, and gathers the parameters of a block when it is
    used, forward and backward; `zero=2` keeps gathered parameters from the forward to the backward pass; `zero=1` does
    so as well, and does not reduce gradients inside `optimizer.accumulate()`, where they are whole. `precision` is the
    dtype of gathered parameters and of activations; parameters, sums and the optimizer stay in their own. `blocks`
    lists what is gathered as one (names, modules or classes); None: the repeated parts of the model.

    Along the mesh's axis `tensor` workers compute the model's layers together, on the same batches. `tensor` is the
    plan: "auto" (as None, where there is such an axis) is what `quorate.tensor_plan(model, workers)` finds, which can
    be changed and given; without a mesh all workers do so.

    Cost for Psi numbers, sent by each worker in a step: 2 Psi (S - 1) / S with `zero` 1 or 2, 3 Psi (S - 1) / S with 3
    (Rajbhandari et al. 2020, arXiv 1910.02054, section 7), and what the strategy sends of 1 / S of the model.

    Raises `ConfigurationError` before `quorate.join()`, for what is no model, a model that is sharded or distributed
    already, virtual workers, a mesh of other workers or axes, and heads or widths that the workers along the tensor
    axis cannot share evenly.
    """
    from quorate.sharding.by_fsdp import is_sharded_already, shard
    from quorate.sharding.by_tensor import by_tensor, plan_for

    place = current.here()
    if not isinstance(model, Module):
        raise ConfigurationError(f"parallelize takes a torch.nn.Module, not {type(model).__name__}")
    zero = stage_of(zero)
    if precision is not None and precision not in _PRECISIONS:
        raise ConfigurationError(f"precision={precision!r} is unknown; known: {', '.join(_PRECISIONS)}")
    known = place.context(_Models)
    if is_sharded_already(model) or any(map(is_sharded, model.parameters())):
        raise ConfigurationError("the model is sharded already; call quorate.parallelize once, on a plain model")
    parameters = list(model.parameters())
    if not parameters:
        raise ConfigurationError("the model has no parameters to shard")
    _check(model)
    told = place.context(Meshes)
    zero = zero if told.told_zero is None else told.told_zero
    if mesh is None or told.told is not None:
        usual = Axes(1, place.wire.size) if tensor is None else Axes(1, 1, place.wire.size)
        mesh = mesh_of(place, told.told or usual, parameters[0].device)
    seat = seat_in(mesh, place.wire)
    axes = seat.axes
    if tensor is not None and axes.tensor == 1 and place.wire.size > 1 and told.told is None:
        raise ConfigurationError(
            "tensor= says how layers are cut, and the mesh has no tensor axis: world.mesh(tensor=2)"
        )
    plan = plan_for(model, tensor, axes.tensor) if axes.tensor > 1 else None
    deal_to(place, axes, seat)
    known.calls += 1
    _begin_alike(model, place.wire.channel(f"parallelize/{known.calls}"))
    found = blocks_of(model) if blocks is None else named_blocks(model, blocks)
    words = in_words(found)  # before torch gives their classes other names
    if plan is not None:
        by_tensor(model, plan, seat)
        if place.wire.rank == 0:
            tell(f"quorate: layers are computed by {axes.tensor} workers together:\n{plan}\n")
    if axes.shards > 1 or precision is not None:
        shard(model, [block for _, block in found], seat, zero, precision)
        if place.wire.rank == 0:
            spread = f"{axes.shards} workers for each of {_replicas(seat)}"
            tell(f"quorate: ZeRO {zero} over {spread}: {words}\n")
    if axes.shards > 1 or precision is not None or plan is not None:
        if axes.shards > 1 or plan is not None:
            data_context(place).needs_equal_shares = "a model in shards"
        known.sharded[model] = Sharded(seat, zero, [name for name, _ in found], precision, plan)
    return model


def _check(model: Module) -> None:
    """Raise `ConfigurationError` for parameters that cannot be cut."""
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise ConfigurationError(f"{name} has no shape yet; run its lazy module once before quorate.parallelize")
        if p.dim() == 0:
            raise ConfigurationError(f"{name} is a single number without a dimension; give it the shape (1,)")


def _replicas(seat: Seat) -> str:
    return "1 replica" if seat.axes.replicas == 1 else f"{seat.axes.replicas} replicas"


def sharded(model: Module, place: Place, optimizer: Optimizer) -> Sharded | None:
    """What `parallelize` has done to `model`; None where it has not.

    Where the command line asks for it, and the script has not called it, it is done here, and the `optimizer` gets the
    new parameters. Raises `ConfigurationError` where that one has kept something of the old ones already.
    """
    known, told = place.context(_Models), place.context(Meshes)
    if told.told is not None and known.calls == 0:
        if optimizer.state:
            raise ConfigurationError(
                "--mesh and --zero spread the model when quorate.distribute is called, and the optimizer keeps state "
                "of its whole parameters already; call quorate.parallelize before the optimizer is made"
            )
        names = {id(p): name for name, p in model.named_parameters()}
        parallelize(model)
        new = dict(model.named_parameters())
        for group in optimizer.param_groups:
            group["params"] = [new[names[id(p)]] if id(p) in names else p for p in group["params"]]
    return known.sharded.get(model)


def _begin_alike(model: Module, wire: Wire) -> None:
    """Give everyone rank 0's parameters and buffers, one after the other."""
    for x in (*model.parameters(), *model.buffers()):
        if wire.size > 1 and x.numel():
            carried = x.detach().contiguous()
            plain = carried.view(torch.uint8) if carried.dtype in (torch.bool, torch.int16) else carried
            wire.broadcast(plain, 0).wait()
            if carried.data_ptr() != x.data_ptr():
                x.detach().copy_(carried)
