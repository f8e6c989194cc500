"""Messages between the workers of one replica for its pieces, and the time spent waiting for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from quorate.core.contracts import Clock, Work
from quorate.wire.metered import Meter

T = TypeVar("T")


@dataclass
class Along:
    """Traffic between one worker of a pipeline and those of the other stages, since the beginning."""

    holders: Callable[[Tensor], int]
    """Returns how many workers of the pipeline have this parameter."""
    meter: Meter
    waited: float = 0.0
    """In seconds."""


@dataclass
class Traffic:
    """The traffic of one worker and one model."""

    meter: Meter = field(default_factory=Meter)
    along: Along | None = None
    """Set where this worker has some of the model's stages."""
    waits: list[Callable[[float], None]] = field(default_factory=list)
    """The newest is called with the seconds of each wait: the timer of the newest optimizer counts them."""
    meets: list[Callable[[str], None]] = field(default_factory=list)
    """Calls that wait along one axis each; see `meet`."""
    syncs: list[Callable[[bool], None]] = field(default_factory=list)
    """Called with whether the backward passes that follow reduce gradients; none where all do."""
    pauses: list[Callable[[], AbstractContextManager[None]]] = field(default_factory=list)
    """Contexts within which backward passes only add to gradients."""
    by_layer: Counter[str] = field(default_factory=Counter)
    """Bytes sent along the tensor axis for each layer, by its name, forward and backward."""
    forgets: list[Callable[[], None]] = field(default_factory=list)
    """Calls that free gathered parameters; see `forget`."""

    def forget(self) -> None:
        """Free gathered parameters; the next pass gathers them with their new numbers."""
        for free in self.forgets:
            free()

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Inside, backward passes only add to gradients, and no means of them are formed."""
        with ExitStack() as inside:
            for pause in self.pauses:
                inside.enter_context(pause())
            yield

    def meet(self, call: str) -> None:
        """Wait until all workers of the replica make this call. Raises `Mismatch` where one makes another."""
        for meet in self.meets:
            meet(call)

    def wait_along(self, work: Work[T], clock: Clock) -> T:
        """Return the result of `work`, counting the wait as one for other stages. Raises as `Work.wait`."""
        begin = clock.now()
        try:
            return self.wait(work, clock)
        finally:
            if self.along is not None:
                self.along.waited += clock.now() - begin

    def wait(self, work: Work[T], clock: Clock) -> T:
        """Return the result of `work`. Raises as `Work.wait`."""
        begin = clock.now()
        try:
            return work.wait()
        finally:
            for waited in self.waits[-1:]:
                waited(clock.now() - begin)
