"""The modules of which a model's stages are made, and what stands in their place while a stage is computed.

A unit is a module with parameters that lies in one stage: a member of a list of modules (a block), and every module
outside of such lists that holds none. Modules without parameters belong to no stage: each worker calls them with what
it has. The same goes for what a model's own code does between units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.nn import Module, ModuleList, Sequential

Called = Callable[[int, tuple[Any, ...], dict[str, Any]], Any]
"""Told the number of a unit, and what it is called with; gives what the call gives."""


@dataclass(frozen=True)
class Unit:
    """One of a model's units."""

    name: str
    module: Module
    parent: Module
    key: str
    """Under which the parent has it."""
    is_block: bool
    """Whether a list holds it."""

    @property
    def size(self) -> int:
        """Numbers in its parameters."""
        return sum(p.numel() for p in self.module.parameters())


def units_of(model: Module) -> list[Unit]:
    """In the model's order. A module that is there twice is two units."""
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
    """A class of one's own that is made from `Sequential` is a block, and no list."""
    return type(module) in (Sequential, ModuleList)


def _is_list_of_several(module: Module) -> bool:
    return isinstance(module, Sequential | ModuleList) and sum(map(has_numbers, module)) > 1


def has_numbers(module: Module) -> bool:
    """Whether it has parameters, or buffers that are kept in checkpoints."""
    if next(module.parameters(), None) is not None:
        return True
    return any(name not in part._non_persistent_buffers_set for part in module.modules() for name in part._buffers)


class Gate:
    """Stands where a unit was: it is called in its place, and is the unit to whoever looks at it."""

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
    """Inside, `called` is told of each call of a unit, and gives what it gives."""
    gates: list[Any] = [Gate(unit, number, called) for number, unit in enumerate(units)]
    for unit, gate in zip(units, gates, strict=True):
        unit.parent._modules[unit.key] = gate
    try:
        yield
    finally:
        for unit in units:
            unit.parent._modules[unit.key] = unit.module
