"""`whole`: a divided model with full parameters, inside a `with` block."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from quorate.core.errors import ConfigurationError, Mismatch
from quorate.core.local_tensor import is_sharded, local
from quorate.sharding.mesh import Coordinates

M = TypeVar("M", bound=Module)


@contextmanager
def whole(model: M) -> Iterator[M]:
    """Give a divided model full parameters inside a `with` block: plain tensors, on every worker.

    Inside, the model is called, printed, copied (`copy.deepcopy`) and saved (`state_dict()`) as in one process, and
    workers may call it unequally often, or not at all. Along stages every worker has all layers, and calls of the model
    are not divided into micro-batches. Changes of parameters made inside are kept; all workers of a replica must make
    the same. Gradients are not: backward passes belong outside. A model that is not divided is left as it is.

    Args:
        model: The model that `quorate.parallelize` (or `--mesh`, `--zero`) has divided, or a copy of one in shards
            alone.

    Yields:
        `model`.

    Raises:
        ConfigurationError: The model has `quorate.Experts` or `quorate.branches` in pieces, or parameters on the host
            of a GPU; or parameters got gradients inside.
        Mismatch: A worker has come to another call, or workers have changed parameters differently.

    Cost: all workers of a replica enter and leave together. Inside, each holds the Psi parameters of the full model
    beside its pieces; with stages alone its own layers are not copied. Each receives the pieces of the other workers:
    Psi (S - 1) / S numbers for S workers of a replica. At the end a few bytes are sent.

    Example:
        >>> with quorate.whole(model):
        ...     weights = model.state_dict()
    """
    if not isinstance(model, Module):
        raise ConfigurationError(f"quorate.whole takes a torch.nn.Module, not {type(model).__name__}")
    division = _division_of(model)
    if division is None:
        yield model
        return
    from quorate.sharding.full_tensors import full_of
    from quorate.sharding.plain_modules import without_hooks

    before, spreads, coordinates = division
    for spread in spreads:
        spread.forget()
    coordinates.traffic.meet("the beginning of quorate.whole")
    places = before.places()
    pieces = [_piece_in(places_of_parameter) for places_of_parameter in places]
    parameters, buffers = before.gathered(pieces, full_of)
    held = [_Held(*row) for row in zip(before.names, pieces, parameters, strict=True)]
    handles = [*before.added, *(handle for spread in spreads for handle in spread.handles)]
    modules = [module for spread in spreads for module in spread.modules]
    _mark(before, spreads, is_whole=True)
    try:
        with without_hooks(modules, handles), before.separately(), before.restored(parameters, buffers):
            yield model
            for parameter, ((module, key), *_) in zip(held, places, strict=True):
                parameter.taken = module._parameters.get(key)
    finally:
        _mark(before, spreads, is_whole=False)
    _end(held, coordinates)


def _division_of(model: Module) -> tuple[Any, Sequence[Any], Coordinates] | None:
    """Return the model before its division, its modules in shards, and this worker's coordinates; None where nothing is
    to be gathered. Raises `ConfigurationError` for pieces that are not gathered."""
    from quorate.sharding.by_fsdp import spread_of, spreads_in
    from quorate.sharding.tensor.branches import branches_in
    from quorate.sharding.undivided import Undivided, undivided

    spread, before = spread_of(model), undivided(model)
    if any(noted is not None and noted.is_whole for noted in (spread, before)):
        return None
    if before is not None and any(module.dealt is not None for module in branches_in(model).values()):
        raise ConfigurationError("quorate.whole does not gather quorate.branches, which lie on different workers")
    coordinates = before.coordinates if before is not None else None if spread is None else spread.coordinates
    if coordinates is None:
        if any(map(is_sharded, model.parameters())):
            raise ConfigurationError(
                "quorate.whole takes the model that quorate.parallelize has divided. This one is a part of one, has "
                "quorate.Experts in pieces, or is divided by other means"
            )
        return None
    if any(local(p).device.type != coordinates.shards.device_type for p in model.parameters()):
        raise ConfigurationError('quorate.whole does not gather parameters that rest on the host (offload="all")')
    return Undivided(model) if before is None else before, spreads_in(model), coordinates


def _piece_in(places: Sequence[tuple[Module, str]]) -> Parameter | None:
    """Return this worker's piece of the parameter with these places; None for one of another stage."""
    return next((p for module, key in places if (p := module._parameters.get(key)) is not None), None)


def _mark(before: Any, spreads: Any, *, is_whole: bool) -> None:
    for noted in (before, *spreads):
        noted.is_whole = is_whole


class _Held:
    def __init__(self, name: str, piece: Any, full: Parameter) -> None:
        self.name, self.piece, self.full = name, piece, full
        """`piece` is None for a parameter of another stage."""
        self.sign = full.data_ptr(), full._version
        self.taken: Any = full
        """The parameter at the end of the block."""

    def is_changed(self) -> bool:
        return self.taken is not self.full or (self.full.data_ptr(), self.full._version) != self.sign


def _end(held: list[_Held], coordinates: Coordinates) -> None:
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
        if parameter.taken is None or parameter.taken.shape != parameter.full.shape or is_sharded(parameter.taken):
            raise ConfigurationError(
                f"{parameter.name} had shape {tuple(parameter.full.shape)} and was replaced inside quorate.whole "
                "by something else; keep its shape"
            )
    from quorate.sharding.full_tensors import write_part

    digest = 0
    for parameter in changed:
        digest = zlib.crc32(parameter.name.encode() + _bytes(parameter.taken), digest)
    try:
        coordinates.traffic.meet(
            f"the end of quorate.whole with {f'changes {digest:08x}' if changed else 'no changes'}"
        )
    except Mismatch as error:
        raise Mismatch(f"{error}; all workers must change parameters alike inside quorate.whole") from None
    with torch.no_grad():
        for parameter in held:
            if parameter.piece is not None:
                parameter.piece.requires_grad_(parameter.taken.requires_grad)
        for parameter in changed:
            if parameter.piece is not None:
                write_part(parameter.piece, parameter.taken.detach())


def _bytes(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
