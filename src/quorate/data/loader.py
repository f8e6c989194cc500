"""One worker's batches, pass by pass, how far it has computed them, and the positions of all of its loaders."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.utils.data import DataLoader

from quorate.core.clients import ClientRound, Turn
from quorate.core.telling import tell
from quorate.data.arguments import check_count
from quorate.data.assignment import DYNAMIC, Share
from quorate.data.consumption import Consumed
from quorate.data.context import DataContext
from quorate.records.rows import Epoch
from quorate.wire.current import Place


class Pass(ABC):
    """The batches of one pass over the data. A returned batch is *in hand* until a step has ended."""

    epoch: int
    number: int
    """Its number among the passes of its loader, the same on all workers."""
    newest = 0
    """The number, among all workers' batches of the epoch, of the last returned batch."""
    _began: Any

    @abstractmethod
    def give(self, steps: int | None, label: Any) -> int:
        """Return the number of examples of a batch that is returned to the worker after so many `steps`. `label` is the
        one that it was fetched with."""

    @abstractmethod
    def pause(self, steps: int | None) -> None:
        """Note that the worker has made `steps`; batches in hand before the last of them were computed in it. None: the
        number is unknown, and all batches in hand count."""

    @property
    def began(self) -> Any:
        """The progress in its epoch at its beginning."""
        return self._began

    @property
    @abstractmethod
    def begun(self) -> Any:
        """The progress in its epoch, without batches in hand."""

    @property
    def is_round(self) -> bool:
        """Whether it is a round of clients."""
        return False

    @property
    def begins_step(self) -> bool:
        """Whether the next batch is the first of its step, as far as the pass says."""
        return True

    def batch_begins(self) -> None:  # noqa: B027  (most passes do nothing)
        """Prepare for the next batch, which is trained on and is fetched now."""

    def leave(self) -> None:  # noqa: B027
        """Note that the pass has ended, or that the script's loop over it has."""

    @property
    def client_round(self) -> ClientRound | None:
        """The round of clients that this pass is; None where it is none."""
        return None

    @property
    def turn(self) -> Turn | None:
        """The turn of the client whose batch was returned last, where clients are simulated."""
        return None


