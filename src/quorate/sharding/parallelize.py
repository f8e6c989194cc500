"""`parallelize`: divide a model, and its optimizer's state, among the workers of each replica."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from os import PathLike
from types import CellType, FrameType
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Module, Parameter
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from quorate.core.axes import Axes, Offload, Zero, offload_of, stage_of
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import is_sharded
from quorate.core.telling import tell
from quorate.data.context import DataContext
from quorate.sharding.blocks import blocks_of, in_words, named_blocks
from quorate.sharding.mesh import Coordinates, Meshes, coordinates_in, deal_to
from quorate.sharding.offload import Offloaded, offloaded
from quorate.sharding.on_meta import Initialize, check_meta, make_pieces
from quorate.sharding.stages.choice import StageChoice, check_delayed, check_stages
from quorate.sharding.stages.orders import ScheduleName
from quorate.sharding.stages.pipeline import Pipeline
from quorate.sharding.tensor.branches import branches_in, dealt_in_words, is_in_branches
from quorate.sharding.undivided import Undivided
from quorate.wire import current
from quorate.wire.current import Place
from quorate.wire.used import note_used

M = TypeVar("M", bound=Module)
Precision = Literal["float32", "bfloat16", "float16"]
_PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Sharded:
    """A model that is divided among the workers of its replica."""

    coordinates: Coordinates
    zero: Zero
    blocks: Sequence[str]
    precision: Precision | None = None
    plan: Mapping[str, str] | None = None
    """The layers that several workers compute together."""
    offload: Offloaded | None = None
    pipeline: Pipeline | None = None
    """Set where this worker has some of the model's stages."""


@dataclass
class _Models:
    """The models that one worker has passed to `parallelize`."""

    sharded: WeakKeyDictionary[Module, Sharded] = field(default_factory=WeakKeyDictionary)
    blocks: WeakKeyDictionary[Module, Sequence[str]] = field(default_factory=WeakKeyDictionary)
    """Names of blocks of every model, including models that one worker holds in full."""
    calls: int = 0


