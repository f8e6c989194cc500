"""Whether all workers call the same collectives in the same order.

The backends do not check: other shapes abort the process, other dtypes of the same width give wrong numbers, another
order hangs. So the step from one collective to the next is taken over messages the first time, which say what they
are part of; only steps that all workers have taken together before go to a backend. Where histories part later, all
workers end up waiting, say what they wait for on the board, and compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from quorate.core.errors import Mismatch
from quorate.wire.failure import report_failure
from quorate.wire.naming import namer
from quorate.wire.real.endpoint import Endpoint


class Order:
    """The collectives called on one channel by this worker, in order."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self.endpoint, self._name = endpoint, name
        self.count = 0
        self._last = ""
        self._known: set[tuple[str, str]] = set()

    def is_new(self, operation: str) -> bool:
        """Whether `operation` never followed the latest one before."""
        return (self._last, operation) not in self._known

    def called(self, operation: str) -> int:
        """Note that `operation` is called; its number on this channel, from 1."""
        self._known.add((self._last, operation))
        self._last = operation
        self.count += 1
        self.endpoint.calls += 1
        self.endpoint.recent.append((self._name, self.count, operation))
        return self.count

    @contextmanager
    def waiting(self, count: int, operation: str, way: str) -> Iterator[None]:
        """Inside, a wait that lasts is said on the board and compared with what the others wait for.

        `way` tells how it travels: two workers that take the same operation different ways have parted earlier.
        """
        endpoint = self.endpoint
        before = endpoint.when_stuck
        endpoint.when_stuck = self._compare(count, f"{operation} ({way})")
        try:
            yield
        finally:
            endpoint.when_stuck = before

    def missing(self, count: int) -> list[int]:
        """The ranks that did not say that they wait for collective number `count`; if all did, all others."""
        others = self.endpoint.others
        late = [peer for peer, said in self._said(others).items() if said is None or said[0] < count]
        return late or others

    def _said(self, peers: Sequence[int]) -> dict[int, tuple[int, str] | None]:
        told = self.endpoint.noted([f"waiting/{self._name}/{peer}" for peer in peers])
        found = [(int(said[0]), str(said[1])) if isinstance(said, list) else None for said in told]
        return dict(zip(peers, found, strict=True))

    def _compare(self, count: int, operation: str) -> Callable[[], None]:
        endpoint = self.endpoint
        is_said = False

        def compare() -> None:
            nonlocal is_said
            if not is_said:
                endpoint.note(f"waiting/{self._name}/{endpoint.rank}", [count, operation])
                is_said = True
            for peer, said in self._said(endpoint.others).items():
                if said is not None and said[0] == count and said[1] != operation:
                    raise self._mismatch(operation, peer, said[1])

        return compare

    def _mismatch(self, operation: str, peer: int, theirs: str) -> Mismatch:
        error = Mismatch.between(self.endpoint.rank, operation, peer, theirs, namer(self.endpoint.board))
        report_failure(self.endpoint.board, self.endpoint.rank, str(error), kind="mismatch")
        return error
