"""The modules of a model before it was divided along tensor or stages: their parameters, attributes and hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from quorate.core.contracts import Wire
from quorate.sharding.mesh import Coordinates

_ABSENT = object()
_TENSORS = ("_parameters", "_buffers", "_flat_weights")
"""Attributes with tensors; the last one is the list of a recurrent module."""


@dataclass(frozen=True)
class AddedHook:
    """A hook that the division has added, in the form of torch's handles."""

    hooks: Any
    id: int

    def hooks_dict_ref(self) -> Any:
        """Return the dictionary of the hook, under the name of torch's handles."""
        return self.hooks


@dataclass
class _Part:
    """One module before the division."""

    module: Module
    parameters: dict[str, int | None]
    """The numbers of its parameters in the model."""
    buffers: list[str]
    attributes: dict[str, Any]
    hooks: dict[str, set[int]]
    changed: dict[str, Any] = field(default_factory=dict)
    """The earlier values of attributes that the division has changed."""


class Undivided:
    """A model before the division. It keeps no tensors."""

    def __init__(self, model: Module) -> None:
        numbers: dict[int, int] = {}
        self.names: list[str] = []
        """The names of the parameters, each once."""
        for name, p in model.named_parameters():
            numbers[id(p)] = len(self.names)
            self.names.append(name)
        self._parts = [
            _Part(
                module,
                {key: None if p is None else numbers[id(p)] for key, p in module._parameters.items()},
                list(module._buffers),
                _attributes(module),
                {key: set(hooks) for key, hooks in _hooks(module).items()},
            )
            for module in model.modules()
        ]
        self.added: list[AddedHook] = []
        self.is_whole = False
        """Whether the model is inside `quorate.whole`."""
        self.separately: Callable[[], AbstractContextManager[None]] = nullcontext
        """A context within which workers of the tensor axis call the model independently."""
        self.coordinates: Coordinates | None = None
        self._along: Wire | None = None

    def divided(
        self, model: Module, coordinates: Coordinates, separately: Callable[[], AbstractContextManager[None]], name: str
    ) -> None:
        """Note the changes of the division. `name` is that of a channel between stages."""
        for part in self._parts:
            now = _attributes(part.module)
            part.changed = {
                key: part.attributes.get(key, _ABSENT)
                for key in part.attributes.keys() | now.keys()
                if part.attributes.get(key, _ABSENT) is not now.get(key, _ABSENT)
            }
            part.attributes = {}
            for key, hooks in _hooks(part.module).items():
                self.added += [AddedHook(hooks, number) for number in hooks if number not in part.hooks.get(key, ())]
        self.coordinates, self.separately = coordinates, separately
        if coordinates.axes.stages > 1:
            self._along = coordinates.along.channel(name)
        _UNDIVIDED[model] = self

    def places(self) -> list[list[tuple[Module, str]]]:
        """Return the modules of each parameter, and its names there."""
        places: list[list[tuple[Module, str]]] = [[] for _ in self.names]
        for part in self._parts:
            for key, number in part.parameters.items():
                if number is not None:
                    places[number].append((part.module, key))
        return places

    def gathered(self, pieces: Sequence[Any], full: Callable[[Any], Tensor]) -> tuple[list[Parameter], dict[str, Any]]:
        """Return the full parameters, and the buffers of other stages by module and name; all workers call it.

        `pieces` has this worker's parameters, None for those of other stages; `full` gathers one along shards and
        tensor.
        """
        parameters = {
            name: Parameter(full(piece).detach(), requires_grad=piece.requires_grad)
            for name, piece in zip(self.names, pieces, strict=True)
            if piece is not None
        }
        if self._along is None:
            return list(parameters.values()), {}
        buffers = {
            f"{place} {key}": x
            for place, part in enumerate(self._parts)
            for key in part.buffers
            if (x := part.module._buffers.get(key)) is not None
        }
        tensors = _of_all_stages({**parameters, **buffers}, next(iter(parameters.values())).device, self._along)
        received = {
            name: x if isinstance(x, Parameter) else Parameter(x, requires_grad=x.requires_grad)
            for name, x in tensors.items()
            if name in self.names
        }
        return [received[name] for name in self.names], tensors

    @contextmanager
    def restored(self, parameters: Sequence[Parameter], buffers: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside, modules have their attributes from before the division, and these parameters and buffers."""
        kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for place, part in enumerate(self._parts):
            state = vars(part.module)
            kept.append((state, {key: state.get(key, _ABSENT) for key in (*_TENSORS, *part.changed)}))
            own = part.module._buffers
            state["_buffers"] = {**{key: own.get(key, buffers.get(f"{place} {key}")) for key in part.buffers}, **own}
            state["_parameters"] = {
                key: None if number is None else parameters[number] for key, number in part.parameters.items()
            }
            _set(state, part.changed)
        try:
            yield
        finally:
            for state, before in kept:
                for key in before["_buffers"]:
                    before["_buffers"][key] = state["_buffers"].get(key)
                _set(state, before)


_UNDIVIDED: WeakKeyDictionary[Module, Undivided] = WeakKeyDictionary()
"""For each model that is divided along tensor or stages, what it was."""


def undivided(model: Module) -> Undivided | None:
    """Return what `model` was before it was divided along tensor or stages; None for other models."""
    return _UNDIVIDED.get(model)


def _attributes(module: Module) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if not key.startswith("_")}


def _hooks(module: Module) -> dict[str, dict[int, Any]]:
    return {key: hooks for key, hooks in vars(module).items() if key.endswith("_hooks") and isinstance(hooks, dict)}


def _set(state: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if value is _ABSENT:
            state.pop(key, None)
        else:
            state[key] = value


def _of_all_stages(own: Mapping[str, Tensor], device: torch.device, wire: Wire) -> dict[str, Tensor]:
    """Return the tensors of all stages, by name; those that are here stay the same objects."""
    rows = {name: [list(x.shape), str(x.dtype).removeprefix("torch."), x.requires_grad] for name, x in own.items()}
    tensors: dict[str, Tensor] = {}
    for root, table in enumerate(wire.tell_all("the tensors of each stage for quorate.whole", rows).wait()):
        for name, (shape, dtype, is_trained) in table.items():
            if name in tensors:
                continue
            x = own.get(name)
            if x is None:
                x = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            numbers = x.detach().contiguous().reshape(-1).view(torch.uint8)
            if numbers.numel():
                carried = numbers if wire.carries(numbers) else numbers.cpu()
                received = wire.broadcast(carried, root).wait()
                if name not in own and received.data_ptr() != numbers.data_ptr():
                    numbers.copy_(received)
            tensors[name] = x if name in own else x.requires_grad_(is_trained)
    wire.barrier().wait()  # all have read them
    wire.trim()  # no later message is as long
    return tensors
