"""Simple works: a finished one, and several joined into one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quorate.core.contracts import Clock, Done, Work

if TYPE_CHECKING:
    from torch import Tensor

    from quorate.core.device_copies import HostCopy

T = TypeVar("T")

Stages = Generator[Work[Any], Any, T]
"""The end of a work that needs further exchanges: it yields each of them, is sent its result, and returns its own."""


SENT = Done(None)
"""A message that was given, or never will be."""


def followed(work: Work[T], timeout: float | None = None) -> T:
    """Return the result of a collective of tensors on a GPU, for which the GPU's stream waits, and not this thread.

    The result of any other work is waited for. A worker's death is noticed by the next wait of this thread.
    """
    follow: Callable[[float | None], T] | None = getattr(work, "follow", None)
    return work.wait(timeout) if follow is None else follow(timeout)


def advanced(work: Work[Any]) -> bool:
    """Begin the further exchanges of a work, as far as their turn has come; return whether `wait` would return at once.

    Never waits. A worker that takes part in several works at once calls this, as others may wait for any of them. At
    most one work with further exchanges may be under way on a channel, so that all workers begin them in one order.
    """
    advance: Callable[[], bool] | None = getattr(work, "advance", None)
    return work.done() if advance is None else advance()


def read_behind(work: Work[Any], x: Tensor) -> HostCopy | None:
    """Let the wait for a collective of a GPU's tensors end with a copy of `x`, a part of its result, to the host.

    The copy is made behind the collective, and holds up no other work of the GPU. None where there can be no such copy.
    """
    read: Callable[[Tensor], HostCopy | None] | None = getattr(work, "read_behind", None)
    return None if read is None else read(x)


class Followed(Generic[T]):
    """A work whose wait is `followed`."""

    def __init__(self, work: Work[T]) -> None:
        self._work = work

    def done(self) -> bool:
        return self._work.done()

    def advance(self) -> bool:
        """See `advanced`."""
        return advanced(self._work)

    def wait(self, timeout: float | None = None) -> T:
        return followed(self._work, timeout)


class Together(Generic[T]):
    """Several works as one: the thread that waits calls `combine` on their results, once.

    If `combine` is a generator function, what it yields is waited for as well (see `Stages`).
    """

    def __init__(
        self,
        works: Sequence[Work[Any]],
        combine: Callable[[list[Any]], T | Stages[T]],
        clock: Clock,
        *,
        last_first: bool = False,
    ) -> None:
        """`last_first`: the last work is waited for before the others, which a GPU has then completed as well."""
        self._first = works[-1] if last_first and works else None
        self._works, self._results = list(works), list[Any]()
        self._combine: Callable[[list[Any]], T | Stages[T]] | None = combine
        self._stages: Stages[T] | None = None
        self._clock = clock
        self._result: T

    def done(self) -> bool:
        for work in self._works:  # noqa: SIM110  (asked for each message of a round)
            if not work.done():
                return False
        return True

    def advance(self) -> bool:
        """See `advanced`."""
        while self._works and not [work for work in self._works if not advanced(work)]:  # each of them goes on
            self._end_works(None)
        return not self._works

    def wait(self, timeout: float | None = None) -> T:
        deadline = None if timeout is None else self._clock.now() + timeout
        if self._first is not None:
            self._first.wait(timeout)
            self._first = None
        while self._combine is not None or self._stages is not None:
            self._end_works(deadline)
        return self._result

    def _end_works(self, deadline: float | None) -> None:
        """Wait for the present works, and combine their results, or begin the exchange that follows."""
        for index in range(len(self._results), len(self._works)):
            left = None if deadline is None else max(0.0, deadline - self._clock.now())
            self._results.append(self._works[index].wait(left))
        results, value = self._results, None
        if self._stages is None:
            assert self._combine is not None
            combined = self._combine(results)
            self._combine = None
            if isinstance(combined, Generator):
                self._stages = combined
            else:
                self._result = combined
        else:
            (value,) = results
        self._works, self._results = [], []
        if self._stages is not None:
            try:
                self._works = [self._stages.send(value)]
            except StopIteration as end:
                self._stages, self._result = None, end.value

    def read_behind(self, x: Tensor) -> HostCopy | None:
        """See `read_behind`."""
        return None if self._first is None else read_behind(self._first, x)

    def follow(self, timeout: float | None = None) -> T:
        """See `followed`."""
        self._first = None
        self._works[len(self._results) :] = map(Followed, self._works[len(self._results) :])
        return self.wait(timeout)
