"""Layers of a model that several workers compute together. Importing this module imports torch."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.nn import GroupNorm, Module, MultiheadAttention, Parameter
from torch.nn.functional import pad

from quorate.core.errors import ConfigurationError, Mismatch
from quorate.core.local_tensor import is_sharded
from quorate.data.common_draws import CommonDraws
from quorate.sharding.bits import digest_of_inputs
from quorate.sharding.mesh import Coordinates
from quorate.sharding.plain_piece import plain_piece
from quorate.sharding.sequence import InPieces
from quorate.sharding.tensor.activations import Together, copied, joined, piece_of_sum, summed
from quorate.sharding.tensor.branches import branches_in
from quorate.sharding.tensor.dealt import attach, deal_out
from quorate.sharding.tensor.finding import tensor_plan
from quorate.sharding.tensor.heads import head_size, repeated_head, tell_heads
from quorate.sharding.tensor.plan import (
    CLOSED,
    FUSED,
    Plan,
    by_channel,
    channel_dim,
    check_plan,
    cut_dim,
    is_convolution,
    is_linear,
    is_of_transformers,
    is_transposed,
    pieces_of,
    sequence_plan,
    widths,
)
from quorate.sharding.tensor.sequence import Pieces, attentions_in, blocks_in
from quorate.wire import current
from quorate.wire.metered import Metered

_CALLS_NONE_OF_ITS_OWN = (*CLOSED, MultiheadAttention)
_WITHOUT_ASSERTIONS = ("cpu", "mps", "xpu")
"""Devices that report nothing by themselves, or at once."""


def plan_for(model: Module, tensor: object, workers: int) -> Plan:
    """Return the checked plan of the script. Raises `ConfigurationError`."""
    if tensor == "auto" or tensor is None:
        plan = tensor_plan(model, workers)
    elif tensor == "sequence":
        plan = sequence_plan(model, workers)
    elif isinstance(tensor, Mapping):
        why = tensor.why if isinstance(tensor, Plan) else {}
        plan = Plan(model, workers, tensor, why)
    else:
        raise ConfigurationError(
            f'tensor={tensor!r} is not a plan; it must be "auto", "sequence", what quorate.tensor_plan returns, or '
            "names of modules and their styles"
        )
    check_plan(plan, model, workers)
    for name, style in plan.items():
        if style == "repeated":
            repeated_head(plan, model, name, workers)
    if all(style == "whole" for style in plan.values()) and not branches_in(model):
        raise ConfigurationError(
            "the tensor plan cuts no layer of the model, so all workers would compute the same; name layers in "
            "tensor={...}, or use shards"
        )
    return plan


def by_tensor(
    model: Module, plan: Plan, coordinates: Coordinates, apart: Collection[Module] = ()
) -> Callable[[], AbstractContextManager[None]]:
    """Cut `model` in place; its workers draw the same random numbers from now on. Modules in `apart` do not register
    calls: their caller replaces their parameters by plain tensors. Returns a context within which each worker calls the
    full model independently."""
    assert coordinates.parts is not None
    traffic = coordinates.traffic
    together = Together(Metered(coordinates.together.channel("tensor"), traffic.meter), traffic, coordinates.parts)
    vectors = [(layer, deal_out(layer, name, model, together)) for name, layer in branches_in(model).items()]
    cut_parameters(model, plan, coordinates.parts)
    for module, vector in vectors:
        attach(module, vector, together)
    statistics = hook_layers(model, plan, together, apart)
    in_pieces = None
    if plan.is_of_pieces:
        in_pieces = current.here().context(InPieces)
        in_pieces.together = together
    calls = _Calls(together, statistics, in_pieces)
    model.register_forward_pre_hook(calls.before, with_kwargs=True)
    model.register_forward_hook(calls.behind, always_call=True)
    coordinates.traffic.meets.append(together.meet)
    _draw_alike(together)
    return calls.separately


def _draw_alike(together: Together) -> None:
    """Give the generators of torch, numpy and Python the state that they have on the first of the workers."""
    draws = current.here().context(CommonDraws)
    seeds = [int(torch.empty((), dtype=torch.int64).random_()), draws.own]
    draws.join(*together.values_of_all("draws of random numbers", seeds)[0])


def _digest_of_generators(together: Together) -> int:
    states = [torch.get_rng_state().numpy().tobytes(), repr(random.getstate()).encode()]
    states += [repr(np.random.get_state(legacy=False)["state"]).encode()]
    if together.mesh.device_type == "cuda":
        states.append(torch.cuda.get_rng_state().numpy().tobytes())
    return zlib.crc32(b"".join(states))


class _Calls:
    """Watches the calls of one model: its workers must be given the same inputs, or pieces of the same."""

    def __init__(self, together: Together, statistics: Statistics, in_pieces: InPieces | None) -> None:
        self._together, self._statistics, self._in_pieces, self._calls = together, statistics, in_pieces, 0

    def before(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compare inputs in calls 1, 2, 4, 8 and so on. Raises `Mismatch`."""
        self._calls += 1
        self._statistics.is_in_call = True
        self._together.begin()
        if not self._calls & (self._calls - 1):
            self._compare(() if self._in_pieces is not None else (*args, *kwargs.values()))
        if self._in_pieces is not None:
            self._in_pieces.has_attended = False
            self._together.draw_apart()

    def _compare(self, values: tuple[Any, ...]) -> None:
        local_digests = [digest_of_inputs(values), zlib.crc32(torch.get_rng_state().numpy().tobytes())]
        digests = self._together.values_of_all(f"call {self._calls} of the model", local_digests)
        for kind, at in (("batches", 0), ("random numbers", 1)):
            if any(other[at] != digests[0][at] for other in digests):
                raise Mismatch(
                    f"workers that compute a model together were given different {kind} (call {self._calls} of the "
                    "model). Load data with quorate.loader, and draw the same random numbers on all workers "
                    "of the tensor axis"
                )

    @contextmanager
    def separately(self) -> Iterator[None]:
        """Inside, each worker calls the full model independently. Afterwards all draw the same random numbers again, if
        some worker has drawn others."""
        if self._in_pieces is not None:
            self._in_pieces.together = None
        try:
            yield
        finally:
            if self._in_pieces is not None:
                self._in_pieces.together = self._together
        states = self._together.values_of_all(
            "random numbers after quorate.whole", _digest_of_generators(self._together)
        )
        if any(state != states[0] for state in states):
            _draw_alike(self._together)

    def behind(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        """Let all workers draw the same random numbers again, even after an error."""
        self._together.draw_alike()
        self._statistics.is_in_call = False
        if output is not None:
            self._statistics.join()
        if self._in_pieces is not None and output is not None and not self._in_pieces.has_attended:
            raise ConfigurationError(
                'the model has pieces of the sequence (tensor="sequence"), and has not called '
                "quorate.sequence_attention, without which positions on different workers are independent"
            )


@dataclass
class Layer:
    """One module with parameters of its own.

    Parameters are `DTensor`s; while a layer calculates, its module has plain local tensors, with a graph that leads
    back to the parameters. So the code of a model sees plain tensors only, some of them narrower.
    """

    name: str
    style: str
    together: Together
    statistics: Statistics
    owners: list[Module]
    """The modules whose parameters it uses: itself, and for some modules of torch the modules inside."""
    width: int | None = None
    """The width of its full input, or of the piece of it that it takes."""
    first: int = 0
    """The first entry of a cut embedding that is here."""
    total: int = 0
    """The entries of a cut vocabulary; the last worker's piece is smaller where they do not divide."""
    head: tuple[int, int] | None = None
    """The offset and the size of this worker's head in a layer of repeated heads."""
    outside: list[Tensor] = field(default_factory=list)
    """For each call in progress, a mask of the ids that are entries of other workers."""
    kept: list[list[tuple[Module, str, Any]]] = field(default_factory=list)
    after: list[Tensor | None] = field(default_factory=list)
    """The biases added to the sum."""
    is_in_sequence: bool = False
    """Whether it is in a block that has a piece of the sequence."""
    is_given_all: bool = False
    """Whether it gets the full sequence all the same."""

    def before(self, module: Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Replace parameters by plain tensors, and prepare the input."""
        self.together.layer = self.name
        kept: list[tuple[Module, str, Any]] = []
        self.kept.append(kept)
        for owner in self.owners:
            for key, p in list(owner._parameters.items()):
                if p is not None and hasattr(p, "to_local"):
                    kept.append((owner, key, p))
                    owner._parameters[key] = self._plain(module, key, p)
        if self.style == "channels":
            self.statistics.lend(module, kept)
        if self.style in ("whole", "sequence", "channels"):
            return None
        if not args or not isinstance(args[0], Tensor):
            raise ConfigurationError(f"{self.name} is divided, so its first argument must be a tensor")
        return (self._input(module, args[0]), *args[1:])

    def _plain(self, module: Module, key: str, p: Any) -> Any:
        here = plain_piece(p)
        if self.head is not None:
            dim = 1 if key == "weight" and is_of_transformers(module) else 0
            return copied(here, self.together).narrow(dim, *self.head)
        if self.style == "sequence":
            return copied(here, self.together)
        if self.style == "fused" and key == "bias":
            return of_fused(copied(here, self.together), 0, self.together.size, self.together.rank)
        if self.style in ("rows", "pieces") and key == "bias":
            self.after.append(copied(here, self.together) if self.is_in_sequence else here)
            return torch.zeros_like(here) if is_of_transformers(module) else None
        return here

    def _input(self, module: Module, x: Tensor) -> Tensor:
        together = self.together
        if self.style == "embedding":
            return self._own_entries(x)
        width = x.shape[channel_dim(module, x)]
        if width != self.width:
            raise ConfigurationError(
                f'{self.name} is cut by "{self.style}" and takes {self.width} numbers here, not {width}; '
                "a layer cut by columns must be followed directly by one cut by rows"
            )
        if self.style in ("rows", "pieces") or self.is_given_all:
            if not self.is_in_sequence and self.style == "rows":
                together.draw_alike()
            return x
        return together.copied(x, is_piece=self.is_in_sequence)

    def _own_entries(self, ids: Tensor) -> Tensor:
        count = self.width or 0
        _check_entries(ids, self.total, f"{self.name} has {self.total} entries, and was asked for another one")
        outside = (ids < self.first) | (ids >= self.first + count)
        self.outside.append(outside)
        return (ids - self.first).masked_fill(outside, 0)

    def behind(self, module: Module, args: tuple[Any, ...], output: Any) -> Any:
        """Put the parameters back, and complete the output. Without an `output` an error was raised."""
        for owner, key, p in self.kept.pop():
            (owner._parameters if key in owner._parameters else owner._buffers)[key] = p
        bias = self.after.pop() if self.after else None
        outside = self.outside.pop() if self.outside else None
        if not isinstance(output, Tensor):
            return None
        if self.style == "channels":
            self.statistics.pause()
        together = self.together
        if outside is not None:
            output = output.masked_fill(outside.unsqueeze(-1), 0.0)
        if self.style == "pieces":
            output = piece_of_sum(output, together, channel_dim(module, output))
            return output if bias is None else output + _by_channel(bias, module)
        if self.style in ("rows", "embedding"):
            output = piece_of_sum(output, together, 1) if self.is_in_sequence else summed(output, together)
            return output if bias is None else output + _by_channel(bias, module)
        if self.style == "head":
            return self._all_logits(output)
        if self.style == "logits":
            pieces: Any = DTensor.from_local(output, together.mesh, [Shard(output.dim() - 1)], run_check=False)
            return pieces
        if self.style in ("columns", "fused", "repeated") and module.training and not self.is_in_sequence:
            together.draw_apart()
        return output if self.style != "whole" else None

    def _all_logits(self, output: Tensor) -> Tensor:
        dim, each = output.dim() - 1, pieces_of(self.total, self.together.size)
        if self.total == each * self.together.size:
            return joined(output, self.together, dim)
        filled = pad(output, (0, each - output.shape[dim]))
        return joined(filled, self.together, dim).narrow(dim, 0, self.total)


def _check_entries(ids: Tensor, count: int, sentence: str) -> None:
    """Raise `IndexError` with the `sentence` for an id that is none of `count` entries.

    A CUDA device is not waited for: it asserts the same itself, as in torch's own embeddings.
    """
    if not ids.numel():
        return
    least, most = ids.aminmax()
    are_entries = (least >= 0) & (most < count)
    if ids.device.type not in _WITHOUT_ASSERTIONS:
        torch._assert_async(are_entries, sentence)
    elif not are_entries:
        raise IndexError(sentence)


def _by_channel(bias: Tensor, module: Any) -> Tensor:
    return bias.view(-1, *(1,) * (module.weight.dim() - 2))


def hook_layers(model: Module, plan: Plan, together: Together, apart: Collection[Module] = ()) -> Statistics:
    """Let every module of `model` calculate with its pieces; return the running statistics of channels. Raises
    `ConfigurationError` for heads that are not divisible by the workers."""
    inside = {
        id(part): module
        for module in model.modules()
        if isinstance(module, _CALLS_NONE_OF_ITS_OWN)
        for part in module.modules()
        if part is not module
    }
    blocks = blocks_in(plan, model) if "sequence" in plan.values() and not plan.is_of_pieces else []
    attentions = attentions_in(plan, model, blocks)
    statistics = Statistics(together)
    for name, module in model.named_modules():
        owners = [module] if id(module) not in inside and module not in apart else []
        if owners and isinstance(module, _CALLS_NONE_OF_ITS_OWN):
            owners = list(module.modules())
        has_own = any(p is not None for owner in owners for p in owner._parameters.values())
        if has_own or plan.get(name) == "channels":
            layer = Layer(name, plan.get(name, "whole"), together, statistics, owners)
            if layer.style == "repeated":
                heads, size = repeated_head(plan, model, name, together.size)
                layer.head = together.rank * heads // together.size * size, size
            _hook(layer, module)
            layer.is_in_sequence = name.startswith(tuple(f"{block}." for block in blocks))
            layer.is_given_all = name.rpartition(".")[0] in attentions and layer.style != "rows"
    if blocks:
        Pieces(together).hook(model, blocks, attentions)
    for name, module in model.named_modules():
        _tell(name, module, plan, together)
    return statistics


def _hook(layer: Layer, module: Any) -> None:
    style, together = layer.style, layer.together
    if style == "embedding":
        layer.total, layer.width = module.num_embeddings, pieces_of(module.num_embeddings, together.size)
        layer.first = layer.width * together.rank
        if module.padding_idx is not None:
            own = module.padding_idx - layer.first
            module.padding_idx = own if 0 <= own < layer.width else None
    elif style == "channels":
        narrow(module, together.size)
    elif style not in ("whole", "sequence"):
        takes, gives = widths(module)  # of the whole, as is the shape of a DTensor
        layer.total = gives
        layer.width = takes // together.size if style in ("rows", "pieces") else takes
        if is_of_transformers(module) and style != "rows":
            each = pieces_of(gives, together.size)
            module.nf = min(each, gives - each * together.rank) if layer.head is None else layer.head[1]
    module.register_forward_pre_hook(layer.before)
    module.register_forward_hook(layer.behind, always_call=True)


def _tell(name: str, module: Module, plan: Mapping[str, str], together: Together) -> None:
    children = {key: plan.get(f"{name}.{key}" if name else key) for key in module._modules}
    inputs = [key for key, style in children.items() if style == "columns" and is_linear(module._modules[key])]
    repeated = [key for key, style in children.items() if style == "repeated"]
    fused = [key for key, style in children.items() if style == "fused"]
    if len(inputs) + len(repeated) >= 3:
        layers: list[Any] = [module.get_submodule(key) for key in (*inputs, *repeated)]
        width, queries = widths(layers[0])[1], None
        if repeated:
            queries = width // (head_size(module, layers, is_fused=False) or width) // together.size
        tell_heads(name, module, width, together.size, together.rank, queries)
    elif fused:
        width = widths(module.get_submodule(fused[0]))[1] // 3
        tell_heads(name, module, width, together.size, together.rank)


def narrow(module: Any, workers: int) -> None:
    """Set the number of channel groups of a module to that of its piece; the shapes it names are then those of the
    piece."""
    if isinstance(module, GroupNorm):
        module.num_groups, module.num_channels = module.num_groups // workers, module.num_channels // workers
    elif is_convolution(module):
        module.groups = module.groups // workers


class Statistics:
    """Running statistics by channel, of all norms of one model.

    Statistics stay full tensors, equal on all workers, so `state_dict`, strategies and checkpoints have the same
    tensors as in one process. A worker calculates with its part of them. The parts are joined at the end of a call of
    the model in which some were updated.
    """

    def __init__(self, together: Together) -> None:
        self._together = together
        self._renewed: dict[int, Tensor] = {}
        self.is_in_call = False
        """Whether a call of the model is in progress, at whose end they are joined."""

    def lend(self, module: Module, kept: list[tuple[Module, str, Any]]) -> None:
        """Give `module` its part of each buffer, to write to; append the full ones to `kept`, to be put back."""
        for key, whole in list(module._buffers.items()):
            if whole is not None and whole.dim():
                kept.append((module, key, whole))
                if module.training:  # backward does not read them, and does not mind what is joined later
                    self._renewed[id(whole)] = whole
                module._buffers[key] = self._part(whole.data if module.training else whole)

    def pause(self) -> None:
        """End a norm's pass: join the parts unless the model's pass does so later, as when activations are
        recalculated."""
        if not self.is_in_call:
            self.join()

    def join(self) -> None:
        """Send all workers the updated parts. Cost: (T - 1) / T of the numbers sent, in one message for each dtype."""
        renewed, self._renewed = list(self._renewed.values()), {}
        for dtype in dict.fromkeys(x.dtype for x in renewed):
            self._join([x for x in renewed if x.dtype == dtype])

    def _join(self, wholes: Sequence[Tensor]) -> None:
        together = self._together
        local_parts = torch.cat([self._part(x) for x in wholes])
        with torch.no_grad():
            for rank, theirs in enumerate(together.join(local_parts, 0).chunk(together.size)):
                for x, part in zip(wholes, theirs.split([len(x) // together.size for x in wholes]), strict=True):
                    x.chunk(together.size)[rank].copy_(part)

    def _part(self, whole: Tensor) -> Tensor:
        return whole.chunk(self._together.size)[self._together.rank]


def cut_parameters(model: Module, plan: Mapping[str, str], mesh: DeviceMesh) -> None:
    """Replace all parameters of `model` by their pieces; shared parameters stay shared.

    All become `DTensor`s over the same workers, even those that every worker holds in full: torch's functions over all
    parameters, such as `clip_grad_norm_`, then count each number once.
    """
    placed: dict[int, Placement] = {}
    for name, module in model.named_modules():
        style = plan.get(name, "whole")
        for key, p in module.named_parameters(recurse=False):
            placement = _placement(module, style, key)
            if placement is not None:
                placed[id(p)] = placement
    made: dict[int, Parameter] = {}
    for module in list(model.modules()):
        for key, p in list(module.named_parameters(recurse=False)):
            if id(p) not in made:  # a table by rows is sharded already
                made[id(p)] = p if is_sharded(p) else _piece(p, placed.get(id(p), Replicate()), mesh)
            module._parameters[key] = made[id(p)]


def _placement(module: Module, style: str, key: str) -> Placement | None:
    dim = cut_dim(style, is_transposed=is_transposed(module))
    if dim is None:
        return None
    if key == "weight":
        return _StridedShard(dim, split_factor=FUSED) if style == "fused" else Shard(dim)
    is_known = is_linear(module) or is_convolution(module) or by_channel(module) is not None
    return Shard(0) if style in ("columns", "pieces", "channels", "head", "logits") and is_known else None


def _piece(p: Parameter, placement: Any, mesh: DeviceMesh) -> Parameter:
    x = p.detach()
    if isinstance(placement, _StridedShard):
        x = of_fused(x, placement.dim, mesh.size(), mesh.get_local_rank())
    elif isinstance(placement, Shard):
        x = x.chunk(mesh.size(), placement.dim)[mesh.get_local_rank()]
    whole: dict[str, Any] = {"shape": p.shape, "stride": torch.empty(p.shape, device="meta").stride()}
    held = x.clone(memory_format=torch.contiguous_format)
    made = Parameter(DTensor.from_local(held, mesh, [placement], run_check=False, **whole), p.requires_grad)
    for key, value in vars(p).items():
        setattr(made, key, value)
    return made


def of_fused(x: Tensor, dim: int, workers: int, worker: int) -> Tensor:
    """Return a worker's part of query, of key, and of value, which are concatenated along `dim`."""
    part: Tensor = x.unflatten(dim, (FUSED, workers, -1)).select(dim + 1, worker).flatten(dim, dim + 1)
    return part
