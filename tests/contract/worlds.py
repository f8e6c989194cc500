"""The two worlds behind one interface, so that what a wire must do is written once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quorate.core.contracts import Wire
from quorate.wire.virtual import VirtualWorld

T = TypeVar("T")

VIRTUAL_SIZES = (1, 2, 3, 5, 16)
REAL_SIZES = (1, 2, 3, 5)


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

        found: Sequence[Any] = outcomes_real(self.size, task, timeout=60)
        return [Fate(o.result, _name(o.error), str(o.error or ""), o.exit_code != 0 and not o.error) for o in found]

    def run(self, task: Callable[[Wire], T]) -> list[T]:
        from tests.support.processes import run_real

        return run_real(self.size, task, timeout=90)


Workers = VirtualWorkers | RealWorkers


def _name(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__


def in_both_worlds(virtual: Sequence[int], real: Sequence[int]) -> list[Workers]:
    """Workers of each world in these sizes, for `pytest.mark.parametrize`."""
    return [*(VirtualWorkers(size) for size in virtual), *(RealWorkers(size) for size in real)]


def in_words(value: object) -> str | None:
    """The id of a test's parameter."""
    if isinstance(value, VirtualWorkers):
        return f"virtual-{value.size}"
    return f"real-{value.size}" if isinstance(value, RealWorkers) else None
