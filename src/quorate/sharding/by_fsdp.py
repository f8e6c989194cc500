"""Sharding of a model by torch's FSDP2. Importing this module imports torch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn import Module, Parameter

from quorate.core.axes import Zero
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import as_piece_of, local
from quorate.sharding.allocator import give_back
from quorate.sharding.collectives import Pieces
from quorate.sharding.groups import over_wires, split_by_dtype
from quorate.sharding.mesh import Seat
from quorate.sharding.offload import Offloaded, count
from quorate.sharding.plain_modules import plain_classes, without_hooks
from quorate.sharding.replicated import put_back, stand_in
from quorate.sharding.script_access import HooksBefore, check_shardable, give_access
from quorate.sharding.tensor_operations import define_operations
from quorate.sharding.walks import Walk, note_calls
from quorate.wire.metered import Metered


def is_sharded_already(model: Module) -> bool:
    """Return whether a module of `model` is in shards."""
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
    """Shard `model` in place, each of the `blocks` as one piece, and the remainder too if `is_whole`.

    `rests` is the part that lies on the host. Parameters in `apart` are left as they are. Returns the modules that are
    in shards.
    """
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
    reshards: dict[Module, bool | None] = dict.fromkeys(blocks, zero == 3)
    if is_whole:
        reshards[model] = False if zero < 3 else None
    _fully_shard(model, reshards, chosen)
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    pieces: Pieces | None = None
    walk: Walk | None = None
    if seat.axes.shards > 1 and not _over_wires(seat):
        walk = Walk(seat.beside.channel("walk"))
        for name, module in model.named_modules():
            if isinstance(module, FSDPModule):
                note_calls(module, walk, name or "the rest of the model")
    elif seat.axes.shards > 1:
        pieces = Pieces(Metered(seat.beside.channel("fsdp"), seat.traffic.meter), seat.traffic)
        seat.traffic.meet_also(pieces.meet)
        _name(modules, model, pieces)
    if rests is not None and is_on_host:
        count(modules, rests.boundary, is_converted=precision is not None)
    if zero == 1 and is_whole:
        root: Any = model
        seat.traffic.reduces = root.set_requires_gradient_sync
    seat.traffic.forgets.append(partial(_step_ended, modules, is_on_cpu, walk))
    handles = [model.register_forward_hook(partial(_forget_without_backward, modules)), *give_access(model)]
    hooks.move(model)
    meet = _meet_by_torch if pieces is None else pieces.meet
    define_operations(seat.shards, meet)
    is_alone = is_whole and not apart and seat.axes.tensor == 1
    _note(modules, Spread(model, modules, seat, pieces, chosen, handles, is_alone=is_alone))
    return list(modules)


def _meet_by_torch(call: str) -> None:
    """Let workers meet in a collective of torch."""


def _fully_shard(model: Module, reshards: Mapping[Module, bool | None], chosen: Mapping[str, Any]) -> None:
    """Shard modules of `model`, each as one piece, inner modules first. `reshards` maps each module to whether it is
    sharded again after a forward pass."""
    kept = stand_in(model)
    for module, reshard in reshards.items():
        fully_shard(module, reshard_after_forward=reshard, **chosen)
    put_back(list(reshards), kept)
    for module in reshards:
        split_by_dtype(module)


@dataclass
class Spread:
    """A model in shards, and how it was made, for `quorate.whole` and for copies of the model."""

    model: Module
    modules: Sequence[Any]
    """The modules in shards, from each of which this object is reached."""
    seat: Seat
    pieces: Pieces | None
    chosen: Mapping[str, Any]
    """Arguments of `fully_shard`."""
    handles: Sequence[Any] = ()
    """Handles of hooks that copies do not have."""
    is_alone: bool = True
    """Whether the model is divided into shards alone."""
    is_whole: bool = False
    """Whether the model is inside `quorate.whole`."""
    copies: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    def forget(self) -> None:
        """Free gathered parameters."""
        _forget(self.modules)

    def meet(self, call: str) -> None:
        """Wait until all workers of the replica have reached the same call. Raises as `Traffic.meet`."""
        self.seat.traffic.meet(call)


_SPREADS: WeakKeyDictionary[Module, Spread] = WeakKeyDictionary()
"""The `Spread` of each module in shards of this process."""


def spread_of(model: Module) -> Spread | None:
    """Return how `model`, or the model of which it is a copy, is sharded. None where it is no such model, or is divided
    along other axes as well."""
    spread = _SPREADS.get(model)
    return spread if spread is not None and spread.model is model and spread.is_alone else None


def _name(modules: Sequence[Any], model: Module, pieces: Pieces, of: str = "") -> None:
    names = {id(module): name or "the rest of the model" for name, module in model.named_modules()}
    for module in modules:
        over_wires(module, pieces, f"{names[id(module)]}{of}")
        module._set_unshard_async_op(True)  # else a buffer is kept until the next block is gathered


def _note(modules: Sequence[Any], spread: Spread) -> None:
    for module in modules:
        _SPREADS[module] = spread
        type(module).__deepcopy__ = _copied  # torch's own refuses


def _copied(module: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy of a module in shards, with pieces of its own. No worker waits for others here.

    A call of the copy gathers parameters, as one of the module does, and keeps none of them. Inside `quorate.whole`
    the copy is a plain module with full parameters. Cost: the pieces; on GPUs the full parameters for a moment.
    """
    spread = _SPREADS.get(module)
    if spread is None or not spread.is_alone:
        raise ConfigurationError(
            "copy.deepcopy knows models in shards alone, and this one is divided otherwise as well (along tensor or "
            "stages, or it has quorate.Experts in pieces); keep model.state_dict() instead"
        )
    modules = [part for part in module.modules() if isinstance(part, FSDPModule)]
    if not spread.is_whole:
        _forget(modules)
        for p in module.parameters():
            sharded: Any = p
            empty = torch.empty(p.shape, dtype=p.dtype, device=sharded.device_mesh.device_type)
            memo[id(p)] = Parameter(empty, requires_grad=p.requires_grad)
    with without_hooks(modules, spread.handles), plain_classes(modules):
        made = copy.deepcopy(module, memo)
    if spread.is_whole:
        return made
    copies = [memo[id(part)] for part in modules]
    pairs = [(p, part, key) for part in module.modules() for key, p in part._parameters.items() if p is not None]
    _fully_shard(made, dict.fromkeys(reversed(copies), True), spread.chosen)
    if spread.pieces is not None:
        _name(copies, made, spread.pieces, f" of copy {next(spread.copies)}")
    with torch.no_grad():
        for p, part, key in pairs:
            piece = memo[id(part)]._parameters[key]
            local(piece).copy_(local(p))
            piece.grad = None if p.grad is None else as_piece_of(piece, local(p.grad).clone())
    _note(copies, replace(spread, model=made, modules=copies, handles=give_access(made)))
    return made


def _over_wires(seat: Seat) -> bool:
    """Return whether Quorate's messages carry the pieces, instead of torch's collectives."""
    return seat.shards.device_type == "cpu"


def _step_ended(modules: Sequence[FSDPModule], is_on_cpu: bool, walk: Walk | None) -> None:
    _forget(modules)
    if walk is not None:
        walk.step_ended()
    if is_on_cpu:
        give_back()


def _forget(modules: Sequence[FSDPModule]) -> None:
    for module in modules:
        module.reshard()


def _forget_without_backward(modules: Sequence[FSDPModule], *_: object) -> None:
    """Free parameters after a forward pass without a backward pass, which would do it."""
    if not torch.is_grad_enabled():
        _forget(modules)