def parallelize(
    model: M,
    mesh: DeviceMesh | None = None,
    *,
    zero: Zero = 3,
    precision: Precision | None = None,
    offload: Offload | None = None,
    delayed_update: bool = False,
    correct: Literal["delay"] | None = None,
    offload_folder: str | PathLike[str] | None = None,
    blocks: Sequence[str | Module | type[Module]] | None = None,
    tensor: Literal["auto", "sequence"] | Mapping[str, str] | None = None,
    initialize: Initialize | None = None,
    stages: Literal["auto", "memory"] | Sequence[str] = "auto",
    schedule: ScheduleName | Literal["auto"] = "1f1b",
    microbatches: int | None = None,
    example: Any = None,
) -> M:
    """Divide `model` among the workers of each replica of `mesh`, in place, and return it.

    Every worker calls it, before making the optimizer. All workers begin with rank 0's parameters and buffers. Each of
    the R x S workers trains on batches of its own; gradients are the mean of all.

    Args:
        model: The model. If it is on the meta device, each worker makes its pieces only: the tensors of each module by
            its `reset_parameters()`, or by `initialize`. Their numbers depend on one seed, drawn by rank 0's generator,
            and not on the number of shards; making the model elsewhere draws other numbers.
        mesh: The result of `world.mesh(replicas=R, shards=S)`; None: one replica over all workers. `quorate run --mesh`
            takes precedence. Layers of `quorate.Experts` are divided expert by expert along shards, and never gathered.
            Tables of `Embedding(sparse=True)` are divided by rows along shards or tensor, and never gathered either.
        zero: 3 shards parameters, gradients and the optimizer's state, and gathers the parameters of a block for each
            use, forward and backward. 2 keeps gathered parameters from the forward to the backward pass. 1 does the
            same, without reducing gradients inside `optimizer.accumulate()`, where they are full. `quorate run --zero`
            takes precedence.
        precision: The dtype of gathered parameters and of activations; parameters, sums and the optimizer keep theirs.
        offload: "optimizer" keeps the optimizer's state, and makes its step, in host memory. "all" keeps parameters
            there as well, and copies them to the device block by block. "disk" is "optimizer" in memory-mapped files. A
            step copies 2 Psi / S numbers between device and host. `quorate run --offload` takes precedence.
        delayed_update: Make the host's step during the next forward and backward pass, so that parameters are one
            gradient behind (Ren et al. 2021, arXiv 2101.06840, section 5.2).
        correct: "delay" repeats each delayed step as far as it differs from the last one (arXiv 2606.30634): of
            `delayed_update`, or of the schedule "pipedream-2bw". Memory beside the optimizer's state: one number for
            each parameter.
        offload_folder: The folder of the files of "disk"; None: the folder of temporary files.
        blocks: The units of gathering, as names, modules or classes; None: the repeated parts of the model.
        tensor: The plan of the axis `tensor`, along which workers compute layers together, on the same batches. "auto"
            is the plan of `quorate.tensor_plan(model, workers)`, which can be changed and passed. None is the same, if
            the mesh has the axis. Without a mesh all workers form the axis. With "sequence" layers are not cut, and
            each worker calculates on a piece of the sequence: see `quorate.sequence_attention`.
        initialize: A function that initializes a module of a model on the meta device.
        stages: The cut along the axis `stages`, along which each worker has some of the layers (a pipeline) and
            calculates one micro-batch after the other. "auto" makes the slowest stage as fast as possible, "memory" the
            largest as small as possible. A list has the names of the modules that begin stages, without the first.
        schedule: A schedule of `quorate.forward_backward`, or "auto": the one with the shortest step for these stages.
            Under "pipedream-2bw" gradients are those of the batch before, at the parameters of its forward passes
            (Narayanan et al. 2021, arXiv 2006.09503). It is for meshes of replicas and stages; see `correct`.
        microbatches: Micro-batches in a call of the model; None: four for each worker along the axis. The output of a
            call, and the backward pass from it, are on every worker.
        example: Inputs of the model (a tensor or a tuple, of one micro-batch), with which rank 0 measures each module
            for `stages`; None: stages are cut by numbers of parameters.

    Cost for Psi numbers, sent by each worker in a step: 2 Psi (S - 1) / S with `zero` 1 or 2, 3 Psi (S - 1) / S with 3.
    The source is Rajbhandari et al. 2020 (arXiv 1910.02054, section 7). The messages of the strategy for 1 / S of the
    model are added.

    Returns:
        `model`.

    Raises:
        ConfigurationError: `quorate.join()` was not called; `model` is not a Module, or is sharded or distributed
            already; workers are virtual; or the mesh has other workers or axes. Also if workers cannot evenly share
            heads, widths or experts, or if nothing initializes some tensors on the meta device.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> model = quorate.parallelize(model, zero=2)
        >>> optimizer = quorate.distribute(torch.optim.AdamW(model.parameters()), model)
    """
    from quorate.sharding.by_experts import by_experts, check_experts, experts_in, outside_experts
    from quorate.sharding.by_fsdp import is_sharded_already, shard
    from quorate.sharding.by_rows import by_rows, check_tables, tables_in
    from quorate.sharding.by_tensor import by_tensor, plan_for

    place = current.here()
    if not isinstance(model, Module):
        raise ConfigurationError(f"parallelize takes a torch.nn.Module, not {type(model).__name__}")
    zero = stage_of(zero)
    if precision is not None and precision not in _PRECISIONS:
        raise ConfigurationError(f"precision={precision!r} is unknown; known: {', '.join(_PRECISIONS)}")
    models = place.context(_Models)
    if is_sharded_already(model) or any(map(is_sharded, model.parameters())):
        raise ConfigurationError("the model is sharded already; call quorate.parallelize once, on a plain model")
    parameters = list(model.parameters())
    if not parameters:
        raise ConfigurationError("the model has no parameters to shard")
    _check(model)
    is_on_meta, requested = check_meta(model), place.context(Meshes)
    zero = zero if requested.zero is None else requested.zero
    if mesh is None or requested.axes is not None:
        usual = Axes(1, place.wire.size) if tensor is None else Axes(1, 1, place.wire.size)
        mesh = requested.mesh(
            place.wire, requested.axes or usual, requested.device if is_on_meta else parameters[0].device
        )
    coordinates = coordinates_in(mesh, place.wire)
    if coordinates.axes.of_replica > 1 and mesh.device_type == "cuda" and "cuda:gloo" in dist.get_backend_config():
        raise ConfigurationError(
            "a model in pieces on GPUs needs NCCL, which refuses two workers on one GPU; start one worker for each GPU"
        )
    axes, data = coordinates.axes, place.context(DataContext)
    _check(model, is_cut_otherwise=is_on_meta or axes.tensor * axes.stages > 1)
    if tensor is not None and axes.tensor == 1 and place.wire.size > 1 and requested.axes is None:
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
    where = offload_of(offload) if requested.offload is None else requested.offload
    check_experts(model, axes, is_on_meta=is_on_meta, offload=where, precision=precision)
    is_delayed = check_delayed(schedule, correct, axes, offload=where, precision=precision)
    if axes.stages > 1:
        check_stages(model, is_on_meta=is_on_meta, offload=where, tensor=tensor)
    plan = plan_for(model, tensor, axes.tensor) if axes.tensor > 1 else None
    tables = tables_in(model) if axes.of_replica > 1 else {}
    check_tables(tables, axes, plan, model)
    deal_to(data, place.wire.rank, axes, coordinates)
    folder = offload_folder if requested.offload in (None, "disk") else None
    in_ram = offloaded(where, delayed_update, None if is_delayed else correct, folder)
    models.calls += 1
    wire = place.wire.channel(f"parallelize/{models.calls}")
    if not wire.is_newcomer:  # it gets all from those that it joins
        _begin_alike(model, wire)
    blocks_found = blocks_of(model) if blocks is None else named_blocks(model, blocks)
    blocks_found = outside_experts(model, blocks_found, tables.values())
    words = in_words(blocks_found)  # before torch gives their classes other names
    models.blocks[model], modules = [name for name, _ in blocks_found], [block for _, block in blocks_found]
    pipeline: Pipeline | None = None
    before = Undivided(model) if plan is not None or axes.stages > 1 else None
    separately: Callable[[], AbstractContextManager[None]] = nullcontext
    if axes.stages > 1:
        from quorate.sharding.stages.by_stages import by_stages, stages_for

        asked = StageChoice(stages, schedule, microbatches, example, corrects=is_delayed and correct == "delay")
        divided = stages_for(model, axes.stages, wire, asked, shards=axes.shards, zero=zero)
        if wire.rank == 0:
            tell(divided.words)
        pipeline = by_stages(model, divided, coordinates, f"stages/{models.calls}")
        blocks_found = divided.blocks(coordinates.stage)
        words = in_words(blocks_found, of_stages=True)
        models.blocks[model], modules = [name for name, _ in blocks_found], [block for _, block in blocks_found]
    rows, handles = by_rows(tables, coordinates, precision)
    if plan is not None:
        plan.update(dict.fromkeys(tables, "embedding"))
        layers_apart = list(tables.values()) if pipeline is None else pipeline.ending.owners
        separately = by_tensor(model, plan, coordinates, layers_apart)
        branches = branches_in(model)
        blocks_found = [(name, block) for name, block in blocks_found if not is_in_branches(name, branches)]
        words, models.blocks[model], modules = (
            in_words(blocks_found, of_stages=pipeline is not None),
            [name for name, _ in blocks_found],
            [block for _, block in blocks_found],
        )
        if wire.rank == 0:
            tell(f"quorate: {plan.in_words}{dealt_in_words(model)}")
    if before is not None:
        before.divided(model, coordinates, separately, f"whole/{models.calls}")
    if tables and wire.rank == 0:
        layers = [f"{name or 'the model'} ({layer.num_embeddings})" for name, layer in tables.items()]
        tell(f"quorate: tables by rows over {_counted(axes.of_replica, 'worker')}: {', '.join(layers)}\n")
    if axes.shards > 1 or plan is not None or pipeline is not None:
        data.needs_equal_shares = "a model in shards"
    is_on_host = in_ram is not None and in_ram.where == "all"
    is_cut = axes.shards > 1 or precision is not None or is_on_host
    if is_cut:
        apart = by_experts(model, coordinates) if axes.shards > 1 else set()
        how: dict[str, Any] = {"is_whole": pipeline is None, "is_alone": not apart, "handles": handles}
        pieces = shard(model, modules, coordinates, zero, precision, in_ram, apart | rows, **how)
        if pipeline is not None:
            pipeline.ending.shards(pieces, zero=zero)
        if wire.rank == 0:
            if apart:
                layers = [f"{name or 'the model'} ({layer.count})" for name, layer in experts_in(model)]
                tell(f"quorate: experts over {_counted(axes.shards, 'worker')}: {', '.join(layers)}\n")
            spread = f"{_counted(axes.shards, 'worker')} for each of {_counted(axes.replicas, 'replica')}"
            tell(f"quorate: ZeRO {zero} over {spread}: {words}{'' if in_ram is None else in_ram.in_words}\n")
    if is_on_meta:
        shards = (axes.shards, coordinates.shard) if is_cut else (1, 0)
        make_pieces(model, modules, wire, *shards, requested.device, initialize, is_on_host=is_on_host)
    if is_cut or plan is not None or in_ram is not None or pipeline is not None:
        note_used(place.wire.board, "mesh")
        models.sharded[model] = Sharded(coordinates, zero, models.blocks[model], precision, plan, in_ram, pipeline)
    return model


