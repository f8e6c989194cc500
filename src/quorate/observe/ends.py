"""Ends of a training that workers report to each other over the board: a request that all end, or the end of one.

`end/stop` holds a `StopRequest`, `end/first` the `FirstEnd`, and `end/said` the sentence about it, which the first
living worker writes on stderr. `end/evaluates` holds the newest `Evaluating` of any worker, `end/evaluates/<rank>` that
of one worker, and `end/evaluated/<rank>` the number of evaluations that a worker had entered when its training ended.
`end/finishes/<rank>` holds the name of the newest optimizer whose training a worker has ended, and `end/exits/<rank>`
marks workers that have come to the end of their script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from quorate.core.errors import ConfigurationError
from quorate.core.fields import Fields
from quorate.core.telling import tell
from quorate.observe.step_observer import Phase, StepObserver
from quorate.observe.step_times import Timing
from quorate.observe.stopping import Stop
from quorate.records.rows import Log
from quorate.wire.current import Place

_STOP, _FIRST, _SAID, _EVALUATES = KEYS = ("end/stop", "end/first", "end/said", "end/evaluates")
_ENDED, _FINISHES, _EXITS = "end/evaluated", "end/finishes", "end/exits"
_SEVERAL = 3
"""Steps that workers make after another has ended before it is reported, if its loader had no more."""
_MORE = 64
"""Steps that a worker makes, beside as many as another had made that waits in an evaluation, before it is reported."""
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


@dataclass(frozen=True, slots=True)
class Evaluating(Fields):
    """A worker that waits for all others in `world.evaluate()`: its evaluation of this `number`, after `steps`."""

    rank: int
    number: int
    steps: int  # of all its optimizers

    def sentence(self, rank: int, passing: str) -> str:
        """Return the sentence about `rank`, which passes this evaluation by, as `passing` says."""
        return (
            f"rank {self.rank} has entered world.evaluate(), and rank {rank} {passing} without it; all workers must "
            "enter world.evaluate(): call it on all ranks, and print or log on rank 0 alone"
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
        self._evaluating: Evaluating | None = None
        """The newest evaluation that any worker has entered."""
        self._finishes = set[str]()
        """The names of the optimizers whose training this worker has ended."""
        self._passed_by: tuple[int, int] | None = None
        """Its number, and the steps of this worker when it heard of it, if it has not entered this evaluation."""
        self._evaluations = 0
        """The number of evaluations that this worker has entered."""

    def look(self, place: Place) -> None:
        """Read the keys of the board that are known here."""
        stop, first, said, evaluating = place.wire.board.peek_all(KEYS)
        with self._lock:
            if evaluating is not None:
                self._evaluating = Evaluating.from_bytes(evaluating)
            if first is not None and self._first is None:
                self._first = FirstEnd.from_bytes(first)
                for watch in self.watches:
                    watch.due = 0
            if stop is not None and not self._knows_stop:
                request, self._knows_stop = StopRequest.from_bytes(stop), True
                place.context(Stop).end(request.reason)
                reason = f": {request.reason}" if request.reason else ""
                _speak(place, f"rank {request.rank} ends the training{reason}")
            if said is not None and not self._knows_end:
                self._knows_end = True
                _speak(place, said.decode())

    def look_unattended(self, place: Place) -> None:
        """Read the board, unless a thread does."""
        if not self.is_attended:
            self.look(place)

    def stop(self, place: Place, reason: str) -> None:
        """Request that all workers end; the reason goes into this worker's records."""
        recorder, timers = place.context(Timing).recorder, place.context(Timing).timers
        if recorder is not None:
            values = {"stop": reason}
            recorder.write(Log(step=timers[0].steps if timers else 0, time=place.wire.clock.now(), values=values))
        place.wire.board.swap(_STOP, None, StopRequest(place.wire.rank, reason).to_bytes())
        place.context(Stop).end(reason)
        self.look(place)

    def ended(self, place: Place, name: str, steps: int, *, had_more: bool, needs_all: bool | None) -> None:
        """Report that this worker has ended the training of optimizer `name`; `had_more` is about its loader.

        Raises `ConfigurationError` if another worker is in an evaluation that this one has passed by. With `needs_all`,
        where workers that have ended take part in evaluations, also if it has not made more steps than the other. With
        None, as among learners, which evaluate when others have ended, never.
        """
        wire = place.wire
        if wire.size == 1 or _is_asked(place):
            return
        self._finishes.add(name)
        wire.board.set(f"{_FINISHES}/{wire.rank}", name.encode())
        if place.context(Stop).trainings == 1 and not wire.is_newcomer:  # the evaluations of newcomers began later
            wire.board.set(f"{_ENDED}/{wire.rank}", str(self._evaluations).encode())
            for text in self._of_others(place, _EVALUATES).values():
                other = Evaluating.from_bytes(text)
                has_passed = needs_all is not None and (needs_all or other.steps < _steps_of(place))
                if other.number > self._evaluations and has_passed:
                    raise ConfigurationError(other.sentence(wire.rank, "ends its training"))
        wire.board.swap(_FIRST, None, FirstEnd(wire.rank, name, steps, had_more).to_bytes())

    def evaluation_begins(self, place: Place, *, needs_all: bool) -> None:
        """Report that this worker waits for all others in `world.evaluate()`.

        Raises `ConfigurationError` if it `needs_all`, and one has ended its training without this evaluation.
        """
        self._evaluations += 1
        wire = place.wire
        if wire.size == 1:
            return
        own = Evaluating(wire.rank, self._evaluations, _steps_of(place))
        for key in (f"{_EVALUATES}/{wire.rank}", _EVALUATES):
            wire.board.set(key, own.to_bytes())
        if needs_all and not wire.is_newcomer:
            for rank, count in self._of_others(place, _ENDED).items():
                if int(count) < self._evaluations:
                    raise ConfigurationError(own.sentence(rank, "has ended its training"))

    def exits(self, place: Place) -> None:
        """Report that this worker has come to the end of its script: it calls nothing more."""
        if place.wire.size > 1:
            place.wire.board.set(f"{_EXITS}/{place.wire.rank}", b"1")

    def that_cannot_come(self, place: Place, ranks: Sequence[int], call: str) -> dict[int, str]:
        """Return a sentence for each of `ranks`, for which this worker waits in `call`, that cannot come any more.

        It has come to the end of its script, or it waits for this worker in `finish()` or `world.evaluate()`. What it
        sent before may still be on its way.
        """
        keys = [f"{key}/{rank}" for rank in ranks for key in (_EXITS, _FINISHES, _EVALUATES)]
        texts = iter(place.wire.board.get_all(keys) if keys else [])
        trains = place.context(Stop).trainings > 0 and not place.wire.is_newcomer
        sentences = {}
        for rank, has_exited, name, evaluating in zip(ranks, texts, texts, texts, strict=True):
            if has_exited is not None:
                where = "has come to the end of its script"
            elif trains and name is not None and self._is_under_way(place, name.decode()):
                where = "waits for all workers in optimizer.finish()"
            elif trains and evaluating is not None and Evaluating.from_bytes(evaluating).number > self._evaluations:
                where = "waits for all workers in world.evaluate()"
            else:
                continue
            sentences[rank] = (
                f"rank {rank} {where}, and rank {place.wire.rank} waits for it in {call}; all workers make the calls "
                "of their world, and finish(), in the same order"
            )
        return sentences

    def _is_under_way(self, place: Place, name: str) -> bool:
        """Whether this worker trains the optimizer `name`, and has not ended that."""
        return name not in self._finishes and any(timer.name == name for timer in place.context(Timing).timers)

    def _of_others(self, place: Place, key: str) -> dict[int, bytes]:
        """Return what the other living workers have written on the board under `key`, by rank."""
        ranks = [rank for rank in place.wire.alive if rank != place.wire.rank]
        texts = place.wire.board.get_all([f"{key}/{rank}" for rank in ranks])
        return {rank: text for rank, text in zip(ranks, texts, strict=True) if text is not None}

    @property
    def has_nothing_to_say(self) -> bool:
        """Whether no worker has ended, as far as this one knows, or its end was reported."""
        return self._first is None or self._knows_end

    def stepped(self, place: Place, name: str, steps: int) -> None:
        """Report after a step that another worker has ended and this one trains on, when it is time."""
        self.look(place)
        self._look_for_evaluation(place)
        first = self._first
        if first is None or self._knows_end or first.name != name or _is_asked(place):
            return
        if self._heard_at is None:
            self._heard_at = steps
        most = 1 if first.had_more else _SEVERAL
        if steps - max(self._heard_at, first.steps) >= most:
            place.wire.board.swap(_SAID, None, first.sentence.encode())
            self.look(place)

    def _look_for_evaluation(self, place: Place) -> None:
        """Report that another worker waits in an evaluation that this one, which makes step after step, passes by."""
        other, steps = self._evaluating, _steps_of(place)
        if other is None or other.number <= self._evaluations:
            return
        if self._passed_by is None or self._passed_by[0] != other.number:
            self._passed_by = other.number, steps
        since = steps - self._passed_by[1]
        if since >= other.steps + _MORE:
            sentence = other.sentence(place.wire.rank, f"has made {since} steps since")
            place.wire.board.swap(_SAID, None, sentence.encode())
            self.look(place)


class EndWatch(StepObserver):
    """Reports after a step that another worker has ended its training, and this one trains on."""

    phase = Phase.CHECK

    def __init__(self, place: Place, optimizer: str, steps: Callable[[], int]) -> None:
        """`steps` returns the number of steps of the optimizer so far."""
        self.optimizer, self._place, self._ends, self._steps = optimizer, place, place.context(Ends), steps
        self._ends.watches.append(self)

    def step_ended(self) -> None:
        """Called seldom while a thread reads the board, and finds nothing there."""
        assert self.optimizer is not None
        steps = self._steps()
        self._ends.stepped(self._place, self.optimizer, steps)
        self.due = steps + _EVERY  # the thread may wake this observer from here on
        if not (self._ends.is_attended and self._ends.has_nothing_to_say):
            self.due = 0


def _speak(place: Place, sentence: str) -> None:
    if place.wire.rank == place.wire.alive[0]:
        tell(f"quorate: {sentence}\n")


def _steps_of(place: Place) -> int:
    return sum(timer.steps for timer in place.context(Timing).timers)


def _is_asked(place: Place) -> bool:
    stop = place.context(Stop)
    return stop.reason is not None or stop.asked is not None
