"""New layouts for parameters that freeze, thaw or are added while training, on all workers from the same step on.

A worker that changes its trained parameters announces it on the board, so that an error names one that does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Any
from zlib import crc32

import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError, Diverged, ranks_in_words
from quorate.core.fields import Fields
from quorate.core.resize import laws_of
from quorate.core.vectors import digest_of
from quorate.hogwild.common_parameters import CommonParameters
from quorate.means.equal_replicas import copy_tensors
from quorate.replica.forms import forms_in, give_forms
from quorate.replica.replica import Replica
from quorate.train.pieces import check_trained_stage
from quorate.train.same_call import compare_layouts
from quorate.train.survivors import agree_on_buffers
from quorate.train.worker import StrategyWorker
from quorate.wire.survivors import DeathTolerance


@dataclass(frozen=True, slots=True)
class Announcement(Fields):
    """The announcement of a worker that it trains other parameters since its step `step`."""

    rank: int
    step: int
    words: str  # the difference

    def sentence(self, others: str) -> str:
        """Return the error, where `others` do not."""
        return (
            f"rank {self.rank} trains other parameters since its step {self.step} ({self.words}), and {others}; "
            "parameters freeze, thaw and join the optimizer on all workers before the same step"
        )


@dataclass(frozen=True, slots=True)
class LaidOut(Fields):
    """The message of a survivor that has laid out its parameters."""

    layout: str  # its digest


class Relayout:
    """The layouts of one worker; `synchronize` pauses all, and makes every replica the mean."""

    def __init__(
        self,
        worker: StrategyWorker,
        tolerance: DeathTolerance,
        synchronize: Callable[[], None],
        common: CommonParameters | None,
    ) -> None:
        """`common` are the parameters in memory that all workers share."""
        self._worker, self._replica, self._tolerance = worker, worker.replica, tolerance
        self._synchronize, self._common = synchronize, common
        self._changes = LayoutChanges(worker)
        self._announced: str | None = None
        """The place of this worker's announcement, while it waits for all to pause."""
        self.due = 0
        """The step before which `look` is to be called although the same parameters are trained."""

    @property
    def _is_apart(self) -> bool:
        """Whether replicas may differ now, or rounds be under way; otherwise all make each step together."""
        worker = self._worker
        steps_alone = worker.means.ready.is_alone or not worker.agrees_in_backward
        return worker.has_rounds or (worker.differs and steps_alone)

    def all_have_paused(self) -> None:
        """Raise `ConfigurationError` if this worker changes its parameters, and others have paused without a change."""
        if self._announced is not None:
            self._changes.check_all_changed(self._announced)

    def look(self, *, in_backward: bool, is_pause: bool = False) -> None:
        """Lay out the parameters again if others are trained than before, on all workers from the same step on.

        Called as a backward pass begins (`in_backward`), before each step, and before all pause (`is_pause`). If
        replicas may differ, only outside backward passes: all workers pause, and messages under way are applied, so
        that freezing parameters are equal. The strategy keeps its numbers, but its vectors (such as momenta) begin
        again. Cost: a pause of all workers. Raises `ConfigurationError` if other parameters are trained on some workers
        only.
        """
        replica, apart = self._replica, self._is_apart
        if apart == in_backward:
            return
        if replica.is_laid_out:
            if apart:
                if is_pause:
                    self._changes.pause_begins()
                else:
                    self.due = self._changes.step_begins()
            return
        if in_backward and not replica.trains_any:
            return  # a backward pass for another optimizer: these parameters thaw before their own step
        if apart:
            words = _difference(replica.all_names, replica.names_now)
            self._announced = self._changes.announce(digest_of(replica.layout), words)
            with replica.options.with_removed_groups():
                self._synchronize()
        self._lay_out(apart=apart)

    def prune(self, choose: Callable[[], None]) -> None:
        """Pause all workers, let `choose` replace masks of the optimizer, and lay vectors out again.

        In `choose` all replicas are equal, and the masks that it makes are the same on all workers. All workers call
        this after the same step. Raises `ConfigurationError` if some do not, or if masks differ.
        """
        self._announced = self._changes.announce(digest_of(self._replica.layout), "its optimizer is pruned")
        self._synchronize()
        self._compare()  # all have paused; a mask may leave the layout, and so the place of announcements, as it is
        self._changes.changed_alike(self._announced)
        self._announced = None
        choose()
        self._lay_out(apart=True)

    def _lay_out(self, *, apart: bool) -> None:
        worker, replica = self._worker, self._replica
        if worker.coordinates is not None:
            check_trained_stage(worker.coordinates, replica.every)
        old_ids = {id(p) for p in replica.every}
        worker.masked_moments()
        worker.lay_out()
        self._compare()
        self._all_have_changed()
        if apart:
            for p in (p for p in replica.every if not p.requires_grad):
                p.grad = None  # an old gradient, which every round would step on while this worker is paused
        new = [p.detach() for p in replica.every if id(p) not in old_ids]
        if apart and new:  # a newcomer has drawn its own
            agree_on_buffers(new, "rank0", worker.wire, self._tolerance.surviving_replicas)
        self._continue()

    def replace(self, change: Callable[[], bool], words: str) -> None:
        """Pause all workers, make every replica the mean, and call `change`, which may replace parameters by others.

        All workers call it after the same of their steps. `change` leaves equal parameters on all of them, and returns
        whether it has replaced any; `words` say what it does, in an error. The strategy keeps its numbers, but its
        vectors begin again. Raises `ConfigurationError` if a worker pauses or ends without this call.
        """
        worker, replica = self._worker, self._replica
        with replica.in_training():
            self._announced = self._changes.announce(digest_of(replica.layout), words)
            self._synchronize()
            if change():
                self.laid_out()
                self._compare()
            self._compare_bits(words)
            self._all_have_changed()
            worker.edits.note()

    def laid_out(self) -> None:
        """Continue with the parameters that the optimizer has now, on all workers alike; nothing is exchanged."""
        worker = self._worker
        worker.lay_out()
        worker.refresh_call()
        self._continue()
        forms = forms_in(self._replica.model.state_dict())
        key = key_of_forms(worker.name)
        if forms or worker.wire.board.get(key) is not None:  # for newcomers, which build the model as it was at first
            worker.wire.board.set(key, json.dumps(forms).encode())

    def _all_have_changed(self) -> None:
        if self._announced is not None:
            self._changes.changed_alike(self._announced)
            self._announced = None

    def _compare_bits(self, words: str) -> None:
        """Raise `Diverged` if the parameters of workers, which have changed as `words` say, are not equal.

        No worker returns before all have come here, and so have read the announcements.
        """
        wire, group = self._worker.wire, self._tolerance.surviving_replicas
        own = torch.tensor([crc32(self._worker.digests.text())])
        digests = (wire if group is None else group).all_gather(own).wait()
        if len(set(map(int, digests))) > 1:
            raise Diverged(f"the replicas of workers differ after the change of their parameters ({words})")

    def _continue(self) -> None:
        if self._common is not None:
            self._common.take_in()
        if self._worker.state is not None:
            self._start_anew()
        self._worker.edits.note()

    def group_added(self, parameters: Sequence[Parameter]) -> None:
        """Copy rank 0's numbers of a new group to all workers, which have all added it, before they are used."""
        if self._is_apart:
            self.look(in_backward=False)
        elif self._tolerance.surviving_replicas is None:
            copy_tensors(parameters, self._worker.wire)
        else:
            agree_on_buffers(
                [p.detach() for p in parameters], "rank0", self._worker.wire, self._tolerance.surviving_replicas
            )

    def _compare(self) -> None:
        """Raise `ConfigurationError` if workers train different parameters; all have laid them out."""
        layout, wire, group = self._replica.layout, self._worker.wire, self._tolerance.surviving_replicas
        if group is None:
            compare_layouts(layout, wire)
            return
        laid_out = LaidOut(digest_of(layout))
        messages = group.gather(Message(header=laid_out.header()), "layout").wait()
        others = [rank for rank, message in messages.items() if LaidOut.read(message.header) != laid_out]
        if others:
            raise ConfigurationError(
                f"other parameters are trained on rank {wire.rank} than on {ranks_in_words(others)}; parameters "
                "freeze, thaw and are pruned on all workers alike"
            )

    def _start_anew(self) -> None:
        """Call the strategy's `start`, and restore the numbers that it keeps equal on all workers."""
        worker = self._worker
        old, worker.state = worker.state, worker.strategy.start(worker)
        for name, law in (laws_of(old) if is_dataclass(old) else {}).items():
            if law == "same" and _is_plain(value := getattr(old, name)):
                setattr(worker.state, name, value)
        worker.strategy.restored(worker, None)


