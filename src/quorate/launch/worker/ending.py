"""How a real worker leaves: in order after a good end, at once and with one sentence after a bad one."""

from __future__ import annotations

import atexit
import builtins
import os
import sys
import time
from _sitebuiltins import Quitter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn

import torch.distributed as dist

from quorate.core.errors import (
    ConfigurationError,
    Diverged,
    Mismatch,
    NotFinite,
    PeerFailed,
    QuorateError,
    WireTimeout,
    ranks_in_words,
)
from quorate.core.script_errors import CallbackErrors, own_error, script_line, status_after_error
from quorate.core.telling import flush, tell
from quorate.launch.run.requests import ask_to_stop, left
from quorate.launch.worker.recording import flush_records, leave_records, say_closing_line
from quorate.launch.worker.signals import LauncherNews, attend
from quorate.launch.worker.stack_report import report_quietly
from quorate.observe.ends import Ends
from quorate.observe.step_times import Timing
from quorate.observe.stopping import Stop
from quorate.sharding.torch_errors import in_words
from quorate.train.chosen import Chosen
from quorate.wire import current
from quorate.wire.failure import (
    Kind,
    has_come,
    note_place,
    report_death,
    report_failure,
    report_outlived_error,
    report_outsider,
)
from quorate.wire.members import members_on
from quorate.wire.real.wire import RealWire
from quorate.wire.survivors import DeathTolerance

_WHOLE: dict[type[BaseException], Kind] = {Mismatch: "mismatch", Diverged: "diverged", NotFinite: "not finite"}
"""Failures that concern several workers: what they say is the whole sentence."""
_TWICE = (
    "quorate.join() has started torch's default process group already; leave out init_process_group, or call it before "
    "quorate.join(), which uses the group that it finds"
)
GRACE = 10.0
"""Seconds a worker that has ended waits for the others before it closes its connections."""
SAVES_WITHIN = 6 * 3600.0
"""Seconds it waits for others that were asked to leave without a limit, and still save."""


class _Ending:
    """The end of this process; `status` is set once something went wrong.

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
        for name in ("exit", "quit"):  # they raise SystemExit, of which no hook hears
            if isinstance(getattr(builtins, name, None), Quitter):
                setattr(builtins, name, self.exit)

    def exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report an error of the script to the others; no worker waits any more."""
        if os.getpid() != self._pid:
            self._shown(kind, error, trace)
            return
        error = own_error(error, self.place.context(CallbackErrors))
        kind = type(error)
        if issubclass(kind, ValueError) and "default process group twice" in str(error):
            kind, error = ConfigurationError, ConfigurationError(_TWICE)
        elif (explained := in_words(error)) is not None:
            kind, error = ConfigurationError, explained
        stop = self.place.context(Stop)
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
            tolerance = self.place.context(DeathTolerance)
            lost = tolerance.dead_of_replica(self.place.wire.dead) if issubclass(kind, PeerFailed) else []
            if lost:
                self.fail(status, f"left, as {ranks_in_words(lost)} of its replica had died", goes_quietly=True)
            elif how is None:
                # What Quorate raises concerns everyone; an error of this worker's own may be its own death.
                is_own = not issubclass(kind, QuorateError)
                self.fail(status, f"raised {kind.__name__}: {error}", is_own=is_own)
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
        """Replaces `sys.exit`: at exit the status cannot be asked for any more."""
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
        timers, label = self.place.context(Timing).timers, self.place.context(Chosen).label
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
        stop = self.place.context(Stop)
        if self.status is None and stop.left_with is not None:
            self._stop(stop.left_with)
        if self._asked not in (None, 0):  # it does not leave well, so it does not keep the others company either
            status = self._asked if isinstance(self._asked, int) else 1
            self.fail(status, f"exited with status {status}", is_own=True)
        if self.status is None:
            try:
                self.place.context(Ends).exits(self.place)
                self.place.leave()
                self._part()
                return
            except QuorateError as error:
                self.exception(type(error), error, error.__traceback__)
        leave_records(self.place, is_well=False)
        if isinstance(self.place.wire, RealWire):
            self.place.wire.endpoint.leave_board()
        flush()
        os._exit(self.status or 1)  # a backend that lost a peer may hang in its own clean-up

    def _stop(self, status: int, *, in_order: bool = True) -> NoReturn:
        """Leave on request: without a failure, and never with status 0."""
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

    def _wait_for_others(self) -> None:
        """Return when all have done their work; where they were asked to leave, some may save until the limit of that.

        Launchers such as torchrun end the others once a worker has ended with a status above 0.
        """
        stop, board, size = self.place.context(Stop), self.place.wire.board, self.place.wire.size
        limit = GRACE if stop.left_with is None else stop.limit or SAVES_WITHIN
        until = time.monotonic() + limit
        while (seconds := until - time.monotonic()) > 0:
            try:
                board.wait([left(peer) for peer in members_on(board, size).alive], min(seconds, GRACE))
                return
            except WireTimeout:
                pass  # another worker is still busy, or has died since
            except QuorateError:
                return  # it failed after this one's work was done

    def _part(self) -> None:
        """Close connections once all workers are here; closing them earlier breaks the others' last exchange."""
        wire = self.place.wire
        if wire.max_size > 1:
            wire.board.set(left(wire.rank), b"1")
            self._wait_for_others()
        if isinstance(wire, RealWire):
            self.place.context(LauncherNews).try_to_pass_on(wire)
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