def _check(model: Module, *, is_cut_otherwise: bool = False) -> None:
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise ConfigurationError(f"{name} has no shape yet; run its lazy module once before quorate.parallelize")
        if is_cut_otherwise and p.dim() == 0:
            raise ConfigurationError(f"{name} has no dimensions; give it the shape (1,)")


def _counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def blocks_chosen(model: Module, place: Place) -> Sequence[str] | None:
    """Return the names of the blocks of `model`; None where `parallelize` has not divided it."""
    return place.context(_Models).blocks.get(model)


def pipeline_of(model: Module, place: Place) -> Pipeline | None:
    """Return the pipeline with the stages of this worker; None where `parallelize` has not cut `model` into stages."""
    entry = place.context(_Models).sharded.get(model)
    return None if entry is None else entry.pipeline


def sharded(model: Module, place: Place, optimizer: Optimizer) -> Sharded | None:
    """Return how `parallelize` has divided `model`; None where it has not.

    If the command line requests it, and the script has not called `parallelize`, this function calls it and gives the
    `optimizer` the new parameters. Raises `ConfigurationError` where the optimizer already has state of the old ones.
    """
    models, requested = place.context(_Models), place.context(Meshes)
    if requested.axes is not None and models.calls == 0:
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
        spread = models.sharded.get(model)
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
        replace_earlier(earlier, new)
    return models.sharded.get(model)


