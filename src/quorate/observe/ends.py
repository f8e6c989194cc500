"""Ends of a training that workers report to each other over the board: a request that all end, or the end of one.

`end/stop` holds a `StopRequest`, `end/first` the `FirstEnd`, and `end/said` the sentence about it, which the first
living worker writes on stderr.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from quorate.core.contracts import Wire
from quorate.core.fields import Fields
from quorate.core.telling import tell
from quorate.observe.step_observer import Phase, StepObserver
from quorate.observe.step_times import Timing
from quorate.observe.stopping import Stop
from quorate.records.rows import Log

_STOP, _FIRST, _SAID = KEYS = ("end/stop", "end/first", "end/said")
_SEVERAL = 3
"""Steps that workers make after another has ended before it is reported, if its loader had no more."""
_EVERY = 16
"""Steps between two looks at the board of a training beside which a thread reads it too, twice a second."""


@dataclass(frozen=True, slots=True)
class StopRequest(Fields):
    """The request of a worker that all end."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class FirstEnd(Fields):
    """The first worker that has ended the training of optimizer `name`."""

    rank: int
    name: str
    steps: int
    had_more: bool  # whether its loader had more

    @property
    def sentence(self) -> str:
        """The report."""
        early = ", before its loader had ended" if self.had_more else ""
        return (
            f"rank {self.rank} has ended its training after {self.steps} steps{early}, and others train on without "
            "it; to end all workers together decide with world.any(...), or call world.stop(reason)"
        )


class Ends:
    """The ends as one worker knows them. `is_attended` if a thread beside the training reads the board."""

    def __init__(self) -> None:
        self.is_attended = False
        self._first: FirstEnd | None = None
        self._heard_at: int | None = None
        self._knows_stop = self._knows_end = False
        self._lock = Lock()
        self.watches: list[EndWatch] = []
        self._pauses = 0
        """The number of pauses that this worker has come to."""

    def look(self, wire: Wire, stop: Stop) -> None:
        """Read the keys of the board that are known here."""
        stopped, first, said = wire.board.peek_all(KEYS)
        with self._lock:
            if first is not None and self._first is None:
                self._first = FirstEnd.from_bytes(first)
                for watch in self.watches:
                    watch.due = 0
            if stopped is not None and not self._knows_stop:
                request, self._knows_stop = StopRequest.from_bytes(stopped), True
                stop.end(request.reason)
                reason = f": {request.reason}" if request.reason else ""
                _speak(wire, f"rank {request.rank} ends the training{reason}")
            if said is not None and not self._knows_end:
                self._knows_end = True
                _speak(wire, said.decode())

    def look_unattended(self, wire: Wire, stop: Stop) -> None:
        """Read the board, unless a thread does."""
        if not self.is_attended:
            self.look(wire, stop)

    def request(self, wire: Wire, stop: Stop, timing: Timing, reason: str) -> None:
        """Request that all workers end; the reason goes into this worker's records."""
        recorder, timers = timing.recorder, timing.timers
        if recorder is not None:
            values = {"stop": reason}
            recorder.write(Log(step=timers[0].steps if timers else 0, time=wire.clock.now(), values=values))
        wire.board.swap(_STOP, None, StopRequest(wire.rank, reason).to_bytes())
        stop.end(reason)
        self.look(wire, stop)

    def ended(self, wire: Wire, stop: Stop, name: str, steps: int, *, had_more: bool) -> None:
        """Report that this worker has ended the training of optimizer `name`; `had_more` is about its loader."""
        if wire.size > 1 and not _is_asked(stop):
            wire.board.swap(_FIRST, None, FirstEnd(wire.rank, name, steps, had_more).to_bytes())
            if not wire.is_newcomer:  # its pauses began later
                self._look_for_waiting(wire)

    def pause_begins(self, wire: Wire, where: str) -> None:
        """Report that this worker waits for all others, at a pause of training."""
        self._pauses += 1
        if wire.size > 1:
            wire.board.set(f"pause/{wire.rank}", f"{self._pauses} {where}".encode())

    def _look_for_waiting(self, wire: Wire) -> None:
        """Write a line, once, if another worker waits at a pause that this one has never come to, and this one ends."""
        ranks = [rank for rank in wire.alive if rank != wire.rank]
        texts = wire.board.get_all([f"pause/{rank}" for rank in ranks])
        for rank, text in zip(ranks, texts, strict=True):
            count, _, where = ("0" if text is None else text.decode()).partition(" ")
            if int(count) > self._pauses and wire.board.add("end/waiting") == 1:
                tell(
                    f"quorate: rank {rank} waits {where} for all workers, and rank {wire.rank} has ended its training "
                    "without it; call it on all workers, not behind a condition on the rank\n"
                )

    @property
    def has_nothing_to_say(self) -> bool:
        """Whether no worker has ended, as far as this one knows, or its end was reported."""
        return self._first is None or self._knows_end

    def stepped(self, wire: Wire, stop: Stop, name: str, steps: int) -> None:
        """Report after a step that another worker has ended and this one trains on, when it is time."""
        self.look(wire, stop)
        first = self._first
        if first is None or self._knows_end or first.name != name or _is_asked(stop):
            return
        if self._heard_at is None:
            self._heard_at = steps
        most = 1 if first.had_more else _SEVERAL
        if steps - max(self._heard_at, first.steps) >= most:
            wire.board.swap(_SAID, None, first.sentence.encode())
            self.look(wire, stop)


class EndWatch(StepObserver):
    """Reports after a step that another worker has ended its training, and this one trains on."""

    phase = Phase.CHECK

    def __init__(self, wire: Wire, ends: Ends, stop: Stop, optimizer: str, steps: Callable[[], int]) -> None:
        """`steps` returns the number of steps of the optimizer so far."""
        self.optimizer, self._wire, self._ends, self._stop, self._steps = optimizer, wire, ends, stop, steps
        self._ends.watches.append(self)

    def step_ended(self) -> None:
        """Called seldom while a thread reads the board, and finds nothing there."""
        assert self.optimizer is not None
        steps = self._steps()
        self._ends.stepped(self._wire, self._stop, self.optimizer, steps)
        self.due = steps + _EVERY  # the thread may wake this observer from here on
        if not (self._ends.is_attended and self._ends.has_nothing_to_say):
            self.due = 0


def _speak(wire: Wire, sentence: str) -> None:
    if wire.rank == wire.alive[0]:
        tell(f"quorate: {sentence}\n")


def _is_asked(stop: Stop) -> bool:
    return stop.reason is not None or stop.asked is not None
