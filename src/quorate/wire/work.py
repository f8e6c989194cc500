"""Simple works: a finished one, and several joined into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quorate.core.contracts import Clock, Done, Work

if TYPE_CHECKING:
    from torch import Tensor

    from quorate.core.device_copies import HostCopy

T = TypeVar("T")


SENT = Done(None)
"""A message that was given, or never will be."""


def followed(work: Work[T]) -> T:
    """Return the result of a collective of tensors on a GPU, for which the GPU's stream waits, and not this thread.

    The result of any other work is waited for. A worker's death is noticed by the next wait of this thread.
    """
    follow: Callable[[], T] | None = getattr(work, "follow", None)
    return work.wait() if follow is None else follow()


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

    def wait(self, timeout: float | None = None) -> T:
        return followed(self._work)


class Together(Generic[T]):
    """Several works as one: the thread that waits calls `combine` on their results, once."""

    def __init__(
        self, works: Sequence[Work[Any]], combine: Callable[[list[Any]], T], clock: Clock, *, last_first: bool = False
    ) -> None:
        """`last_first`: the last work is waited for before the others, which a GPU has then completed as well."""
        self._first = works[-1] if last_first and works else None
        self._works, self._results = list(works), list[Any]()
        self._combine: Callable[[list[Any]], T] | None = combine
        self._clock = clock
        self._result: T

    def done(self) -> bool:
        for work in self._works:  # noqa: SIM110  (asked for each message of a round)
            if not work.done():
                return False
        return True

    def wait(self, timeout: float | None = None) -> T:
        combine = self._combine
        if combine is not None:
            deadline = None if timeout is None else self._clock.now() + timeout
            if self._first is not None:
                self._first.wait(timeout)
                self._first = None
            for index in range(len(self._results), len(self._works)):
                left = None if deadline is None else max(0.0, deadline - self._clock.now())
                self._results.append(self._works[index].wait(left))
            self._result = combine(self._results)
            self._combine = None
            self._works, self._results = [], []
        return self._result

    def read_behind(self, x: Tensor) -> HostCopy | None:
        """See `read_behind`."""
        return None if self._first is None else read_behind(self._first, x)

    def follow(self) -> T:
        """See `followed`."""
        self._first = None
        self._works[len(self._results) :] = map(Followed, self._works[len(self._results) :])
        return self.wait()
