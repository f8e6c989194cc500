"""`parallelize`: spread a model, and what its optimizer keeps, over the workers of each replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from quorate.core.axes import Axes, Offload, Zero, offload_of, stage_of
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import is_sharded
from quorate.core.telling import tell
from quorate.data.context import data_context
from quorate.sharding.blocks import blocks_of, in_words, named_blocks
from quorate.sharding.earlier_parameters import follow
from quorate.sharding.mesh import Meshes, Seat, deal_to, mesh_of, seat_in
from quorate.sharding.offload import Offloaded, offloaded
from quorate.sharding.on_meta import Initialize, check_meta, make_pieces
from quorate.sharding.stages.choice import StageChoice, check_stages
from quorate.sharding.stages.pipeline import Pipeline
from quorate.sharding.tensor.branches import branches_in, dealt_in_words, is_in_branches
from quorate.wire import current
from quorate.wire.current import Place
from quorate.wire.used import note_used

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
    offload: Offloaded | None = None
    pipeline: Pipeline | None = None
    """Where this worker has some of the model's stages."""


@dataclass
class _Models:
    """Of each worker."""

    sharded: WeakKeyDictionary[Module, Sharded] = field(default_factory=WeakKeyDictionary)
    blocks: WeakKeyDictionary[Module, Sequence[str]] = field(default_factory=WeakKeyDictionary)
    """Of every model that was given, also where one worker has all of it."""
    calls: int = 0