class Loader(ABC):
    """One worker's batches: iterating it the e-th time (from 0) yields epoch e, in that epoch's order.

    An iteration counts as an epoch when its first batch is requested, even if it is left early. With `pauses`, all
    workers reach its end together: those that are there first take part in the others' means without weight.

    Its position (`state_dict`) is that of a step. A batch counts as consumed when an optimizer has stepped after it was
    returned, or, where no optimizer is distributed, when it is returned. Prefetched batches are not consumed. After an
    iteration that was left early, a resumed loader returns the batches that were not consumed. Iterations without
    training (without gradients, or in `world.evaluate()`) are counted, and leave no remainder.
    """

    dataset: Any
    torch_loader: DataLoader[Any]

    def __init__(
        self, batch_size: int, share: Share, place: Place, *, pauses: bool, meets: Callable[[], None], labels: bool
    ) -> None:
        """`meets` is called before the first batch that is trained on. With `labels`, each batch comes beside one."""
        self.batch_size, self.share = batch_size, share
        self._place, self._pauses, self._labels = place, pauses, labels
        self._passes, self._meets, self._has_met = 0, meets, False
        self._starts, self._lack = place.context(Starts), ""
        self._made_after = len(self._starts.begun)
        self._go_on_at(0, {})

    def _go_on_at(self, epoch: int, left: dict[int, Any], *, trained: bool = False) -> None:
        self._epoch = self._next_epoch = self._due = epoch
        self._trained = trained
        self._left = left  # epochs that were begun in a run before and not here
        self._current: Pass | None = None  # that gave batches last, and has more
        self._before: Pass | None = None  # that ended last

    @property
    def is_under_way(self) -> bool:
        """Whether a pass that is trained on has more batches."""
        return self._current is not None

    @property
    def epoch(self) -> int:
        """The epoch begun last, from 0; before the first, and after loading a position, the next one."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch` (as DistributedSampler's `set_epoch`); later ones continue from it.
        After loading a position in the middle of that epoch, the iteration has its remainder."""
        check_count("an epoch", epoch)
        self._epoch = self._next_epoch = self._due = epoch
        self._current = None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return this worker's position, which checkpoints can hold."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the loader with this `state_dict`, one worker alone."""

    @abstractmethod
    def load_state_dicts(self, workers: Sequence[dict[str, Any]]) -> None:
        """Continue from the loaders of all workers of a run; `workers` are their `state_dict`s, equal on all new
        workers."""

    @abstractmethod
    def whereabouts(self) -> dict[str, Any]:
        """Return the current pass, or else the next one, for a worker that joins; plain JSON values."""

    @abstractmethod
    def enter_at(self, about: dict[str, Any]) -> None:
        """Begin at the `whereabouts` of another worker's loader."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def _usual_batches(self) -> int:
        """Batches of this worker in a full epoch; 0 where that is unknown."""

    @abstractmethod
    def _dealt(self, this: Pass) -> float:
        """Return the synchronous steps that all batches up to the newest one would have made, under a dynamic share."""

    def _begun(self, steps: int | None) -> tuple[int, dict[int, Any]]:
        """Return the epoch of this worker's position, and the progress by epoch."""
        begun = dict(self._left)
        epoch = self._due if self._current is None else self._current.epoch
        for each in (self._before, self._current):
            if each is not None and (each.epoch < epoch or each is self._current):
                each.pause(steps)
                begun[each.epoch] = each.begun
        return epoch, begun

    @property
    def _is_training(self) -> bool:
        """Whether batches are trained on now: gradients are recorded, and it is not inside `world.evaluate()`."""
        return torch.is_grad_enabled() and not self._place.context(DataContext).is_evaluating

    def _given(self, batches: Iterator[Any], this: Pass) -> Iterator[Any]:
        """Yield the batches, counted, until there are no more or time is up."""
        place = self._place
        clock, taken = place.wire.clock, place.context(Consumed)
        pauses, is_first = self._pauses or this.is_round, True
        taken.full_batch = max(taken.full_batch, self.batch_size)
        context = place.context(DataContext)
        limit, early_end = context.limit, context.early_end
        is_over = False
        while True:
            trains = self._is_training
            counts = is_first or not this.is_round  # of rounds, as workers have unequally many batches in one
            counts = counts and this.begins_step
            if (trains and counts) and (
                (early_end is not None and early_end.is_over()) or (limit is not None and limit.is_reached())
            ):
                break
            is_first = False
            if trains:
                if not self._has_met:
                    self._has_met = True
                    self._meets()
                    self._first_begins(this.epoch)
                if self._current is not this:
                    context.record(Epoch(epoch=this.epoch, batches=self._usual_batches))
                self._trained, self._current = True, this
                taken.client_round = this.client_round
                self._left.pop(this.epoch, None)
                for boundary in tuple(context.boundaries) if this.begins_step else ():
                    boundary()
                this.batch_begins()
            elif self._current is None:
                self._due = this.epoch + 1
            this.pause(taken.steps)
            begin = clock.now()
            try:
                batch = next(batches)
            except StopIteration:
                is_over = True
                if trains and limit is not None and not this.is_round:
                    limit.had_none()
                break
            label = None
            if self._labels:
                label, batch = batch
            size = this.give(taken.steps, label)
            taken.full_batch = max(taken.full_batch, size)
            if trains:
                taken.note(clock.now() - begin, size, batch, counts=self.share.is_first(this.newest))
                taken.took_turn(this.turn)
                if self.share.kind == DYNAMIC:
                    taken.dealt = self._dealt(this)
            yield batch
        this.leave()
        if pauses and trains:
            for pause in tuple(context.at_pause):
                pause()
            taken.client_round = None
        if is_over and self._current is this:
            self._current, self._due = None, this.epoch + 1
            self._before = this if self._keeps_past else None

    def lacks_position(self, sentence: str) -> None:
        """Note that it begins where it is, with a sentence about a checkpoint, to say if it is trained on."""
        self._lack = sentence

    def _first_begins(self, epoch: int) -> None:
        if self._lack and not self._starts.lacks_position:
            self._starts.lacks_position = True
            if self._place.wire.rank == 0:
                tell(f"quorate: {self._lack}\n")
        self._starts.begins(self._place, self.dataset, self.share, epoch, self._made_after)

    @property
    def _keeps_past(self) -> bool:
        """Whether positions need the epoch before the current one."""
        return self.share.kind == DYNAMIC


@dataclass(frozen=True)
class FirstPass:
    """The first pass of a loader that was trained on."""

    dataset: Callable[[], object]
    order: tuple[int, bool, int]
    """Its epoch, and what its order follows from: seed and `shuffle`."""
    optimizers: int
    """The number of optimizers that were distributed before it."""


