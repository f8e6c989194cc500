"""The check that all workers call the same collectives in the same order.

The backends do not check: other shapes abort the process, other dtypes of the same width give wrong numbers, another
order hangs. So a pair of successive collectives is sent by messages the first time, which contain the operation; only
pairs that all workers have called before go to a backend. Where the orders differ later, all workers end up waiting,
write on the board what they wait for, and compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from quorate.core.errors import Mismatch, WireTimeout
from quorate.wire.failure import report_failure
from quorate.wire.naming import namer
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.process_groups import recorded

_NEARLY = 0.9


class Order:
    """The collectives called on one channel by this worker, in order; `others` are the other workers of it."""

    def __init__(self, endpoint: Endpoint, name: str, others: Sequence[int] | None = None) -> None:
        self.endpoint, self._name = endpoint, name
        self.others = endpoint.others if others is None else list(others)
        self.count = 0
        self._last = ""
        self._known: set[tuple[str, str]] = set()

    def is_new(self, operation: str) -> bool:
        """Whether `operation` follows the latest one for the first time."""
        return (self._last, operation) not in self._known

    def called(self, operation: str) -> int:
        """Note that `operation` is called; return its number on this channel, from 1."""
        self._known.add((self._last, operation))
        self._last = operation
        self.count += 1
        self.endpoint.calls += 1
        self.endpoint.recent.append((self._name, self.count, operation))
        return self.count

    @contextmanager
    def waiting(self, count: int, operation: str, way: str) -> Iterator[None]:
        """Inside, a long wait is written on the board and compared with those of the others.

        `way` names the transport: workers with different transports for one operation have differed earlier. Where a
        wait in a process group is over its limit, torch's record of collectives is kept.
        """
        begin = self.endpoint.clock.now()
        try:
            with self.endpoint.checking(self._compare(count, f"{operation} ({way})")):
                yield
        except WireTimeout as error:
            is_slice = self.endpoint.clock.now() - begin < _NEARLY * self.endpoint.timeout
            if is_slice or way != "by backend":
                raise
            raise recorded(error, self.endpoint) from None

    def missing(self, count: int) -> list[int]:
        """Return the ranks that have not written that they wait for collective `count`; if all have, all others."""
        others = self.others
        late = [peer for peer, said in self._said(others).items() if said is None or said[0] < count]
        return late or others

    def _said(self, peers: Sequence[int]) -> dict[int, tuple[int, str] | None]:
        notes = self.endpoint.noted([f"waiting/{self._name}/{peer}" for peer in peers])
        waits = [(int(note[0]), str(note[1])) if isinstance(note, list) else None for note in notes]
        return dict(zip(peers, waits, strict=True))

    def _compare(self, count: int, operation: str) -> Callable[[], None]:
        endpoint = self.endpoint
        is_said = False

        def compare() -> None:
            nonlocal is_said
            if not is_said:
                endpoint.note(f"waiting/{self._name}/{endpoint.rank}", [count, operation])
                is_said = True
            for peer, said in self._said(self.others).items():
                if said is not None and said[0] == count and said[1] != operation:
                    raise self._mismatch(operation, peer, said[1])

        return compare

    def _mismatch(self, operation: str, peer: int, theirs: str) -> Mismatch:
        error = Mismatch.between(self.endpoint.rank, operation, peer, theirs, namer(self.endpoint.board))
        report_failure(self.endpoint.board, self.endpoint.rank, str(error), kind="mismatch")
        return error