def parallelize(
    model: M,
    mesh: DeviceMesh | None = None,
    *,
    zero: Zero = 3,
    precision: Precision | None = None,
    offload: Offload | None = None,
    delayed_update: bool = False,
    offload_folder: str | PathLike[str] | None = None,
    blocks: Sequence[str | Module | type[Module]] | None = None,
    tensor: Literal["auto", "sequence"] | Mapping[str, str] | None = None,
    initialize: Initialize | None = None,
    stages: Literal["auto", "memory"] | Sequence[str] = "auto",
    schedule: str = "1f1b",
    microbatches: int | None = None,
    example: Any = None,
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

    `offload` says what rests in memory of the host: "optimizer" what the optimizer keeps, and its step is made there;
    "all" parameters as well, which are brought to the device block by block; "disk" is "optimizer" in memory-mapped
    files of `offload_folder` (None: where temporary files are). In a step 2 Psi / S numbers cross between device and
    host. With `delayed_update` the host makes its step beside the next forward and backward pass, and parameters are
    one gradient behind (Ren et al. 2021, arXiv 2101.06840, section 5.2). `quorate run --offload` goes before `offload`.

    Along the mesh's axis `tensor` workers compute the model's layers together, on the same batches. `tensor` is the
    plan: "auto" (as None, where there is such an axis) is what `quorate.tensor_plan(model, workers)` finds, which can
    be changed and given; without a mesh all workers do so. With "sequence" layers are whole, and each worker calculates
    on a piece of the sequence: see `quorate.sequence_attention`.
    Along the axis `stages` each worker has some of the model's layers (a pipeline), and calculates them for one
    micro-batch after the other. `stages` says where the model is cut: "auto", so that the slowest stage is as fast as
    can be; "memory", so that the largest is as small as can be; or the names of the modules with which stages begin,
    but for the first. With an `example` of the model's inputs (a tensor or a tuple, of one micro-batch) each module is
    measured on rank 0; else parameters are counted. Calling the model sends `microbatches` (None: four for each worker
    along the axis) through all stages, its output is on every worker, and so is a backward pass from it. `schedule` is
    that of `quorate.forward_backward`, or "auto": the one whose step is the shortest with the costs of these stages.
    Layers of `quorate.Experts` are spread expert by expert, and tokens are sent to them; they are never gathered.
    A model on the meta device is made piece by piece: each module's own tensors by its `reset_parameters()`, or by
    `initialize`, which is called with it; then nobody holds the whole, and the numbers are those of one seed (rank 0's
    generator gives it), whatever the number of shards, and not those that making the model elsewhere would draw.

    Cost for Psi numbers, sent by each worker in a step: 2 Psi (S - 1) / S with `zero` 1 or 2, 3 Psi (S - 1) / S with 3
    (Rajbhandari et al. 2020, arXiv 1910.02054, section 7), and what the strategy sends of 1 / S of the model.

    Raises `ConfigurationError` before `quorate.join()`, for what is no model, a model that is sharded or distributed
    already, virtual workers, a mesh of other workers or axes, heads or widths that the workers along the tensor axis
    cannot share evenly, experts that the shards cannot, and tensors on the meta device that nothing initialises.
    """
    from quorate.sharding.by_experts import by_experts, check_experts, experts_in, outside_experts
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
    is_on_meta, told = check_meta(model), place.context(Meshes)
    zero = zero if told.told_zero is None else told.told_zero
    if mesh is None or told.told is not None:
        usual = Axes(1, place.wire.size) if tensor is None else Axes(1, 1, place.wire.size)
        mesh = mesh_of(place, told.told or usual, told.device if is_on_meta else parameters[0].device)
    seat = seat_in(mesh, place.wire)
    if seat.axes.of_replica > 1 and mesh.device_type == "cuda" and "cuda:gloo" in dist.get_backend_config():
        raise ConfigurationError(
            "a model in pieces on GPUs needs NCCL, which refuses two workers on one GPU; start one worker for each GPU"
        )
    axes, data = seat.axes, data_context(place)
    _check(model, is_cut_otherwise=is_on_meta or axes.tensor * axes.stages > 1)
    if tensor is not None and axes.tensor == 1 and place.wire.size > 1 and told.told is None:
        raise ConfigurationError("tensor= needs a mesh with a tensor axis: world.mesh(tensor=2)")
    if axes.tensor > 1 and is_on_meta:
        raise ConfigurationError(
            "a model on the meta device cannot be divided along the tensor axis; build it on the CPU, or use "
            "shards alone"
        )
    if axes.shards * axes.tensor > 1 and data.deals_out:
        raise ConfigurationError(
            'a loader was made with share="dynamic" before, and a model in shards needs equally many batches on every '
            'worker; use share="static" with it'
        )
    where = offload_of(offload) if told.told_offload is None else told.told_offload
    check_experts(model, axes, is_on_meta=is_on_meta, offload=where, precision=precision)
    if axes.stages > 1:
        check_stages(model, is_on_meta=is_on_meta, offload=where, tensor=tensor)
    plan = plan_for(model, tensor, axes.tensor) if axes.tensor > 1 else None
    deal_to(place, axes, seat)
    rests = offloaded(where, delayed_update, offload_folder if told.told_offload in (None, "disk") else None)
    known.calls += 1
    wire = place.wire.channel(f"parallelize/{known.calls}")
    if not wire.is_newcomer:  # it gets all from those that it joins
        _begin_alike(model, wire)
    found = outside_experts(model, blocks_of(model) if blocks is None else named_blocks(model, blocks))
    words = in_words(found)  # before torch gives their classes other names
    known.blocks[model], modules = [name for name, _ in found], [block for _, block in found]
    pipeline: Pipeline | None = None
    if axes.stages > 1:
        from quorate.sharding.stages.by_stages import by_stages, stages_for

        asked = StageChoice(stages, schedule, microbatches, example)
        divided = stages_for(model, axes.stages, wire, asked, shards=axes.shards, zero=zero)
        if wire.rank == 0:
            tell(divided.words)
        pipeline, found = by_stages(model, divided, seat, f"stages/{known.calls}"), divided.blocks(seat.stage)
        words = in_words(found, of_stages=True)
        known.blocks[model], modules = [name for name, _ in found], [one for _, one in found]
    if plan is not None:
        by_tensor(model, plan, seat, () if pipeline is None else pipeline.ending.owners)
        branches = branches_in(model)
        found = [(name, block) for name, block in found if not is_in_branches(name, branches)]
        words, known.blocks[model], modules = (
            in_words(found, of_stages=pipeline is not None),
            [name for name, _ in found],
            [block for _, block in found],
        )
        if wire.rank == 0:
            tell(f"quorate: {plan.in_words}{dealt_in_words(model)}")
    if axes.shards > 1 or plan is not None or pipeline is not None:
        data.needs_equal_shares = "a model in shards"
    is_on_host = rests is not None and rests.where == "all"
    is_cut = axes.shards > 1 or precision is not None or is_on_host
    if is_cut:
        apart = by_experts(model, seat) if axes.shards > 1 else set()
        pieces = shard(model, modules, seat, zero, precision, rests, apart, is_whole=pipeline is None)
        if pipeline is not None:
            pipeline.ending.shards(pieces, zero=zero)
        if wire.rank == 0:
            if apart:
                layers = [f"{name or 'the model'} ({layer.count})" for name, layer in experts_in(model)]
                tell(f"quorate: experts over {_counted(axes.shards, 'worker')}: {', '.join(layers)}\n")
            spread = f"{_counted(axes.shards, 'worker')} for each of {_counted(axes.replicas, 'replica')}"
            tell(f"quorate: ZeRO {zero} over {spread}: {words}{'' if rests is None else rests.in_words}\n")
    if is_on_meta:
        shards = (axes.shards, seat.shard) if is_cut else (1, 0)
        make_pieces(model, modules, wire, *shards, told.device, initialize, is_on_host=is_on_host)
    if is_cut or plan is not None or rests is not None or pipeline is not None:
        note_used(place.wire.board, "mesh")
        known.sharded[model] = Sharded(seat, zero, known.blocks[model], precision, plan, rests, pipeline)
    return model


def _check(model: Module, *, is_cut_otherwise: bool = False) -> None:
    """Raise `ConfigurationError` for parameters that cannot be cut."""
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise ConfigurationError(f"{name} has no shape yet; run its lazy module once before quorate.parallelize")
        if is_cut_otherwise and p.dim() == 0:
            raise ConfigurationError(f"{name} has no dimensions; give it the shape (1,)")


def _counted(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def blocks_chosen(model: Module, place: Place) -> Sequence[str] | None:
    """The names of the blocks that `parallelize` has found or was given; None where `model` was not given to it."""
    return place.context(_Models).blocks.get(model)


def pipeline_of(model: Module, place: Place) -> Pipeline | None:
    """Its stages that are here; None where `parallelize` has not cut it into stages."""
    found = place.context(_Models).sharded.get(model)
    return None if found is None else found.pipeline


def sharded(model: Module, place: Place, optimizer: Optimizer) -> Sharded | None:
    """What `parallelize` has done to `model`; None where it has not.

    Where the command line asks for it, and the script has not called it, it is done here, and the `optimizer` gets the
    new parameters. Raises `ConfigurationError` where that one has kept something of the old ones already.
    """
    known, told = place.context(_Models), place.context(Meshes)
    if told.told is not None and known.calls == 0:
        if optimizer.state:
            raise ConfigurationError(
                "--mesh, --zero and --offload spread the model when quorate.distribute is called, and the optimizer "
                "keeps state of its whole parameters already; call quorate.parallelize before the optimizer is made"
            )
        names: dict[int, list[str]] = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(p), []).append(name)
        earlier = list(model.named_parameters(remove_duplicate=False))
        parallelize(model)
        new = dict(model.named_parameters(remove_duplicate=False))
        spread = known.sharded.get(model)
        is_here = {key: [name for name in some if name in new] for key, some in names.items()}
        if not all(is_here.values()) and (spread is None or spread.pipeline is None):
            raise ConfigurationError(
                "branches of the model lie on several workers, and the optimizer was made before; call "
                "quorate.parallelize before the optimizer is made"
            )
        for group in optimizer.param_groups:
            kept = [is_here.get(id(p), [""])[:1] for p in group["params"]]
            group["params"] = [
                new[some[0]] if some[0] else p for p, some in zip(group["params"], kept, strict=True) if some
            ]
        follow(earlier, new)
    return known.sharded.get(model)


def _begin_alike(model: Module, wire: Wire) -> None:
    """Give everyone rank 0's parameters and buffers, one after the other."""
    for x in (*model.parameters(), *model.buffers()):
        if wire.size > 1 and x.numel() and not x.is_meta:
            carried = x.detach().contiguous()
            plain = carried.view(torch.uint8) if carried.dtype in (torch.bool, torch.int16) else carried
            wire.broadcast(plain, 0).wait()
            if carried.data_ptr() != x.data_ptr():
                x.detach().copy_(carried)
    if wire.size > 1:
        wire.barrier().wait()  # all have read it
        wire.trim()  # no later message is as long
