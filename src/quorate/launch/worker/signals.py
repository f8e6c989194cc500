"""Beside each worker: a thread and signal handlers that take requests to leave, and answer where the worker is.

The thread looks at the board twice a second (some 0.1 ms of the processor a second). It works while the training thread
waits or is in a long call, unless that call keeps the interpreter locked or the process is stopped. A second thread,
which asks nobody because the board may not answer, ends a worker that was asked to leave and has not left.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from quorate.core.contracts import Board
from quorate.core.errors import QuorateError, Stopped
from quorate.core.telling import tell
from quorate.launch.run import requests
from quorate.launch.run.requests import ask_to_stop, asked_to_stop, tell_on
from quorate.launch.worker import stack_report
from quorate.observe.ends import Ends
from quorate.observe.stopping import INTERRUPTED, Stop
from quorate.wire.current import Place
from quorate.wire.failure import pass_on, say_of
from quorate.wire.real.wire import RealWire
from quorate.wire.used import pass_on_used

LOOK_EVERY = 0.5
"""Seconds between two looks at the board."""
STALL_SECONDS = 60.0
"""Seconds after which a wait without a step or an exchange is reported; then after twice as long, and so on."""
_STDERR = 2
STACKS = signal.SIGUSR2
"""On this signal a worker writes the stacks of its threads to its stderr, also in a call that keeps Python locked."""


class Attendant:
    """That of the worker in `place`, which has a real wire; made in its main thread."""

    def __init__(self, place: Place, wire: RealWire) -> None:
        self._wire, self._board, self._stop = wire, wire.board, place.context(Stop)
        self._place = place
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self._closed = threading.Event()
        self._asked_at: float | None = None
        self._signals = 0
        self._answered = requests.asked_where(self._board)
        self._taken: list[signal.Signals] = []
        self._thread = threading.Thread(target=self._attend, name="quorate attendant", daemon=True)
        self._clock = threading.Thread(target=self._watch_clock, name="quorate clock", daemon=True)

    def start(self) -> None:
        """Take over the signals that have no handler but the usual one, and begin to look."""
        if threading.current_thread() is threading.main_thread() and not _is_interactive():
            for signum in requests.ASKS:
                if signal.getsignal(signum) in (signal.SIG_DFL, signal.default_int_handler):
                    signal.signal(signum, self._on_signal)
                    self._taken.append(signum)
        if signal.getsignal(STACKS) == signal.SIG_DFL:
            faulthandler.register(STACKS, file=_STDERR, all_threads=True, chain=False)
        if self._wire.size > 1:
            stack_report.announce(self._wire)
        self._place.context(Ends).is_attended = True
        self._thread.start()
        self._clock.start()

    def close(self) -> None:
        """Stop, as the worker leaves and answers no more."""
        self._closed.set()
        self._thread.join(1.0)
        self._clock.join(1.0)

    # -- signals

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a process forked by the script, such as a DataLoader's
            if signum != signal.SIGINT:
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
            return
        status = requests.status_after(signum)
        self._signals += 1
        if self._signals > 1:
            os._exit(status)  # asked again: at once
        self._stop.ask(status)
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        if self._stop.is_idle(status):
            if signum == signal.SIGINT:
                raise KeyboardInterrupt
            self._stop.left_with = status
            raise Stopped(status)

    # -- the thread

    def _attend(self) -> None:
        stall = _Stall(self._wire, self._main)
        has_asked = False
        try:
            while not self._closed.wait(LOOK_EVERY):
                if self._stop.asked is None:
                    status = requests.asked_to_stop(self._board)
                    if status is not None:
                        self._learn(status)
                elif not has_asked:
                    has_asked = True
                    requests.ask_to_stop(self._board, self._stop.asked)
                self._answer()
                self._place.context(Ends).look(self._place)
                self._place.context(LauncherNews).pass_on(self._wire)
                seconds = stall.new(self._place)
                if seconds:
                    why = f"nothing has moved for {seconds:g} s"
                    stack_report.report(self._wire, self._place, self._main, why)
        except (QuorateError, OSError):
            pass  # the launcher is gone, and its workers go with it

    def _watch_clock(self) -> None:
        """See to leaving, also while the board does not answer."""
        while not self._closed.wait(LOOK_EVERY):
            self._see_to_leaving()

    def _learn(self, status: int) -> None:
        """All are asked to leave. Where no step is under way, a signal tells the training thread, which raises."""
        self._stop.ask(status)
        signum = signal.SIGINT if status == INTERRUPTED else signal.SIGTERM
        if self._stop.is_idle(status) and signum in self._taken and not self._signals:
            os.kill(self._pid, signum)

    def _see_to_leaving(self) -> None:
        if self._stop.asked is None:
            return
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        limit = self._stop.limit
        if limit is not None and now - self._asked_at > limit:
            status = self._stop.asked
            words = "the step under way did not end" if self._stop.left_with is None else "others were waited for"
            tell(f"quorate: asked to leave {limit:g} s ago, and {words}; leaving at once\n")
            os._exit(status)

    def _answer(self) -> None:
        number = requests.asked_where(self._board)
        if number > self._answered:
            self._answered = number
            place = stack_report.here(self._wire, self._place, self._main)
            requests.say_where(self._board, number, self._wire.rank, place)


class _Stall:
    """Whether the training thread has been waiting for long, and nothing has moved."""

    def __init__(self, wire: RealWire, main: int) -> None:
        self._wire, self._main = wire, main
        self._mark: Any = None
        self._since = time.monotonic()
        self._limit = STALL_SECONDS
        self._busy = 0

    def new(self, place: Place) -> float:
        """Return for how many seconds nothing has moved, if that is to be reported; else 0."""
        now = time.monotonic()
        mark = (stack_report.progress(place), self._wire.endpoint.calls)
        # A wait in slices is seen between two of them now and then.
        self._busy = 0 if self._main in self._wire.endpoint.waits else self._busy + 1
        if mark != self._mark or self._busy > 2:
            self._mark, self._since = mark, now
            self._limit = STALL_SECONDS
        elif now - self._since > self._limit:
            seconds, self._limit = self._limit, 2 * self._limit
            return seconds
        return 0.0


def _is_interactive() -> bool:
    """Whether a person types: then an interrupt is no end."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules


def attend(place: Place) -> Attendant | None:
    """Let the worker in `place` be attended, if it has a real wire."""
    if not isinstance(place.wire, RealWire):
        return None
    attendant = Attendant(place, place.wire)
    attendant.start()
    return attendant


@dataclass
class LauncherNews:
    """News between the workers of several hosts and their launcher, which have two boards.

    `quorate run --hosts` has a board, at which its workers meet; between hosts these keep their notes among themselves
    from then on, so that nothing waits for the launcher. Each worker passes on what is new, both ways, twice a second,
    where its training begins and ends, and at its own end: failures, deaths, and requests to leave. `board` is the
    launcher's, where it is another one than the workers'.
    """

    board: Board | None = None
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    """A thread writes its news before another one reads: else old news would be written over new."""

    def pass_on(self, wire: RealWire) -> None:
        """Let both know what either does. Raises as boards do."""
        launcher, ours = self.board, wire.board
        if launcher is None:
            return
        with self._one_at_a_time:
            say_of(wire.rank, ours, launcher)
            tell_on(wire.rank, ours, launcher)
            pass_on(ours, launcher)
            pass_on_used(ours, launcher)
            pass_on(launcher, ours)
            for source, target in ((launcher, ours), (ours, launcher)):
                status = asked_to_stop(source)
                if status is not None and asked_to_stop(target) is None:
                    ask_to_stop(target, status)

    def try_to_pass_on(self, wire: RealWire) -> None:
        """Pass on the news; errors of a board that does not answer are reported elsewhere."""
        with suppress(QuorateError, OSError):
            self.pass_on(wire)
