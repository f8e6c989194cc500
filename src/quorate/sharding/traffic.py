"""What the workers of one replica send each other for its pieces, and how long they wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from quorate.core.contracts import Clock, Work
from quorate.wire.metered import Meter

T = TypeVar("T")


@dataclass
class Traffic:
    """Of one worker and one model."""

    meter: Meter = field(default_factory=Meter)
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

    def wait(self, work: Work[T], clock: Clock) -> T:
        """The result of `work`. Raises as `Work.wait`."""
        begin = clock.now()
        try:
            return work.wait()
        finally:
            self.waited(clock.now() - begin)
