"""What the workers of one replica send each other for its pieces, and how long they wait for it."""

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
    """Between one worker of a pipeline and those of the other stages, since the beginning."""

    meter: Meter = field(default_factory=Meter)
    waited: float = 0.0
    """Seconds."""
    holders: Callable[[Tensor], int] = lambda p: 1
    """How many workers of the pipeline have this parameter."""


@dataclass
class Traffic:
    """Of one worker and one model."""

    meter: Meter = field(default_factory=Meter)
    along: Along | None = None
    """Where this worker has some of the model's stages."""
    waited: Callable[[float], None] = lambda seconds: None
    """Told the seconds of each wait."""
    meet: Callable[[str], None] = lambda call: None
    """Wait until all workers of the replica have come to the same call. Raises `Mismatch` where one makes another."""
    reduces: Callable[[bool], None] | None = None
    """Told whether the backward passes that follow reduce gradients; None where all do."""
    pauses: list[Callable[[], AbstractContextManager[None]]] = field(default_factory=list)
    """Inside what each gives, backward passes only add to gradients."""
    by_layer: Counter[str] = field(default_factory=Counter)
    """Bytes sent along the tensor axis for each layer, by its name, forward and backward."""
    forget: Callable[[], None] = lambda: None
    """Give gathered parameters back; the next pass gathers them as they are by then."""

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Inside, backward passes only add to gradients, and nobody forms means of them."""
        with ExitStack() as inside:
            for pause in self.pauses:
                inside.enter_context(pause())
            yield

    def meet_also(self, meet: Callable[[str], None]) -> None:
        """Let `meet` be part of it."""
        earlier = self.meet

        def both(call: str) -> None:
            earlier(call)
            meet(call)

        self.meet = both

    def wait_along(self, work: Work[T], clock: Clock) -> T:
        """As `wait`, for other stages."""
        begin = clock.now()
        try:
            return self.wait(work, clock)
        finally:
            if self.along is not None:
                self.along.waited += clock.now() - begin

    def wait(self, work: Work[T], clock: Clock) -> T:
        """The result of `work`. Raises as `Work.wait`."""
        begin = clock.now()
        try:
            return work.wait()
        finally:
            self.waited(clock.now() - begin)
