"""Sharding of a model by torch's FSDP2. Importing this module imports torch."""

from __future__ import annotations

import copy
import ctypes
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import zip_longest
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import Module, Parameter

from quorate.core.axes import Zero
from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import ConfigurationError, Mismatch
from quorate.core.fields import Fields
from quorate.core.local_tensor import as_piece_of, local
from quorate.sharding.collectives import REMEDY, Pieces, groups_of, over_wires, split_by_dtype
from quorate.sharding.mesh import Coordinates
from quorate.sharding.offload import Offloaded, count
from quorate.sharding.plain_modules import plain_classes, replace_parameters, without_hooks
from quorate.sharding.script_access import HooksBefore, check_shardable, give_access
from quorate.sharding.tensor_operations import define_operations
from quorate.wire.metered import Metered

_LAG = 2
"""Steps after which the neighbour's list of collectives is waited for."""


def is_sharded_already(model: Module) -> bool:
    """Return whether a module of `model` is in shards."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def shard(
    model: Module,
    blocks: Sequence[Module],
    coordinates: Coordinates,
    zero: Zero,
    precision: str | None,
    in_ram: Offloaded | None,
    apart: Collection[Parameter] = (),
    *,
    is_whole: bool = True,
    is_alone: bool = True,
    handles: Sequence[Any] = (),
) -> list[Any]:
    """Shard `model` in place, each of the `blocks` as one piece, and the remainder too if `is_whole`.

    `in_ram` is the part that lies on the host. Parameters in `apart` are left as they are: with `is_alone` they are
    tables by rows, whose hooks have these `handles`. Returns the modules that are in shards.
    """
    is_on_cpu = coordinates.shards.device_type == "cpu"
    chosen: dict[str, Any] = {"mesh": coordinates.shards}
    if apart:
        chosen["ignored_params"] = set(apart)
    if precision is not None:
        chosen["mp_policy"] = MixedPrecisionPolicy(param_dtype=getattr(torch, precision), reduce_dtype=torch.float32)
    is_on_host = in_ram is not None and in_ram.where == "all"
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
    if coordinates.axes.shards > 1 and not _over_wires(coordinates):
        walk = Walk(coordinates.beside.channel("walk"))
        for name, module in model.named_modules():
            if isinstance(module, FSDPModule):
                note_calls(module, walk, name or "the rest of the model")
    elif coordinates.axes.shards > 1:
        pieces = Pieces(Metered(coordinates.beside.channel("fsdp"), coordinates.traffic.meter), coordinates.traffic)
        coordinates.traffic.meets.append(pieces.meet)
        _name(modules, model, pieces)
    if in_ram is not None and is_on_host:
        count(modules, in_ram.boundary, is_converted=precision is not None, is_on_cpu=is_on_cpu)
    if zero == 1 and is_whole:
        root: Any = model
        coordinates.traffic.syncs.append(root.set_requires_gradient_sync)
    coordinates.traffic.forgets.append(partial(_step_ended, modules, is_on_cpu, walk))
    handles = [*handles, model.register_forward_hook(partial(_forget_without_backward, modules)), *give_access(model)]
    hooks.move(model)
    meet = _meet_by_torch if pieces is None else pieces.meet
    define_operations(coordinates.shards, meet)
    is_alone = is_alone and is_whole and coordinates.axes.tensor == 1
    is_copied = is_alone and not apart
    _note(modules, Spread(model, modules, coordinates, pieces, chosen, handles, is_alone=is_alone, is_copied=is_copied))
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
    coordinates: Coordinates
    pieces: Pieces | None
    chosen: Mapping[str, Any]
    """Arguments of `fully_shard`."""
    handles: Sequence[Any] = ()
    """Handles of hooks that copies do not have."""
    is_alone: bool = True
    """Whether the model is divided into shards alone."""
    is_copied: bool = True
    """Whether copies of it can be in shards, too."""
    is_whole: bool = False
    """Whether the model is inside `quorate.whole`."""
    copies: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    def forget(self) -> None:
        """Free gathered parameters."""
        _forget(self.modules)

    def meet(self, call: str) -> None:
        """Wait until all workers of the replica have reached the same call. Raises as `Traffic.meet`."""
        self.coordinates.traffic.meet(call)


_SPREADS: WeakKeyDictionary[Module, Spread] = WeakKeyDictionary()
"""The `Spread` of each module in shards of this process."""


def spread_of(model: Module) -> Spread | None:
    """Return how `model`, or the model of which it is a copy, is sharded. None where it is no such model, or is divided
    along other axes as well."""
    spread = _SPREADS.get(model)
    return spread if spread is not None and spread.model is model and spread.is_alone else None


def spreads_in(model: Module) -> list[Spread]:
    """Return how the modules of `model` are sharded; with stages, there is one root for all modules of a worker."""
    return list({id(spread): spread for module in model.modules() if (spread := _SPREADS.get(module))}.values())


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
    if spread is None or not (spread.is_copied or spread.is_whole):
        raise ConfigurationError(
            "copy.deepcopy knows models in shards alone, and this one is divided otherwise as well, as with tables by "
            "rows. Copy it inside quorate.whole; with quorate.Experts in pieces keep model.state_dict() instead"
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


def _over_wires(coordinates: Coordinates) -> bool:
    """Return whether Quorate's messages carry the pieces, instead of torch's collectives."""
    return coordinates.shards.device_type == "cpu"


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


def is_uncut(p: Tensor) -> bool:
    """Return whether `p` cannot be cut: it has no dimensions, or no elements."""
    return p.dim() == 0 or p.numel() == 0


@dataclass(frozen=True)
class StoodIn:
    """A parameter of `module` that has a placeholder."""

    module: Module
    key: str
    parameter: Parameter


def stand_in(model: Module) -> dict[tuple[int, str], StoodIn]:
    """Replace parameters that cannot be cut by placeholders of shape (1,); return the parameters by module and name.

    FSDP2 cuts along the first dimension, and its kernels need elements. A placeholder of one number takes part in its
    collectives; the parameter that the script sees keeps its shape, as a replicated `DTensor`.
    """
    kept: dict[tuple[int, str], StoodIn] = {}
    stands: dict[int, Parameter] = {}
    for module in model.modules():
        for key, p in module._parameters.items():
            if p is not None and not isinstance(p, DTensor) and is_uncut(p):
                kept[id(module), key] = StoodIn(module, key, p)
                numbers = p.detach().reshape(-1) if p.numel() else p.detach().new_zeros(1)
                stands.setdefault(id(p), Parameter(numbers.clone(), requires_grad=p.requires_grad))
    if stands:
        replace_parameters(model, lambda p: stands.get(id(p), p))
    return kept


def put_back(modules: list[Any], kept: Mapping[tuple[int, str], StoodIn]) -> None:
    """Restore the shapes of parameters that `stand_in` has replaced. In the sharded `modules` they become replicated
    `DTensor`s; elsewhere they are put back unchanged."""
    for replaced in kept.values():
        if not isinstance(replaced.module._parameters[replaced.key], DTensor):
            replaced.module._parameters[replaced.key] = replaced.parameter
    for group in (group for module in modules for group in groups_of(module)):
        for sharded in group.fsdp_params:
            info = sharded._module_info
            if (id(info.module), info.param_name) in kept:
                sharded.__class__ = _Replicated
                sharded.begin(kept[id(info.module), info.param_name].parameter)


class _Replicated(FSDPParam):
    """A parameter of which every worker sends its number and takes the first; its gradient is the mean of all."""

    def begin(self, p: Parameter) -> None:
        spec: Any = self._sharding_spec
        made = DTensor.from_local(
            p.detach().to(self.device), spec.mesh, [Replicate()] * spec.mesh.ndim, run_check=False
        )
        self._sharding_spec = made._spec
        self._orig_size = self.sharded_size = p.shape
        self._contiguous_orig_stride = self.contiguous_sharded_stride = made.stride()
        self._take(Parameter(made, requires_grad=p.requires_grad))
        self._setattr_on_modules(self.sharded_param)

    def _take(self, sharded_param: Any) -> None:
        self.sharded_param = sharded_param
        here = sharded_param._local_tensor
        self._sharded_param_data = here.view(-1) if here.numel() else here.new_zeros(1)

    def reset_sharded_param(self) -> None:
        self._take(getattr(self._module_info.module, self._module_info.param_name))

    def _get_grad_inner_tensor(self, grad: Tensor) -> Tensor:
        numbers = grad.reshape(-1) if grad.numel() else grad.new_zeros(1)
        return numbers.expand(self.mesh_info.shard_mesh_size)


@dataclass(frozen=True, slots=True)
class StepCalls(Fields):
    """The message to the neighbour at the end of a step; without the field where the last list holds."""

    calls: Sequence[str] | None = None


class Walk:
    """The collectives of one model's blocks on this worker, and on its neighbour: all workers call them in one order.

    NCCL moves numbers without a name: workers that use other blocks, of equal sizes, would calculate with each other's
    numbers. So each worker notes the blocks that it has gathered and reduced. At the end of a step it sends the list to
    its neighbour, over the connection between the hosts. Nobody waits for it: it is compared when it has come, at the
    end of one of the next two steps. Unequally many collectives wait for each other inside NCCL, up to its own limit.

    Cost: a header to one neighbour in each step, and the list where it differs from the last one.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire, self._step = wire, 0
        self.calls: list[str] = []
        """The collectives of this step."""
        self._sent: tuple[str, ...] | None = None
        self._received: list[str] = []
        self._pending: deque[tuple[int, tuple[str, ...], Work[tuple[int, Message]]]] = deque()

    def step_ended(self) -> None:
        """Send the list of this step, and compare those that have come. Raises `Mismatch` where they differ."""
        wire, own = self._wire, tuple(self.calls)
        self.calls.clear()
        self._step += 1
        tag, following, previous = f"walk/{self._step}", (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
        wire.send(Message((), {} if own == self._sent else StepCalls(own).header()), following, tag)
        self._sent = own
        self._pending.append((self._step, own, wire.receive(previous, tag, [previous])))
        while self._pending and (len(self._pending) > _LAG or self._pending[0][2].done()):
            step, calls, work = self._pending.popleft()
            calls_there = StepCalls.read(work.wait()[1].header).calls
            self._received = self._received if calls_there is None else list(calls_there)
            self._compare(step, calls, previous)

    def _compare(self, step: int, own: tuple[str, ...], previous: int) -> None:
        for number, (here, there) in enumerate(zip_longest(own, self._received, fillvalue="nothing more"), 1):
            if here != there:
                raise Mismatch(
                    f"in step {step} of a model in shards, collective {number}, worker {self._wire.rank} of the "
                    f"replica called {here}, and worker {previous} called {there}{REMEDY}"
                )


class _Noted:
    """A collective of torch's, noted by the name of its block."""

    def __init__(self, inner: Any, walk: Walk, call: str) -> None:
        self._inner, self._walk, self._call, self.allocate = inner, walk, call, inner.allocate

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._walk.calls.append(self._call)
        return self._inner(*args, **kwargs)


def note_calls(module: Any, walk: Walk, name: str) -> None:
    """Let the groups of `module`, which is called `name`, note their collectives in `walk`."""
    for group in groups_of(module):
        group._all_gather_comm = _Noted(group._all_gather_comm, walk, f"all_gather of {name}")
        group._reduce_scatter_comm = _Noted(group._reduce_scatter_comm, walk, f"reduce_scatter of {name}")


def give_back() -> bool:
    """Return free memory to the kernel. Return whether the C library returned any (glibc only).

    glibc keeps freed memory for later requests, and raises the size from which an allocation is a mapping of its own,
    so gathered parameters and gradients stay resident. Returning allocations of 128 KiB and more at once, as a fixed
    threshold does, is slower: the memory of passes is mapped again many times in a step. Measured with 25 million
    parameters in two shards, two workers each: 0.82 s a step and 221 MB resident after it with that threshold. If
    memory is returned at the end of the step, it is 0.55 s and 215 MB.
    """
    trim = _trim()
    return trim is not None and bool(trim(0))


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        malloc_trim: Callable[[int], int] = ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return None
    return malloc_trim
