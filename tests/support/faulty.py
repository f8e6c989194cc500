"""`Faulty`: lets one worker misbehave at a stated point, over either kind of wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from quorate.core.contracts import Done, Wire, Work
from quorate.core.errors import WireTimeout, ranks_in_words
from quorate.wire.failure import read_failure
from quorate.wire.metered import Wrapped

T = TypeVar("T")
_SLICE = 0.05


@dataclass
class Fault:
    """A fault of one worker at one call.

    `kind`: "drop" loses the message being sent; "stop" ends the worker without a message; "pause" lets `seconds` pass.
    "cut" breaks the link to `peer` from here on (messages to it are lost, collectives with it never end). The point is
    call number `at` (from 1) of `operation` (None: of any) on `rank`. `fired` counts how often it struck: a test whose
    fault did not strike proves nothing.
    """

    kind: Literal["drop", "stop", "pause", "cut"]
    rank: int
    at: int
    operation: str | None = None
    peer: int | None = None
    seconds: float = 0.0
    fired: int = 0


@dataclass
class _Memory:
    calls: Counter[str] = field(default_factory=Counter)
    cut: set[int] = field(default_factory=set)


class Faulty(Wrapped):
    """Suffers those of `faults` that concern its own rank."""

    def __init__(self, inner: Wire, faults: Sequence[Fault], _memory: _Memory | None = None) -> None:
        super().__init__(inner)
        self.faults = faults
        self._memory = _Memory() if _memory is None else _memory

    @property
    def calls(self) -> int:
        """Number of calls so far, of all operations."""
        return self._memory.calls[""]

    def _again(self, inner: Wire) -> Wire:
        return Faulty(inner, self.faults, self._memory)

    def _call(self, operation: str, launch: Callable[[], Work[T]], payload: Any, peer: int | None) -> Work[T]:
        memory = self._memory
        memory.calls[operation] += 1
        memory.calls[""] += 1
        dropped = False
        for fault in self.faults:
            if fault.rank != self.rank or memory.calls[fault.operation or ""] != fault.at:
                continue
            if fault.operation not in (None, operation) or (fault.kind == "drop" and operation != "send"):
                continue
            fault.fired += 1
            if fault.kind == "stop":
                self.inner.crash()
            elif fault.kind == "pause":
                self.clock.sleep(fault.seconds)
            elif fault.kind == "cut":
                assert fault.peer is not None, "a cut names the peer whose link breaks"
                memory.cut.add(fault.peer)
            else:
                dropped = True
        if operation == "send":
            if dropped or peer in memory.cut:
                return Done(None)  # type: ignore[arg-type]  # a send's result is None
        elif memory.cut and (operation != "receive" or peer in memory.cut):
            return _Lost(self, operation, sorted(memory.cut))
        return launch()


class _Lost:
    """A call over a broken link: it never ends, so a wait for it ends with a timeout, or another worker's failure."""

    def __init__(self, wire: Wire, operation: str, peers: Sequence[int]) -> None:
        self._wire, self._operation, self._peers = wire, operation, peers

    def done(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> Any:
        wire = self._wire
        limit = wire.timeout if timeout is None else timeout
        deadline = wire.clock.now() + limit
        while (left := deadline - wire.clock.now()) > 0:
            failure = read_failure(wire.board)
            if failure is not None:
                raise failure
            wire.clock.sleep(min(_SLICE, left))
        raise WireTimeout(
            f"rank {wire.rank} waited {limit:g} s for {ranks_in_words(self._peers)} in {self._operation}", self._peers
        )