@dataclass
class Starts:
    """The first passes of one worker's loaders, in order."""

    begun: list[FirstPass] = field(default_factory=list)
    lacks_position: bool = False
    """Whether a loader has begun without a position, where a checkpoint has that of another one."""
    _is_said: bool = False

    def begins(self, place: Place, dataset: Any, share: Share, epoch: int, made_after: int) -> None:
        """Note the first pass of a loader that was made after so many others had begun theirs.

        A line says once if one of these had the same epoch of the same data, and no optimizer was distributed since.
        """
        optimizers, order = place.context(Consumed).optimizers, (epoch, share.shuffle, share.seed)
        earlier = (first for first in self.begun[:made_after] if first.order == order)
        is_again = any(first.dataset() is dataset and first.optimizers == optimizers for first in earlier)
        if is_again and share.shuffle and place.wire.rank == 0 and not self._is_said:
            self._is_said = True
            tell(
                f"quorate: quorate.loader was called again for the same data, so this is epoch {epoch} again, in the "
                "same order. Call it once, before the loop, or call set_epoch(epoch) of each loader\n"
            )
        try:
            reference: Callable[[], object] = weakref.ref(dataset)
        except TypeError:  # a list, which cannot be recognized later
            return
        self.begun.append(FirstPass(reference, order, optimizers))


@dataclass
class Loaders:
    """The loaders of one worker, and their positions, to save and to continue from.

    They are identified by number, in the order of their making, which is the same on every worker and in every run of a
    script. They are not kept alive: a loader without references has no position.
    """

    by_number: WeakValueDictionary[int, Loader] = field(default_factory=WeakValueDictionary)
    """From 1."""
    _old: Sequence[dict[str, Any]] = ()
    """Positions of all old workers, from a checkpoint."""
    _entered: dict[str, Any] = field(default_factory=dict)
    """The position of another worker, for a worker that has joined."""

    def positions(self) -> dict[str, Any]:
        """Return `Loader.state_dict()` of each loader, by number; plain JSON values."""
        return {str(number): loader.state_dict() for number, loader in sorted(self.by_number.items())}

    def go_on(self, workers: Sequence[dict[str, Any]]) -> None:
        """Restore every loader: `workers` are the `positions` of all old workers, equal on all new ones. A loader that
        is made later continues when it is made. Raises as `Loader.load_state_dicts`."""
        self._old = list(workers)
        for number, loader in sorted(self.by_number.items()):
            _place_at(loader, number, workers)

    def whereabouts(self, context: DataContext) -> dict[str, Any]:
        """Return the position from which a joining worker begins, as plain JSON values."""
        limit, division = context.limit, context.division
        by_number = {str(number): loader.whereabouts() for number, loader in sorted(self.by_number.items())}
        members = None if division is None else list(division.members)
        return {"loaders": by_number, "taken": 0 if limit is None else limit.taken, "members": members}

    def enter_at(self, about: dict[str, Any], context: DataContext) -> None:
        """Begin where another worker is; a loader that is made later, when it is made."""
        self._entered = about["loaders"]
        for number, loader in sorted(self.by_number.items()):
            if str(number) in about["loaders"]:
                loader.enter_at(about["loaders"][str(number)])
        if context.limit is not None:
            context.limit.enter_at(about["taken"])
        if context.division is not None:
            context.division.enter(about["members"])

    def add(self, number: int, loader: Loader, starts: Starts) -> None:
        """Register a loader, the `number`-th of its worker."""
        self.by_number[number] = loader
        if str(number) in self._entered:
            loader.enter_at(self._entered[str(number)])
        elif not starts.lacks_position:
            _place_at(loader, number, self._old)


def _place_at(loader: Loader, number: int, workers: Sequence[dict[str, Any]]) -> None:
    saved = [worker[str(number)] for worker in workers if str(number) in worker]
    states = list({state.get("rank"): state for state in saved}.values())  # workers that share batches share positions
    if states:
        loader.load_state_dicts(states)
        return
    later = [other for worker in workers for other in worker if int(other) > number and worker[other].get("trained")]
    if later:
        loader.lacks_position(
            f"the checkpoint has no position of this script's loader {number}, but one of its loader {later[0]}, so "
            "the epoch begins from its start. Call quorate.loader once for each dataset, before the loop"
        )
