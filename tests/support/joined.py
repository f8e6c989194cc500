"""One worker of a virtual world: it joins, does its task, and leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import quorate
from quorate.core.contracts import Wire
from quorate.launch.worker.world import World
from quorate.wire import current

T = TypeVar("T")


def joined(task: Callable[[World], T]) -> Callable[[Wire], T]:
    """What `VirtualWorld.run` and `outcomes` take: `task` in a world that is joined before, and left well after it.

    Where `task` raises, its worker has a place no more, and what was to be done before leaving is not done.
    """

    def live(wire: Wire) -> T:
        place = current.enter(wire, thread_only=True)
        try:
            told = task(quorate.join())
            place.leave()
            return told
        finally:
            current.forget(thread_only=True)

    return live
