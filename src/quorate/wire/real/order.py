"""Whether all workers call the same collectives in the same order, checked before anything is launched.

The backends do not check: other shapes abort the process, other dtypes of the same width give wrong numbers, another
order hangs. So each step from one collective to the next is compared through the board the first time it is taken;
steps known to be common are free. A worker that takes a new step waits for all others; those that are waiting for
something else answer from their poll.
"""

from __future__ import annotations

from collections import deque
from weakref import WeakMethod

from quorate.core.errors import Mismatch
from quorate.wire.failure import report_failure
from quorate.wire.real.endpoint import Endpoint

_KEPT = 4096


class Order:
    """The collectives called on one channel by this worker, in order."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self._endpoint, self._name = endpoint, name
        self.count = 0
        self._last = ""
        self._known: set[tuple[str, str]] = set()
        self._calls: deque[tuple[int, str]] = deque(maxlen=_KEPT)
        self._told: deque[int] = deque()
        answer = WeakMethod(self._answer)
        endpoint.answers.append(lambda: (method := answer()) and method())

    def check(self, operation: str) -> None:
        """This worker is about to call `operation`. Raises `Mismatch`, on every worker, if another does not."""
        self.count += 1
        self._calls.append((self.count, operation))
        step = (self._last, operation)
        self._last = operation
        if step in self._known or self._endpoint.size == 1:
            return
        self._tell(self.count, operation)
        self._compare(self.count, operation)
        self._known.add(step)

    def _key(self, count: int, rank: int) -> str:
        return f"order/{self._name}/{count}/{rank}"

    def _tell(self, count: int, operation: str) -> None:
        endpoint = self._endpoint
        if count in self._told:
            return
        endpoint.note(self._key(count, endpoint.rank), operation)
        self._told.append(count)

    def _compare(self, count: int, operation: str) -> None:
        endpoint = self._endpoint
        others = [peer for peer in range(endpoint.size) if peer != endpoint.rank]
        theirs: dict[int, object] = {}

        def ready(seconds: float) -> bool:
            deadline = endpoint.clock.now() + seconds
            while True:
                for peer in others:
                    if peer not in theirs and (said := endpoint.noted(self._key(count, peer))) is not None:
                        theirs[peer] = said
                if len(theirs) == len(others):
                    return True
                if endpoint.clock.now() >= deadline:
                    return False
                endpoint.clock.sleep(0.0005)

        def absent() -> list[int]:
            return [peer for peer in others if peer not in theirs]

        def ask() -> None:
            endpoint.note(f"asked/{self._name}", count)

        if not ready(0.1):
            ask()
            endpoint.until(
                ready,
                waits_for=operation,
                needed=others,
                timeout=None,
                missing=absent,
            )
        for peer, said in theirs.items():
            if said != operation:
                raise self._mismatch(operation, peer, str(said))
        while len(self._told) > 1:  # all others are here, so they have read what was told before
            endpoint.board.delete(f"generation/{endpoint.generation}/{self._key(self._told.popleft(), endpoint.rank)}")

    def _mismatch(self, operation: str, peer: int, said: str) -> Mismatch:
        rank = self._endpoint.rank
        first, second = sorted([(rank, operation), (peer, said)])
        reason = (
            f"workers called different things at the same place: rank {first[0]} {first[1]}, rank {second[0]} "
            f"{second[1]}; every worker must call the same collectives in the same order"
        )
        report_failure(self._endpoint.board, rank, reason, kind="mismatch")
        return Mismatch(reason)

    def _answer(self) -> None:
        asked = self._endpoint.noted(f"asked/{self._name}")
        if isinstance(asked, int) and asked <= self.count and asked not in self._told:
            for count, operation in self._calls:
                if count == asked:
                    self._tell(count, operation)
