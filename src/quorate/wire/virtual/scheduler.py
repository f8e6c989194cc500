"""The scheduler of the virtual workers' threads, with the virtual clock.

Exactly one thread runs at a time: it holds the *baton*. A thread that waits pops events itself, which moves the
virtual clock, until one of them wakes a thread. It hands the baton directly to that one (5 to 10 us), and sleeps on
a lock of its own. Events are ordered by time, then by a number drawn from the world's seed. The same seed gives the
same run, and another seed another order of events of the same time.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from quorate.wire.virtual.generators import Generators

PAUSES_AT_ONE_INSTANT = 1_000
"""A thread that has paused this often, without any other wait, is polling: its further pauses take time."""

POLLING_SECONDS = 10e-6
"""Duration of each further pause."""

Action = Callable[[], None]
Resumed = Callable[[int], None]
"""Gets the rank of a worker whenever a thread of it gets the baton."""


class Awaited(Protocol):
    """A work that a thread may wait for."""

    def timed_out(self, seconds: float) -> BaseException:
        """Return the error for a wait that lasted `seconds`."""


class Strand:
    """One thread of one virtual worker."""

    __slots__ = (
        "_resumed", "ahead", "awaited", "deadline", "entry", "error", "fate", "generators", "ident", "is_patient",
        "lock", "name", "patience", "pauses", "rank", "waits",
    )  # fmt: skip

    def __init__(self, rank: int, name: str, generators: Generators | None, resumed: Resumed) -> None:
        self.rank = rank
        self.name = name
        self.generators = generators
        self._resumed = resumed
        self.lock = threading.Lock()
        self.lock.acquire()
        self.ident = 0
        self.waits = False
        """Whether it waits for `awaited` and has not been woken."""
        self.awaited: Awaited | None = None
        self.patience = math.inf
        self.deadline = math.inf
        self.is_patient = False
        """Whether its limit is that of its wire, not of the caller."""
        self.entry = math.inf
        """The earliest time at which the scheduler checks its deadline."""
        self.error: BaseException | None = None
        self.fate: BaseException | None = None
        """The error that every wait of this thread raises from now on."""
        self.ahead = 0.0
        """Seconds by which its own clock, which it has read, is ahead of the world's."""
        self.pauses = 0

    def resume(self) -> None:
        """Give the process this thread's own state."""
        if self.generators is not None:
            self.generators.load()
        self._resumed(self.rank)


