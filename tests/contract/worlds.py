"""The two worlds behind one interface, so that what a wire must do is written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from quorate.core.contracts import Wire
from quorate.wire.virtual import VirtualWorld
from tests.support.hosts import Host, are_possible, hosts

T = TypeVar("T")

VIRTUAL_SIZES = (1, 2, 3, 5, 16)
REAL_SIZES = (1, 2, 3, 5)
LAYOUTS = ((2, 2), (1, 1, 1), (2, 1))
"""Workers on each of several hosts."""


@dataclass(frozen=True)
class Fate(Generic[T]):
    """What became of one worker: what its task returned, or the type and message of what it raised."""

    result: T | None
    error: str | None
    message: str
    is_crashed: bool


@dataclass(frozen=True)
class VirtualWorkers:
    """`size` virtual workers."""

    size: int
    seed: int = 0

    def fates(self, task: Callable[[Wire], T]) -> list[Fate[T]]:
        found = VirtualWorld(self.size, seed=self.seed).outcomes(task)
        return [Fate(o.result, _name(o.error), str(o.error or ""), o.is_crashed) for o in found]

    def run(self, task: Callable[[Wire], T]) -> list[T]:
        return VirtualWorld(self.size, seed=self.seed).run(task)


@dataclass(frozen=True)
class RealWorkers:
    """`size` processes over gloo; needs what `tests.support.processes` needs."""

    size: int

    def fates(self, task: Callable[[Wire], T]) -> list[Fate[T]]:
        from tests.support.processes import outcomes_real

        found: Sequence[Any] = outcomes_real(self.size, task)
        return _fates(found)

    def run(self, task: Callable[[Wire], T]) -> list[T]:
        from tests.support.processes import run_real

        return run_real(self.size, task)


@dataclass(frozen=True)
class WorkersOnHosts:
    """Processes on several hosts, so many on each as `layout` says: (2, 1) are three workers on two hosts."""

    layout: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(self.layout)

    def fates(self, task: Callable[[Wire], T]) -> list[Fate[T]]:
        from tests.support.processes import outcomes_real

        with self._hosts() as on:
            found: Sequence[Any] = outcomes_real(self.size, task, on=on)
        return _fates(found)

    def run(self, task: Callable[[Wire], T]) -> list[T]:
        from tests.support.processes import run_real

        with self._hosts() as on:
            return run_real(self.size, task, on=on)

    @contextmanager
    def _hosts(self) -> Iterator[list[Host]]:
        if not are_possible():
            pytest.skip("needs root on Linux, to make network namespaces")
        with hosts(len(self.layout)) as found:
            yield [host for host, count in zip(found, self.layout, strict=True) for _ in range(count)]


Workers = VirtualWorkers | RealWorkers | WorkersOnHosts


def _fates(found: Sequence[Any]) -> list[Fate[Any]]:
    return [Fate(o.result, _name(o.error), str(o.error or ""), o.exit_code != 0 and not o.error) for o in found]


def _name(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__


def in_both_worlds(virtual: Sequence[int], real: Sequence[int]) -> list[Workers]:
    """Workers of each world in these sizes, for `pytest.mark.parametrize`."""
    return [*(VirtualWorkers(size) for size in virtual), *(RealWorkers(size) for size in real)]


def in_words(value: object) -> str | None:
    """The id of a test's parameter."""
    if isinstance(value, VirtualWorkers):
        return f"virtual-{value.size}"
    if isinstance(value, WorkersOnHosts):
        return f"hosts-{'+'.join(map(str, value.layout))}"
    return f"real-{value.size}" if isinstance(value, RealWorkers) else None