def _begin_alike(model: Module, wire: Wire) -> None:
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


def replace_earlier(earlier: Sequence[tuple[str, Parameter]], now: Mapping[str, Parameter]) -> None:
    """Replace `earlier` parameters by those of the model `now`, by name, in lists, dicts and objects.

    A script for which the command line requests shards has older lists of its parameters: for clipping, for moving
    averages, in other optimizers. They hold full parameters that are no longer trained, so they get those in shards.
    Local variables of functions keep what they have. Cost: one check of the objects of the process.

    Raises `ConfigurationError` for a tuple, a set, or the state of another optimizer, which cannot be changed.
    """
    new = {id(p): now[name] for name, p in reversed(earlier) if name in now and now[name] is not p}
    names = {id(p): name for name, p in earlier}
    replaced = [p for p in {id(p): p for _, p in earlier}.values() if id(p) in new]
    own = {id(x) for x in (replaced, earlier)} | {id(pair) for pair in earlier}
    holders = {id(x): x for x in gc.get_referrers(*replaced) if id(x) not in own} if replaced else {}
    for holder in holders.values():
        kept = _replace(holder, new)
        if kept is not None:
            kind = type(holder).__name__
            raise ConfigurationError(
                f"a {kind} made before quorate.distribute holds {names[id(kept)]}, and would keep it as it was "
                f"before the model was put in shards; call quorate.parallelize(model) before the {kind} is made"
            )


def _replace(holder: Any, new: Mapping[int, Parameter]) -> Any:
    """Replace parameters in `holder`; return a parameter that cannot be replaced there, or None."""
    if isinstance(holder, FrameType):
        return None
    if isinstance(holder, list):
        holder[:] = [new.get(id(x), x) for x in holder]
        return None
    if isinstance(holder, CellType):
        holder.cell_contents = new.get(id(holder.cell_contents), holder.cell_contents)
        return None
    values = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
    is_known = isinstance(holder, dict)
    for key in [key for key, value in values.items() if id(value) in new]:
        values[key], is_known = new[id(values[key])], True
    if isinstance(holder, dict):
        return next((key for key in holder if id(key) in new), None)
    if isinstance(holder, tuple | set | frozenset) or not is_known:
        return next((x for x in gc.get_referents(holder) if id(x) in new), None)
    return None
