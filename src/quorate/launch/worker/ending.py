"""How a real worker leaves: in order after a good end, at once and with one sentence after a bad one.

Beside each worker: a thread and signal handlers that take requests to leave, and answer where the worker is.

The thread looks at the board twice a second (some 0.1 ms of the processor a second). It works while the training thread
waits or is in a long call, unless that call keeps the interpreter locked or the process is stopped. A second thread,
which asks nobody because the board may not answer, ends a worker that was asked to leave and has not left.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, NoReturn

import torch.distributed as dist

from quorate.core.errors import (
    ConfigurationError,
    Diverged,
    Mismatch,
    MissingExtra,
    NotFinite,
    PeerFailed,
    QuorateError,
    Stopped,
    WireTimeout,
    ranks_in_words,
)
from quorate.core.telling import flush, tell
from quorate.launch.run import requests
from quorate.launch.run.requests import ask_to_stop, left
from quorate.launch.worker import stack_report
from quorate.launch.worker.launcher_news import LauncherNews
from quorate.launch.worker.recording import flush_records, leave_records, say_closing_line
from quorate.launch.worker.script_line import script_line
from quorate.launch.worker.stack_report import report_quietly
from quorate.observe.ends import ends_of
from quorate.observe.step_times import timing
from quorate.observe.stopping import INTERRUPTED, stop_of
from quorate.sharding.torch_errors import in_words
from quorate.train.chosen import chosen_in
from quorate.wire import current
from quorate.wire.current import Place
from quorate.wire.failure import (
    GONE,
    Kind,
    has_come,
    joined_in,
    note_place,
    read_deaths,
    report_death,
    report_failure,
    report_outlived_error,
    report_outsider,
)
from quorate.wire.real.wire import RealWire
from quorate.wire.survivors import lost_mates

_WHOLE: dict[type[BaseException], Kind] = {Mismatch: "mismatch", Diverged: "diverged", NotFinite: "not finite"}
"""Failures that concern several workers: what they say is the whole sentence."""
_TWICE = (
    "quorate.join() has started torch's default process group already; leave out init_process_group, or call it before "
    "quorate.join(), which uses the group that it finds"
)
GRACE = 10.0
"""Seconds a worker that has ended waits for the others before it closes its connections."""


def status_after_error(kind: type[BaseException]) -> int:
    """The exit status of a worker that this has ended."""
    if issubclass(kind, KeyboardInterrupt):
        return 130
    return 3 if issubclass(kind, MissingExtra) else 2 if issubclass(kind, ConfigurationError) else 1


class _Ending:
    """What this process knows about its own end; `status` is set once something went wrong.

    A process that the script forks inherits these hooks; its end is no worker's, and they leave it alone.
    """

    def __init__(self, place: current.Place, owns_default_group: bool) -> None:
        self.place, self.owns_default_group = place, owns_default_group
        self._attendant = attend(place)
        self._pid = os.getpid()
        self.status: int | None = None
        self._shown = sys.excepthook
        self._exit = sys.exit
        self._asked: Any = None

    def exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The script raised: the others are told, and nobody waits for anybody."""
        if os.getpid() != self._pid:
            self._shown(kind, error, trace)
            return
        if issubclass(kind, ValueError) and "default process group twice" in str(error):
            kind, error = ConfigurationError, ConfigurationError(_TWICE)
        elif (explained := in_words(error)) is not None:
            kind, error = ConfigurationError, explained
        stop = stop_of(self.place)
        if stop.asked is not None and issubclass(kind, PeerFailed | WireTimeout):
            tell(f"quorate: left on request while waiting: {error}\n")
            self._stop(stop.asked, in_order=False)  # the one it waited for has left already
        if issubclass(kind, KeyboardInterrupt):
            self.fail(130, "was interrupted")
        else:
            if isinstance(error, WireTimeout) and isinstance(self.place.wire, RealWire):
                report_quietly(self.place.wire, self.place, "a wait took too long", trace)
            status = status_after_error(kind)
            how, ranks = _WHOLE.get(kind), getattr(error, "ranks", ())
            lost = lost_mates(self.place) if issubclass(kind, PeerFailed) else []
            if lost:
                self.fail(status, f"left, as {ranks_in_words(lost)} of its replica had died", goes_quietly=True)
            elif how is None:
                # What Quorate raises concerns everyone; an error of this worker's own may be its own death.
                mine = not issubclass(kind, QuorateError)
                self.fail(status, f"raised {kind.__name__}: {error}", is_own=mine)
            else:
                self.fail(status, str(error), kind=how, ranks=ranks)
        if issubclass(kind, QuorateError):
            where = script_line(trace) if issubclass(kind, ConfigurationError) else ""
            tell(f"quorate: {error}{where}\n")
        elif issubclass(kind, KeyboardInterrupt):
            tell("quorate: interrupted\n")
        else:
            self._shown(kind, error, trace)

    def exit(self, status: Any = None) -> NoReturn:
        """Stands in for `sys.exit`: at exit the status cannot be asked for any more."""
        self._asked = status
        self._exit(status)

    def fail(
        self,
        status: int,
        reason: str,
        kind: Kind = "died",
        ranks: Sequence[int] = (),
        *,
        is_own: bool = False,
        goes_quietly: bool = False,
    ) -> None:
        """Tell the others; an error of its own (`is_own`) they may outlive, if their strategies say so. One that
        `goes_quietly` has died like any other."""
        if self.status is not None:
            return
        self.status = status
        flush_records(self.place)
        try:
            if goes_quietly:
                report_death(self.place.wire.board, self.place.wire.rank, reason)
            else:
                self._report(reason, kind, ranks, is_own=is_own)
            if isinstance(self.place.wire, RealWire):
                self.place.context(LauncherNews).pass_on(self.place.wire)
        except (QuorateError, OSError, RuntimeError):
            pass  # the board is gone with its launcher: there is nobody left to tell

    def _report(self, reason: str, kind: Kind, ranks: Sequence[int], *, is_own: bool) -> None:
        wire = self.place.wire
        timers, label = timing(self.place).timers, chosen_in(self.place).label
        if not has_come(wire.board, wire.size, wire.rank):
            report_outsider(wire.board, wire.rank, reason)
            return
        if is_own and report_outlived_error(wire.board, wire.rank, reason):
            return
        if label is not None and timers:
            note_place(wire.board, label, timers[0].rounds)
        report_failure(wire.board, wire.rank, reason, kind=kind, ranks=ranks)

    def leave(self) -> None:
        """Run at exit."""
        if os.getpid() != self._pid:
            return
        stop = stop_of(self.place)
        if self.status is None and stop.left_with is not None:
            self._stop(stop.left_with)
        if self._asked not in (None, 0):  # it does not leave well, so it does not keep the others company either
            status = self._asked if isinstance(self._asked, int) else 1
            self.fail(status, f"exited with status {status}", is_own=True)
        if self.status is None:
            try:
                self.place.leave()
                self._part()
                return
            except QuorateError as error:
                self.status = 2 if isinstance(error, ConfigurationError) else 1
                tell(f"quorate: {error}\n")
        leave_records(self.place, is_well=False)
        if isinstance(self.place.wire, RealWire):
            self.place.wire.endpoint.leave_board()
        flush()
        os._exit(self.status)  # a backend that lost a peer may hang in its own clean-up

    def _stop(self, status: int, *, in_order: bool = True) -> NoReturn:
        """Leave as one who was asked to: no failure, and never well enough for status 0."""
        try:
            ask_to_stop(self.place.wire.board, status)
            if in_order:
                self.place.leave()
                self._part()
        except (QuorateError, OSError) as error:
            tell(f"quorate: {error}\n")
        flush_records(self.place)
        flush()
        os._exit(status)

    def _part(self) -> None:
        """Close connections once all have come this far; closing them earlier breaks the others' last exchange."""
        wire = self.place.wire
        if wire.max_size > 1:
            wire.board.set(left(wire.rank), b"1")
            try:
                came = joined_in(wire.board.peek(GONE))
                others = {*range(wire.size), *came} - {one.rank for one in read_deaths(wire.board)}
                wire.board.wait([left(peer) for peer in sorted(others)], GRACE)
            except QuorateError:
                pass  # another worker is still busy, or failed after this one's work was done
        leave_records(self.place, is_well=True)
        say_closing_line(self.place)
        if self._attendant is not None:
            self._attendant.close()
        if self.owns_default_group and dist.is_initialized():
            dist.destroy_process_group()
        wire.close()
        current.forget()