def key_of_forms(name: str) -> str:
    """Return the key of the board for the forms of the weights of the optimizer `name`: see `replica.forms`."""
    return f"forms/{name}/"


def take_forms(wire: Wire, name: str, model: Module, optimizer: Optimizer) -> None:
    """Give the weights of a newcomer's model the forms that they have on the other workers by now."""
    if wire.is_newcomer and (written := wire.board.get(key_of_forms(name))) is not None:
        give_forms(model, json.loads(written), [optimizer])


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is not None and isinstance(value, bool | int | float | str)


@contextmanager
def without_new_gradients(replicas: Sequence[Replica]) -> Iterator[None]:
    """Hide the gradients of thawed and new parameters inside: until all have paused, they are not stepped on."""
    held = []
    for replica in replicas:
        trained = {id(p) for p in replica.all_trained}
        held += [p for group in replica.optimizer.param_groups for p in group["params"] if id(p) not in trained]
    gradients = [p.grad for p in held]
    for p in held:
        p.grad = None
    yield
    for p, gradient in zip(held, gradients, strict=True):
        p.grad = gradient


_STEPS = 16
"""Steps that a worker may make after another's change before it makes the same, where steps are not in common."""
_LOOKS_EVERY = 4
_LOOKS_UNASKED_EVERY = 16


