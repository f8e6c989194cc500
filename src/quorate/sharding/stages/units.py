"""The modules of which a model's stages are made, and their replacement while a stage is computed.

A unit is a module with parameters that lies in one stage. It is a member of a list of modules (a block), or a module
outside of such lists that contains none. Modules without parameters belong to no stage: each worker calls them with the
tensors it has. The same goes for the model's own code between units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.nn import Module, ModuleList, Sequential

Called = Callable[[int, tuple[Any, ...], dict[str, Any]], Any]
"""A function of a unit's number and the arguments of a call, which returns the call's result."""


@dataclass(frozen=True)
class Unit:
    """One of a model's units."""

    name: str
    module: Module
    parent: Module
    key: str
    """Its key in the parent."""
    is_block: bool
    """Whether it is in a list."""

    @property
    def size(self) -> int:
        """Numbers in its parameters."""
        return sum(p.numel() for p in self.module.parameters())


def units_of(model: Module) -> list[Unit]:
    """Return the units in the model's order. A module that appears twice is two units."""
    return list(_units(model, "", is_list=_is_list(model)))


def _units(module: Module, name: str, *, is_list: bool) -> Iterator[Unit]:
    for key, child in module._modules.items():
        if child is None or not has_numbers(child):
            continue
        inner = f"{name}.{key}" if name else key
        if _is_list(child) or (not is_list and any(map(_is_list_of_several, child.modules()))):
            yield from _units(child, inner, is_list=is_list or _is_list(child))
        else:
            yield Unit(inner, child, module, key, is_list)


def _is_list(module: Module) -> bool:
    """A user's subclass of `Sequential` is a block, and no list."""
    return type(module) in (Sequential, ModuleList)


def _is_list_of_several(module: Module) -> bool:
    return isinstance(module, Sequential | ModuleList) and sum(map(has_numbers, module)) > 1


def has_numbers(module: Module) -> bool:
    """Return whether the module has parameters, or buffers that are saved in checkpoints."""
    if next(module.parameters(), None) is not None:
        return True
    return any(name not in part._non_persistent_buffers_set for part in module.modules() for name in part._buffers)


class Gate:
    """Replaces a unit: calls go to `called`, and attributes are those of the unit."""

    def __init__(self, unit: Unit, number: int, called: Called) -> None:
        self.__dict__.update(_unit=unit.module, _number=number, _called=called)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(self._number, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_unit"], name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._unit)


@contextmanager
def gated(units: Sequence[Unit], called: Called) -> Iterator[None]:
    """Inside, `called` is called in place of each unit, and returns its output."""
    gates: list[Any] = [Gate(unit, number, called) for number, unit in enumerate(units)]
    for unit, gate in zip(units, gates, strict=True):
        unit.parent._modules[unit.key] = gate
    try:
        yield
    finally:
        for unit in units:
            unit.parent._modules[unit.key] = unit.module
