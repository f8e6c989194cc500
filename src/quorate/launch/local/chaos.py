"""`--chaos`: workers that are killed, stopped and slowed down on a schedule, while they train.

The launcher strikes: SIGKILL is a death, SIGSTOP and later SIGCONT a stop. A slow time is made by the worker itself,
which draws the same schedule (`inject.failures`); here it is only told. The ranks of the schedule are places: a
worker that was started in the place of a dead one is struck in its stead.

Time 0 is when the last of the workers that begin together has been through `quorate.distribute`. It stands on the board
under `chaos/began`, in seconds of the clock that workers go by.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quorate.core.contracts import Board
from quorate.inject.failures import Failure, Failures
from quorate.records.records import CHAOS
from quorate.wire.failure import has_come, is_in_training, stops_at_deaths

_BEGAN = "chaos/began"


@dataclass(frozen=True)
class ChaosPlan:
    """The failures that strike the workers of a run."""

    failures: Failures
    seed: int


class Workers(Protocol):
    """The processes of a run."""

    @property
    def alive(self) -> Sequence[int]:
        """The ranks that have not ended."""

    def signal(self, rank: int, signum: signal.Signals) -> None:
        """Send a signal to a worker and to its children."""


def began(board: Board) -> float | None:
    """When the schedule began; None while it has not."""
    written = board.get(_BEGAN)
    return None if written is None else float(written)


class Chaos:
    """Strikes the workers of one run, which began with `size` of them; `look` is called every few milliseconds."""

    def __init__(
        self,
        plan: ChaosPlan,
        size: int,
        board: Board,
        workers: Workers,
        folder: Path,
        *,
        says: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan, self._size, self._board, self._workers = plan, size, board, workers
        self._file, self._says, self._now = folder / CHAOS, says, now
        self._schedule = plan.failures.schedule(size, plan.seed)
        self._next = next(self._schedule)
        self.strikes = 0
        """Workers that were killed, stopped or slowed down, each time."""
        self._began: float | None = None
        self._is_over = False
        self._sitting: dict[int, int] = {}
        """By place, the rank of the worker that was started there later."""
        self._killed: set[int] = set()
        self._stopped: dict[int, tuple[int, float]] = {}
        """By rank, its place, and when it goes on."""

    def look(self) -> None:
        """Strike the workers that are due."""
        if self._is_over:
            return
        now = self._now()
        if self._began is None:
            if not self._can_begin():
                return
            self._begin(now)
        assert self._began is not None
        while (due := self._next.time) <= now - self._began:
            self._let_go_on(self._began + due)
            for place in self._next.ranks:
                self._strike(self._next, place)
            self._next = next(self._schedule)
        self._let_go_on(now)

    def started(self, rank: int, place: int) -> None:
        """A worker was started in the place of one that had died."""
        self._sitting[place] = rank
        if self._began is not None:
            self._note("death", place, "restarted", worker=rank)

    def end(self) -> None:
        """Strike no worker any more, and continue stopped ones."""
        self._is_over = True
        self._let_go_on(float("inf"))

    def _can_begin(self) -> bool:
        """Whether all train, and it is known what a death would be."""
        if self._size > 1 and stops_at_deaths(self._board) is None:
            return False
        return all(self._trains(rank) or rank not in self._workers.alive for rank in range(self._size))

    def _begin(self, now: float) -> None:
        self._began = now
        self._board.set(_BEGAN, repr(now).encode())
        failures = self._plan.failures
        about = {"failures": failures.text, "seed": self._plan.seed, "workers": self._size}
        self._write({"kind": "begin", "time": 0.0, "now": now, "wall": time.time(), **about})
        if failures.kills and self._size > 1 and stops_at_deaths(self._board):
            self._says(
                'this training stops at a death (on_death="stop"): the first one of --chaos ends the run, unless the '
                "strategy and its settings let the others go on"
            )

    def _strike(self, failure: Failure, place: int) -> None:
        rank = self._sitting.get(place, place)
        due = {"due": failure.time, "seconds": failure.seconds, "worker": rank}
        if failure.kind == "slow":
            due["factor"] = failure.factor
        why = self._spared(rank, failure)
        who = f"rank {rank}" if rank == place else f"rank {rank} (in the place of rank {place})"
        if why is not None:
            self._note(failure.kind, place, "passed over", **due, why=why)
            if any(map(self._trains, self._workers.alive)):
                self._tell(f"{who} is passed over: {why}")
            return
        if failure.kind == "death":
            self._killed.add(rank)
            self._stopped.pop(rank, None)
            self._workers.signal(rank, signal.SIGKILL)
            self._tell(f"{who} is killed")
        elif failure.kind == "stop":
            assert self._began is not None
            until = max(self._began + failure.time + failure.seconds, self._stopped.get(rank, (place, 0.0))[1])
            self._stopped[rank] = place, until
            self._workers.signal(rank, signal.SIGSTOP)
            self._tell(f"{who} is stopped for {failure.seconds:.1f} s")
        else:
            self._tell(f"{who} is slow (x{failure.factor:g}) for {failure.seconds:.1f} s")
        self.strikes += 1
        self._note(failure.kind, place, "struck", **due)

    def _spared(self, rank: int, failure: Failure) -> str | None:
        """Why it is not struck."""
        if rank in self._killed or rank not in self._workers.alive:
            return "it has ended"
        if not has_come(self._board, self._size, rank):
            return "it has not joined yet"
        if not self._trains(rank):
            return "its training is over"
        if failure.kind == "death" and not any(self._trains(other) for other in self._workers.alive if other != rank):
            return "it is the last one that trains"
        return None

    def _trains(self, rank: int) -> bool:
        is_there = rank in self._workers.alive and rank not in self._killed
        return is_there and has_come(self._board, self._size, rank) and is_in_training(self._board, rank)

    def _let_go_on(self, now: float) -> None:
        for rank, (place, until) in sorted(self._stopped.items(), key=lambda entry: entry[1][1]):
            if until <= now:
                del self._stopped[rank]
                if rank in self._workers.alive:
                    self._workers.signal(rank, signal.SIGCONT)
                    self._note("stop", place, "continued", worker=rank)

    def _tell(self, sentence: str) -> None:
        self._says(f"chaos, {self._since():.1f} s: {sentence}")

    def _since(self) -> float:
        assert self._began is not None
        return self._now() - self._began

    def _note(self, kind: str, place: int, done: str, **more: object) -> None:
        self._write({"kind": kind, "time": round(self._since(), 6), "rank": place, "done": done, **more})

    def _write(self, row: dict[str, object]) -> None:
        try:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError:  # a full disk ends the record, not the run
            pass
