"""`whole`: a model in shards with full parameters, inside a `with` block."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from quorate.core.axes import rows_of
from quorate.core.errors import ConfigurationError, Mismatch
from quorate.core.local_tensor import is_sharded, local

M = TypeVar("M", bound=Module)


@contextmanager
def whole(model: M) -> Iterator[M]:
    """Give a model in shards full parameters inside a `with` block: plain tensors, on every worker.

    Inside, the model is called, printed, copied (`copy.deepcopy`) and saved (`state_dict()`) as in one process, and
    workers may call it unequally often, or not at all. Changes of parameters made inside are kept; all workers of a
    replica must make the same. Gradients are not: backward passes belong outside. A model that is not in shards is
    left as it is.

    Args:
        model: The model that `quorate.parallelize` (or `--zero`) has spread, or a copy of it.

    Yields:
        `model`.

    Raises:
        ConfigurationError: The model is divided along the axes tensor or stages, has `quorate.Experts` in pieces, or
            has parameters on the host of a GPU; or parameters got gradients inside.
        Mismatch: A worker has come to another call, or workers have changed parameters differently.

    Cost: all workers of a replica enter and leave together. Each sends its piece to the others, Psi (S - 1) / S numbers
    received for Psi parameters and S shards, and holds all parameters inside. Nothing is sent at the end.

    Example:
        >>> with quorate.whole(model):
        ...     weights = model.state_dict()
    """
    if not isinstance(model, Module):
        raise ConfigurationError(f"quorate.whole takes a torch.nn.Module, not {type(model).__name__}")
    from quorate.sharding.by_fsdp import spread_of

    spread = spread_of(model)
    if spread is None or spread.is_whole:
        if spread is None and any(map(is_sharded, model.parameters())):
            raise ConfigurationError(
                "quorate.whole takes the model that quorate.parallelize has divided into shards alone; this one is "
                "divided otherwise (along tensor or stages, or by other means), or is a part of one"
            )
        yield model
        return
    if any(local(p).device.type != spread.coordinates.shards.device_type for p in model.parameters()):
        raise ConfigurationError('quorate.whole does not gather parameters that rest on the host (offload="all")')
    from quorate.sharding.plain_modules import replace_parameters, without_hooks

    spread.forget()
    spread.meet("the beginning of quorate.whole")
    held = {id(p): _Held(name, p) for name, p in model.named_parameters()}
    replace_parameters(model, lambda p: held[id(p)].whole)
    names: dict[int, list[tuple[Module, str]]] = {}
    for module in model.modules():
        for key, p in module._parameters.items():
            if p is not None:
                names.setdefault(id(p), []).append((module, key))
    places = [(held_parameter, names[id(held_parameter.whole)]) for held_parameter in held.values()]
    spread.is_whole = True
    try:
        with without_hooks(spread.modules, spread.handles):
            yield model
        for held_parameter, where in places:
            module, key = where[0]
            held_parameter.taken = module._parameters.get(key)
    finally:
        spread.is_whole = False
        for held_parameter, where in places:
            for module, key in where:
                module._parameters[key] = held_parameter.piece
    _end(list(held.values()), spread)


class _Held:
    def __init__(self, name: str, piece: Any) -> None:
        self.name, self.piece = name, piece
        gathered = piece.full_tensor() if is_sharded(piece) else piece
        self.whole = Parameter(gathered.detach(), requires_grad=piece.requires_grad)
        self.sign = self.whole.data_ptr(), self.whole._version
        self.taken: Any = self.whole
        """The parameter at the end of the block."""

    def is_changed(self) -> bool:
        return self.taken is not self.whole or (self.whole.data_ptr(), self.whole._version) != self.sign


def _end(held: list[_Held], spread: Any) -> None:
    changed = [parameter for parameter in held if parameter.is_changed()]
    with_gradient = [
        parameter.name for parameter in held if parameter.taken is not None and parameter.taken.grad is not None
    ]
    if with_gradient:
        raise ConfigurationError(
            f"{with_gradient[0]} got a gradient inside quorate.whole, where gradients are lost; leave the block before "
            "the backward pass, and begin its forward pass outside"
        )
    for parameter in changed:
        if parameter.taken is None or parameter.taken.shape != parameter.piece.shape or is_sharded(parameter.taken):
            raise ConfigurationError(
                f"{parameter.name} had shape {tuple(parameter.piece.shape)} and was replaced inside quorate.whole "
                "by something else; keep its shape"
            )
    digest = 0
    for parameter in changed:
        digest = zlib.crc32(parameter.name.encode() + _bytes(parameter.taken), digest)
    try:
        spread.meet(f"the end of quorate.whole with {f'changes {digest:08x}' if changed else 'no changes'}")
    except Mismatch as error:
        raise Mismatch(f"{error}; all workers must change parameters alike inside quorate.whole") from None
    with torch.no_grad():
        for parameter in held:
            parameter.piece.requires_grad_(parameter.taken.requires_grad)
        for parameter in changed:
            here, numbers = local(parameter.piece), parameter.taken.detach().to(local(parameter.piece))
            if is_sharded(parameter.piece) and numbers.dim():
                rows = rows_of(numbers.shape[0], spread.coordinates.axes.shards, spread.coordinates.shard)
                numbers = numbers[rows.start : rows.stop]
            here.copy_(numbers.view(here.shape))


def _bytes(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
