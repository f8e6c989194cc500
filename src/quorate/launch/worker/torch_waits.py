"""torch's own collectives in a worker: no round waits for one that waits in them, and reports on hangs name them.

Everything that blocks in `torch.distributed`, in whatever way it was imported, ends in `Work.wait`, in a barrier of
gloo's, or at the store. These are wrapped while the worker lives. What waits elsewhere in native code is not seen: a
future of a work, `wait_tensor` of functional collectives, a stream of a GPU.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from quorate.core.contracts import Board
from quorate.train.pauses import waiting
from quorate.wire.current import Place
from quorate.wire.real.wire import RealWire
from quorate.wire.store import BoardStore

_SOON = 0.02
"""Seconds after which a wait is reported to the rounds."""
_SERVE_EVERY = 0.2
_WAIT: Any = dist.Work.wait
_BARRIER: Any = getattr(dist.ProcessGroup, "monitored_barrier", None)
_SLICED = frozenset(range(12)) | {15, 16}
"""`OpType`s of collectives: gloo waits for one of these in as many slices as one likes; a message whose wait took too
long is lost."""


class TorchWaits:
    """The waits of the constructing thread, the training thread of the worker in `place`."""

    def __init__(self, place: Place, wire: RealWire) -> None:
        self._place, self._endpoint = place, wire.endpoint
        self._pid, self._main = os.getpid(), threading.get_ident()
        self._is_on = False
        self.store: WaitedStore | None = None
        """That of the default group: torch keeps its native part only, without which no further group can be made."""

    def start(self) -> None:
        """Wrap."""
        waits, self._is_on = self, True

        def wait(work: Any, *arguments: Any, **named: Any) -> Any:
            if not waits._is_asked() or work.is_completed():
                return _WAIT(work, *arguments, **named)
            with waits.noted(_name()):
                return waits._wait(work, *arguments, **named)

        def monitored_barrier(group: Any, *arguments: Any, **named: Any) -> Any:
            if not waits._is_asked():
                return _BARRIER(group, *arguments, **named)
            with waits.noted(_name()), waiting(waits._place):
                return _BARRIER(group, *arguments, **named)

        _put(wait, monitored_barrier)

    def close(self) -> None:
        """Restore torch's functions."""
        self._is_on = False
        _put(_WAIT, _BARRIER)

    def _is_asked(self) -> bool:
        """Whether the training thread waits, and not in a collective of Quorate's own, which sees to this itself."""
        if threading.get_ident() != self._main or os.getpid() != self._pid:
            return False
        return not str(sys._getframe(2).f_globals.get("__name__")).startswith("quorate.")

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Inside, the training thread waits in `name`."""
        endpoint = self._endpoint
        before = endpoint.waits.get(self._main)
        endpoint.waits[self._main] = before or (name, endpoint.others, time.monotonic())
        try:
            yield
        finally:
            if before is None:
                endpoint.waits.pop(self._main, None)

    def at_the_store(self, wait: Callable[[], Any]) -> Any:
        """Return the result of `wait`, as a process group is being made."""
        if not self._is_on or threading.get_ident() != self._main or os.getpid() != self._pid:
            return wait()
        with self.noted(_name()), waiting(self._place):
            return wait()

    def _wait(self, work: Any, *arguments: Any, **named: Any) -> Any:
        if torch.cuda.is_available() or _kind(work) not in _SLICED:
            with waiting(self._place):
                return _WAIT(work, *arguments, **named)
        limit: timedelta | None = arguments[0] if arguments else named.get("timeout")
        until = time.monotonic() + limit.total_seconds() if limit else float("inf")
        if not _completes(work, min(_SOON, until - time.monotonic())):
            with waiting(self._place) as serve:
                while (left := until - time.monotonic()) > 0.0 and not _completes(work, min(_SERVE_EVERY, left)):
                    serve()
        return _WAIT(work) if limit is None else _WAIT(work, timedelta(milliseconds=1))


def _put(wait: Any, monitored_barrier: Any) -> None:
    work: Any = dist.Work
    group: Any = dist.ProcessGroup
    work.wait = wait
    if _BARRIER is not None:
        group.monitored_barrier = monitored_barrier


class WaitedStore(BoardStore):
    """A store on the board in which process groups meet; waits in it are noted."""

    def __init__(self, waits: TorchWaits, board: Board, prefix: str, timeout: float) -> None:
        super().__init__(board, prefix, timeout)
        self._waits = waits

    def get(self, key: str) -> bytes:
        value: bytes = self._waits.at_the_store(lambda: BoardStore.get(self, key))
        return value

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._waits.at_the_store(lambda: BoardStore.wait(self, keys, timeout))


def _completes(work: Any, seconds: float) -> bool:
    """Whether it is completed, well or not, after at most so long."""
    try:
        _WAIT(work, timedelta(seconds=max(seconds, 0.001)))
    except RuntimeError:
        return bool(work.is_completed())
    return True


def _kind(work: Any) -> int:
    kind = getattr(work, "_get_op_type", None)
    return -1 if kind is None else int(kind())


def _name() -> str:
    """Return the torch function on the stack that the script has called."""
    frame, name = sys._getframe(1), "Work.wait"
    while frame.f_back is not None:
        frame = frame.f_back
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("torch.distributed"):
            if frame.f_code.co_name != "wrapper":
                name = frame.f_code.co_name
        elif not module.startswith("quorate."):
            break
    return f"torch.distributed.{name}"
