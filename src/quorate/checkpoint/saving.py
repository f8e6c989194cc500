"""When a worker's part of a checkpoint is taken: at the moment it is asked for, or at the first boundary after.

A *boundary* is a place in the training loop where nothing is half done. Boundaries are `save` itself, a loader's next
batch, the beginning of a backward pass, an evaluation, and the end.

- Where all workers step together, `save()` takes it there and then, and says so with the next exchange. If not all
  have said so, what was taken is no checkpoint, and all take one at the first boundary after that exchange.
- Under rounds, `save()` asks the leader to mark a round. Every worker takes its part at its first boundary after it has
  applied that round, and before it applies the next one. With `best`, or several optimizers, it pauses all workers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quorate.checkpoint import generators
from quorate.checkpoint.folder import Part, claims, write
from quorate.checkpoint.participants import CheckpointContext, Distributed, Participant, Trained
from quorate.checkpoint.parts import HostMemory, check_state, own_file, shared_files
from quorate.checkpoint.tensor_file import FileOutput, Open, TensorFile
from quorate.core.contracts import Wire, Work
from quorate.core.errors import ConfigurationError
from quorate.core.strategy import steps_apart
from quorate.data.context import DataContext
from quorate.data.loader import Loaders
from quorate.observe.step_observer import NEVER, Observers, Phase, StepObserver
from quorate.wire.current import Place

CHECKPOINTS = "checkpoints"
"""Name of the folder of checkpoints in the folder of a run."""
_REPEATS = 1024
"""Numbers that each `save` under rounds takes, so that a failed one can be repeated."""


class Saving(StepObserver):
    """The checkpoints of one worker. Belongs to the training thread.

    As an observer it takes the parts that are due: it is called only while there is one.
    """

    phase = Phase.SAVE

    def __init__(self, place: Place) -> None:
        self._place, self._trained = place, place.context(Trained)
        self.due = NEVER
        self._memory = HostMemory()
        self._writing: Work[None] | None = None
        self._awaited: tuple[int, int] | None = None
        """The part that is taken at the next boundary: its number and term."""
        self._awaited_after_step: tuple[int, int] | None = None
        self.is_said = True
        """Whether the header of an exchange has said that this worker has saved."""
        self.some_saved = False
        """Whether workers have said in the newest exchange that they save."""
        self._exchanges = self._calls = 0
        self._taken: tuple[int, int] | None = None
        self._since = (0, 0)
        """The moment of the newest save, and how many there were before at the same one."""
        self._session: str | None = None
        self._drawn: dict[str, Any] | None = None
        self.offset = 0
        """From the number of steps or rounds of this session to those of the whole training."""
        self.refused: frozenset[str] = frozenset()
        """Checkpoints that were found damaged."""
        self._keep: int | None = None
        self._trained_only = False
        self._best: float | None = None
        """The value of the state that is taken next."""
        self.opened: Open = FileOutput
        place.context(DataContext).boundaries.append(self.boundary)
        place.context(Observers).add(self)
        place.leaving.append(self.flush)

    def save(
        self,
        extras: Mapping[str, Any],
        keep: int | None = None,
        best: float | None = None,
        *,
        trained_only: bool = False,
    ) -> None:
        """Take a checkpoint: see `quorate.save`."""
        training = self._trained
        if not training.optimizers:
            raise ConfigurationError("quorate.save() saves distributed optimizers; call it after quorate.distribute()")
        if (division := self._place.context(DataContext).division) is not None:
            division.check_meeting()
        training.add_extras(extras)
        check_state(training)
        self._root()
        self.boundary()
        self._keep, self._best, self._trained_only = keep or self._keep, best, trained_only
        in_rounds = [optimizer for optimizer in training.optimizers.values() if optimizer.is_in_rounds]
        if in_rounds and (best is not None or len(training.optimizers) > 1):
            self._save_at_pause()
            return
        if in_rounds:
            assert in_rounds[0].worker is not None
            self._calls += 1
            in_rounds[0].worker.rounds.ask_for_save(self._calls * _REPEATS)
            return
        self.is_said = False
        with self._all_met():
            moment = self._moment()
            self._since = (moment, self._since[1] + 1 if self._since[0] == moment else 0)
            apart = training.ordered[0].is_apart  # several saves may lie between two of its exchanges
            self._take(moment, self._since[1] if apart else 0, writes_shared=True)

    def _save_at_pause(self) -> None:
        """Save during a pause under rounds: all optimizers are at the same round on all workers, as when evaluated."""
        everyone = [optimizer for optimizer, _ in self._unfinished()]
        for optimizer in everyone:
            optimizer.pause()
        moment, _ = self._step_of(self._trained.ordered[0])
        self._since = (moment, self._since[1] + 1 if self._since[0] == moment else 0)
        self._take(*self._since, writes_shared=True)
        for optimizer in everyone:
            optimizer.resume()

    @contextmanager
    def _all_met(self) -> Iterator[None]:
        """Pause all workers inside, under strategies whose steps do not meet; nothing is in flight.

        Workers that pause for another reason save too, and wait for those that continue from here (`some_saved`).
        """
        waiting = [optimizer for optimizer, worker in self._unfinished() if steps_apart(worker.strategy)]
        for optimizer in waiting:
            optimizer.pause()
        yield
        for optimizer in waiting:
            optimizer.resume()

    def _unfinished(self) -> Iterator[tuple[Distributed, Participant]]:
        for optimizer in self._trained.ordered:
            if optimizer.worker is not None and not optimizer.worker.finished:
                yield optimizer, optimizer.worker

    def _root(self) -> Path:
        root = self._place.context(CheckpointContext).root
        if root is None:
            raise ConfigurationError(
                "this run keeps no records and so has no folder for checkpoints; start it with quorate run, or "
                "join with quorate.join(records=True)"
            )
        return root

    def _moment(self) -> int:
        """Return a number of the current state, equal on all workers that step together."""
        first = self._trained.ordered[0]
        if first.worker is None:
            return first.step
        if first.worker.finished:
            return max(self._exchanges, 0 if not first.worker.has_rounds else first.worker.rounds.version) + 1
        return self._exchanges

    # -- strategies that step together

    def says(self, worker: object) -> bool:
        """Whether `worker`'s next exchange is to say that this worker has saved since its last one."""
        if self.is_said or self._trained.leading is not worker or self._place.wire.is_newcomer:
            return False
        self.is_said = True
        return True

    def exchanged(self, worker: object, said: float, size: int, *, is_away: bool, all_away: bool) -> None:
        """Note an exchange of `worker`, in which `said` of `size` workers said that they save. `is_away`: this worker
        takes part without stepping; `all_away`: all do."""
        if self._trained.leading is not worker:
            return
        self._exchanges += 1
        self.some_saved = said > 0
        if not 0 < said < size:
            return
        moment = self._exchanges, 0
        if all_away:
            self._await(moment)  # once they have been made equal
        elif is_away:
            self._take(*moment, writes_shared=False)
        else:
            self._awaited_after_step, self.due = moment, 0

    def _await(self, moment: tuple[int, int]) -> None:
        self._awaited, self.due = moment, 0

    # -- observe.step_observer.StepObserver

    def backward_begins(self) -> None:
        self.boundary(is_forward_done=True)

    def step_begins(self) -> None:
        self.boundary(is_forward_done=True)

    def step_ended(self) -> None:
        """Keep the states of the generators, where a part is due."""
        if self._awaited_after_step is not None:
            self._awaited, self._awaited_after_step = self._awaited_after_step, None
        if self._awaited is not None:
            self._drawn = generators.states()

    # -- rounds

    def reached(self, number: int, term: int, *, in_step: bool) -> bool:
        """A marked round has been applied; returns whether the next one may be (this worker's part is taken)."""
        if self._place.wire.is_newcomer:
            return True  # a checkpoint is of the workers that there were at the start
        if in_step:
            self._await((number, term))
            return False
        self._take(number, term, writes_shared=True)
        return True

    def boundary(self, *, is_forward_done: bool = False) -> None:
        """Take the part that is due: the training loop is at a boundary.

        With `is_forward_done` the next step has begun to draw: its generators count as they were before. Several
        optimizers may then be in the middle of an iteration, and it waits.
        """
        if self._awaited is not None and not (is_forward_done and len(self._trained.optimizers) > 1):
            (number, term), self._awaited = self._awaited, None
            self.due = NEVER if self._awaited_after_step is None else 0
            drawn, self._drawn = self._drawn if is_forward_done else None, None
            self._take(number, term, writes_shared=True, drawn=drawn)

    # -- taking

    def _take(self, number: int, term: int, *, writes_shared: bool, drawn: dict[str, Any] | None = None) -> None:
        """Copy the state, and write it in the background. Waits while the previous part is being written."""
        if self._taken == (number, term) or self._place.wire.is_newcomer:
            return
        self._taken = number, term
        self.flush()
        wire, training = self._place.wire, self._trained
        part = partial(
            Part,
            root=self._root(),
            session=self._session_of(wire),
            number=number,
            term=term,
            rank=wire.rank,
            size=wire.size,
            refused=self.refused,
            keep=self._keep,
            best=self._best,
            opened=self.opened,
        )
        with ExitStack() as inside:
            for optimizer in training.ordered:
                inside.enter_context(optimizer.ahead())
                if optimizer.worker is not None:
                    inside.enter_context(optimizer.worker.as_edited())
            files, shared = self._copied(part(files=[], shared=None).key, drawn, writes_shared=writes_shared)
        self._best = None
        tell = self._place.context(CheckpointContext).tell
        own_part = part(files=files, shared=shared)
        self._writing = wire.spawn(lambda channel: write(own_part, channel.board, tell), "checkpoint")

    def _copied(
        self, key: str, drawn: dict[str, Any] | None, *, writes_shared: bool
    ) -> tuple[list[TensorFile], dict[str, Any] | None]:
        """Copy all that this worker keeps; return the files, and the manifest's entries of shared ones."""
        training, board = self._trained, self._place.wire.board
        self._memory.begin()
        files = [
            own_file(
                self._place.wire.rank,
                self._place.context(Loaders),
                training,
                drawn or generators.states(),
                self._memory,
            )
        ]
        shared = None
        coordinates = next((entry.coordinates for entry in training.ordered if entry.coordinates is not None), None)
        if writes_shared and (claims(board, key) if coordinates is None else coordinates.replica == 0):
            more, about = shared_files(training, self._memory, trained_only=self._trained_only)
            files += more
            step, in_rounds = self._step_of(training.ordered[0])
            shared = {"step": step + self.offset, "round": step if in_rounds else None, "optimizers": about}
        self._memory.end()
        return files, shared

    def _step_of(self, first: Distributed) -> tuple[int, bool]:
        """Return the round or step that numbers the checkpoint, and whether it is a round."""
        worker = first.worker
        if worker is not None and worker.has_rounds:
            return worker.rounds.version, True
        return first.step, False

    @property
    def has_saved(self) -> bool:
        """Whether this worker has taken a part in this session."""
        return self._session is not None

    def _session_of(self, wire: Wire) -> str:
        if self._session is None:
            wire.board.swap("checkpoint session", None, secrets.token_hex(4).encode())
            self._session = (wire.board.get("checkpoint session") or b"").decode()
        return self._session

    def go_on(self, step: int) -> None:
        """Number the current step or round as `step` of the full training; later checkpoints count from it."""
        self.offset = step - self._step_of(self._trained.ordered[0])[0]

    def flush(self) -> None:
        """Wait until all parts are written. Raises as `Work.wait`."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.wait()


@dataclass
class _Own:
    saving: Saving | None = None


def saving(place: Place) -> Saving:
    """Return the `Saving` of the worker of `place`. Make it before anything that must be done first when it leaves."""
    own = place.context(_Own)
    if own.saving is None:
        own.saving = Saving(place)
    return own.saving