def end_well(place: current.Place, owns_default_group: bool) -> None:
    """See to it that this process leaves in order, whatever ends it."""
    ending = _Ending(place, owns_default_group)
    sys.excepthook = ending.exception
    sys.exit = ending.exit
    atexit.register(ending.leave)


LOOK_EVERY = 0.5
"""Seconds between two looks at the board."""
LEAVE_WITHIN = 10.0
"""Seconds in which a worker that was asked to leave has left."""
STALL_SECONDS = 60.0
"""After which a wait that sees no step and no exchange is told of, once; then after twice as long, and so on."""
_STDERR = 2
STACKS = signal.SIGUSR2
"""On this signal a worker writes the stacks of its threads to its stderr, also in a call that keeps Python locked."""


class Attendant:
    """That of the worker in `place`, which has a real wire; made in its main thread."""

    def __init__(self, place: Place, wire: RealWire) -> None:
        self._wire, self._board, self._stop = wire, wire.board, stop_of(place)
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
        ends_of(self._place).is_attended = True
        self._thread.start()
        self._clock.start()

    def close(self) -> None:
        """The worker leaves: nobody asks it any more."""
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
        if self._stop.trainings == 0 and self._stop.left_with is None:
            # No step is under way that could be finished.
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
                ends_of(self._place).look(self._place)
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
        if self._stop.trainings == 0 and self._stop.left_with is None and signum in self._taken and not self._signals:
            os.kill(self._pid, signum)

    def _see_to_leaving(self) -> None:
        if self._stop.asked is None:
            return
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        if now - self._asked_at > LEAVE_WITHIN:
            status = self._stop.asked
            words = "the step under way did not end" if self._stop.left_with is None else "others were waited for"
            tell(f"quorate: asked to leave {LEAVE_WITHIN:g} s ago, and {words}; leaving at once\n")
            os._exit(status)

    def _answer(self) -> None:
        number = requests.asked_where(self._board)
        if number > self._answered:
            self._answered = number
            says = stack_report.here(self._wire, self._place, self._main)
            requests.say_where(self._board, number, self._wire.rank, says)


class _Stall:
    """Whether the training thread has been waiting for long, and nothing has moved."""

    def __init__(self, wire: RealWire, main: int) -> None:
        self._wire, self._main = wire, main
        self._mark: Any = None
        self._since = time.monotonic()
        self._limit = STALL_SECONDS
        self._busy = 0

    def new(self, place: Place) -> float:
        """For how many seconds nothing has moved, if that is to be told; else 0."""
        now = time.monotonic()
        mark = (stack_report.progress(place), self._wire.endpoint.calls)
        # A wait in slices is seen between two of them now and then.
        self._busy = 0 if self._main in self._wire.endpoint.waits else self._busy + 1
        if mark != self._mark or self._busy > 2:
            self._mark, self._since = mark, now
            self._limit = STALL_SECONDS
        elif now - self._since > self._limit:
            told, self._limit = self._limit, 2 * self._limit
            return told
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