class LayoutChanges:
    """The announcements of one worker, for strategies in which a change pauses all workers.

    Cost: nothing per step while no worker is paused. While one is, one question to the board in every fourth step.
    Under servers, and rounds to which not all contribute, which do not show pauses, one in every 16th step.
    """

    def __init__(self, worker: StrategyWorker) -> None:
        self._worker = worker
        self._seen_at: int | None = None
        """The step of this worker at which it first saw another one's change."""

    def announce(self, before: str, words: str) -> str:
        """Announce another layout than that of digest `before`, as `words` say; return the prefix of the keys."""
        worker = self._worker
        self._seen_at = None
        prefix = f"{worker.wire.name}/layout/{before}/"
        announcement = Announcement(worker.rank, worker.step, words).to_bytes()
        worker.wire.board.set(f"{prefix}{worker.rank}", announcement)
        worker.wire.board.swap(f"{prefix}first", None, announcement)
        return prefix

    def check_all_changed(self, prefix: str) -> None:
        """Raise `ConfigurationError` if some workers, all of which have paused or ended, have not changed."""
        worker = self._worker
        ranks = worker.wire.alive
        announcements = worker.wire.board.get_all([f"{prefix}{rank}" for rank in ranks])
        others = [rank for rank, text in zip(ranks, announcements, strict=True) if text is None]
        if others:
            own_text = next(text for rank, text in zip(ranks, announcements, strict=True) if rank == worker.rank)
            assert own_text is not None
            words = f"{ranks_in_words(others)} paused or ended without it"
            raise ConfigurationError(Announcement.from_bytes(own_text).sentence(words))

    def changed_alike(self, prefix: str) -> None:
        """Delete the announcements, as all workers have changed alike."""
        board, own = self._worker.wire.board, f"{prefix}{self._worker.rank}"
        first = board.get(f"{prefix}first")
        if first is not None and Announcement.from_bytes(first).rank == self._worker.rank:
            board.delete(f"{prefix}first")
        board.delete(own)

    def step_begins(self) -> int:
        """Look for changes of other workers, and return the step at which to call this again.

        Raises `ConfigurationError` if another worker has changed its layout, and this one continues without.
        """
        worker = self._worker
        if self._seen_at is None and not self._looks():
            return self._next_look
        announced = self._first()
        if announced is None:
            self._seen_at = None
            return self._next_look
        if self._seen_at is None:
            self._seen_at = worker.step
        allowed = 0 if self._in_lockstep else _STEPS
        if worker.step > announced.step + allowed and worker.step >= self._seen_at + allowed:
            raise ConfigurationError(announced.sentence(f"rank {worker.rank} is at its step {worker.step} without it"))
        return worker.step + 1

    @property
    def _next_look(self) -> int:
        worker = self._worker
        if self._in_lockstep:
            return worker.step + 1
        every = _LOOKS_UNASKED_EVERY if worker.has_rounds or worker.is_served else _LOOKS_EVERY
        return (worker.step // every + 1) * every

    def pause_begins(self) -> None:
        """Raise `ConfigurationError` if another worker has changed its layout, and this one pauses without."""
        announced = self._first()
        if announced is not None:
            worker = self._worker
            others = f"rank {worker.rank} pauses or ends after its step {worker.step} without it"
            raise ConfigurationError(announced.sentence(others))

    def _first(self) -> Announcement | None:
        worker = self._worker
        text = worker.wire.board.get(f"{worker.wire.name}/layout/{digest_of(worker.replica.layout)}/first")
        announced = None if text is None else Announcement.from_bytes(text)
        return None if announced is None or announced.rank in worker.wire.dead else announced

    @property
    def _in_lockstep(self) -> bool:
        return self._worker.has_rounds and not self._worker.differs and self._worker.rounds.waits_for_all

    def _looks(self) -> bool:
        worker = self._worker
        if worker.has_rounds:
            contributors = worker.rounds.contributors
            if contributors >= worker.wire.size or contributors >= len(worker.wire.alive):
                return False
            return self._in_lockstep or worker.step % _LOOKS_UNASKED_EVERY == 0
        if worker.is_served:
            return worker.step % _LOOKS_UNASKED_EVERY == 0
        return worker.step % _LOOKS_EVERY == 0 and (worker.means.some_away or worker.neighbours.some_paused)


def _difference(before: Sequence[str], now: Sequence[str]) -> str:
    removed, new = [x for x in before if x not in set(now)], [x for x in now if x not in set(before)]
    parts = [f"{_some(removed)} no longer trained"] * bool(removed) + [f"{_some(new)} trained now"] * bool(new)
    return ", and ".join(parts) or "the same names, with other tensors or another dtype or device"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