class Scheduler:
    """The virtual clock, the future events, and the baton."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.current: Strand | None = None
        self.strands: dict[Strand, None] = {}
        self.finished = threading.Event()
        self._draw = random.Random(seed).random
        self._next_number = count().__next__
        self._events: list[tuple[float, float, int, Action | Strand]] = []
        self._deadlines: list[tuple[float, int, Strand]] = []
        self._is_interrupted = False

    # -- events

    def at(self, when: float, action: Action) -> None:
        """Call `action` at virtual time `when`, in any thread that waits then; it must not wait."""
        heappush(self._events, (when, self._draw(), self._next_number(), action))

    def wake(self, strand: Strand, error: BaseException | None = None) -> None:
        """End the wait of `strand`, once: it returns, or raises `error`. Does nothing if it does not wait."""
        if strand.waits:
            strand.waits = False
            strand.deadline = math.inf
            strand.error = error
            self._resume_at(self.now, strand)

    def doom(self, strand: Strand, fate: BaseException) -> None:
        """Let the present wait and all later ones of `strand` raise `fate`."""
        if strand.fate is None:
            strand.fate = fate
            strand.waits = False
            self._resume_at(self.now, strand)

    def add(self, strand: Strand) -> None:
        """Start `strand`, whose thread waits for its lock, at this time."""
        self.strands[strand] = None
        self._resume_at(self.now, strand)

    def interrupt(self) -> None:
        """Let every wait of every thread raise `KeyboardInterrupt`; any thread may call it."""
        self._is_interrupted = True

    # -- what the running thread calls

    def here(self) -> Strand | None:
        """Return the calling thread, if it is one of the world's."""
        strand = self.current
        return strand if strand is not None and strand.ident == threading.get_ident() else None

    def running(self) -> Strand:
        """Return the calling thread. Raises if it is not one of the world's."""
        strand = self.here()
        assert strand is not None, (
            "a virtual worker's wire, board and clock belong to its own threads; use wire.spawn for another one"
        )
        return strand

    def wait(self, awaited: Awaited, patience: float, *, is_patient: bool) -> None:
        """Wait until woken, at most `patience` seconds; raises the error of the waking."""
        strand = self.running()
        strand.awaited, strand.patience, strand.is_patient = awaited, patience, is_patient
        strand.deadline = self.now + patience
        if strand.deadline < strand.entry:
            strand.entry = strand.deadline
            heappush(self._deadlines, (strand.deadline, self._next_number(), strand))
        strand.pauses = 0
        strand.waits = True
        self._switch(strand)
        strand.awaited = None
        error, strand.error = strand.error, None
        if error is not None:
            raise error

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass for the running thread, and those by which it is ahead of the clock."""
        strand = self.running()
        strand.pauses = 0
        self._nap(strand, seconds)

    def own_now(self) -> float:
        """Return the time by the running thread's own clock."""
        return self.now + self.running().ahead

    def catch_up(self) -> None:
        """Let the world's clock catch up with the running thread's own."""
        if self.running().ahead:
            self.sleep(0.0)

    def pause(self) -> None:
        """Let other threads run that can run at this time."""
        strand = self.running()
        strand.pauses += 1
        self._nap(strand, 0.0 if strand.pauses <= PAUSES_AT_ONE_INSTANT else POLLING_SECONDS)

    def leave(self) -> None:
        """End the running thread: hand the baton to the next, or end the world."""
        strand = self.running()
        del self.strands[strand]
        following = self._next()
        self.current = following
        if following is None:
            self.finished.set()
        else:
            following.lock.release()

    def begin(self) -> None:
        """Hand the baton to the first thread; called from outside."""
        self.current = self._next()
        if self.current is None:
            self.finished.set()
        else:
            self.current.lock.release()

    # -- inside

    def _nap(self, strand: Strand, seconds: float) -> None:
        seconds, strand.ahead = seconds + strand.ahead, 0.0
        self._resume_at(self.now + seconds, strand)
        self._switch(strand)

    def _resume_at(self, when: float, strand: Strand) -> None:
        heappush(self._events, (when, self._draw(), self._next_number(), strand))

    def _switch(self, strand: Strand) -> None:
        if strand.fate is None:
            following = self._next()
            if following is not strand:
                if strand.generators is not None:
                    strand.generators.save()
                self.current = following
                assert following is not None
                following.lock.release()
                strand.lock.acquire()
                strand.resume()
        if strand.fate is not None:
            strand.waits, strand.awaited, strand.deadline = False, None, math.inf
            raise strand.fate

    def _next(self) -> Strand | None:
        """Process events until one of them wakes a thread; return it, or None when there is none left."""
        events = self._events
        while self.strands:
            if self._is_interrupted:
                self._is_interrupted = False
                for strand in list(self.strands):
                    self.doom(strand, KeyboardInterrupt())
            if self._deadlines and (not events or self._deadlines[0][0] < events[0][0]):
                self._look_at_deadline(nothing_else=not events)
            elif events:
                when, _, _, event = heappop(events)
                if isinstance(event, Strand):
                    if event in self.strands:  # a doomed one may have been resumed by another event, and have ended
                        self.now = when
                        return event
                else:
                    self.now = when
                    event()
            else:
                self._give_up_on_all()
        return None

    def _look_at_deadline(self, *, nothing_else: bool) -> None:
        when, _, strand = heappop(self._deadlines)
        if strand.entry == when:
            strand.entry = math.inf
        if not strand.waits or strand.deadline == math.inf:
            return
        if strand.deadline > when:
            if strand.deadline < strand.entry:
                strand.entry = strand.deadline
                heappush(self._deadlines, (strand.deadline, self._next_number(), strand))
            return
        self.now = when
        if nothing_else and strand.is_patient:
            self._give_up_on_all()
        else:
            self._give_up(strand)

    def _give_up_on_all(self) -> None:
        """End all waits without a limit of the caller, as no event can end them any more."""
        for strand in list(self.strands):
            if strand.waits and (strand.is_patient or strand.deadline == math.inf):
                self._give_up(strand)

    def _give_up(self, strand: Strand) -> None:
        assert strand.awaited is not None
        self.wake(strand, strand.awaited.timed_out(strand.patience))
