"""Observers of the steps of one optimizer: replicas, buffers, edits between steps, workers of one replica.

`BufferWatch` checks whether buffers that forward passes read differ between workers. `Edits` detects writes of a script
into parameters between two steps, if these would make replicas differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.optimizer import _global_optimizer_pre_hooks

from quorate.checkpoint.participants import Trained
from quorate.core.device_copies import HostCopy, widest
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local, numbers_in
from quorate.core.strategy import copies_buffers, is_gossip, steps_apart
from quorate.core.telling import tell
from quorate.data.loader import Loaders
from quorate.observe.digests import digest_of
from quorate.observe.ends import Ends, EndWatch
from quorate.observe.step_observer import NEVER, Phase, StepObserver
from quorate.observe.stopping import Stop
from quorate.replica.optimizer_state import clears_gradients
from quorate.replica.plain_step import has_gradient
from quorate.train.loss_counts import LossCounts
from quorate.train.step_weight import StepWeight
from quorate.train.worker import StrategyWorker
from quorate.wire.current import Place


def watches_of(worker: StrategyWorker, place: Place) -> list[StepObserver]:
    """Return the observers of the steps of one optimizer that have something to do under its strategy."""
    watches: list[StepObserver] = [
        EndWatch(place, worker.name, lambda: worker.step),
        OwnGradients(worker),
    ]
    if worker.coordinates is not None:
        watches.append(PieceWatch(worker, place.context(Stop)))
    if worker.digests.compares and not (worker.has_rounds or worker.differs):
        watches.append(ReplicaWatch(worker))
    if worker.digests.compares and worker.has_rounds and not worker.differs:
        watches.append(Edits(worker))
    if not copies_buffers(worker.strategy) and worker.coordinates is None:
        watches.append(BufferWatch(worker))
    if not worker.differs and not worker.is_served and worker.coordinates is None:
        watches.append(TakenGradients(worker))
    if worker.edits.looks:
        watches.append(worker.edits)
    if isinstance(worker.step_weight, StepWeight) and worker.step_weight.varies:
        watches.append(worker.step_weight)
    if worker.has_rounds or worker.differs:
        watches.append(worker.schedules)
    if worker.tolerates_death:
        watches.append(worker.losses)
    return watches


class PieceWatch(StepObserver):
    """Keeps the workers of a replica in pieces together: they forget gathered parameters, and stop alike."""

    phase = Phase.CHECK

    def __init__(self, worker: StrategyWorker, stop: Stop) -> None:
        assert worker.coordinates is not None
        self.optimizer, self._worker, self._traffic = worker.name, worker, worker.coordinates.traffic
        self._stop = stop
        stop.is_agreed = True
        self._traffic.pauses.append(lambda: worker.means.ready.pausing())

    def step_ended(self) -> None:
        self._traffic.forget()
        if steps_apart(self._worker.strategy):
            self._stop.learn(self._worker.means.headers.most_of_pieces(self._stop.mark))


class ReplicaWatch(StepObserver):
    """Compares the replicas at intervals of updates, where all workers step together. Raises as `Digests.look`."""

    phase = Phase.CHECK

    def __init__(self, worker: StrategyWorker) -> None:
        self.optimizer, self._worker = worker.name, worker

    def step_ended(self) -> None:
        worker = self._worker
        worker.digests.look(worker.updates)
        self.due = worker.step + worker.digests.every - worker.updates % worker.digests.every


def leaves_out_own(worker: StrategyWorker) -> bool:
    """Return whether this worker leaves out the update of its step, as its own gradient is not finite.

    The others continue, and its neighbours get their exchange. Called where no exchange brings all workers together.
    Raises `NotFinite` if the policy is "raise": on this worker, and the others end with it.
    """
    finite, replica = worker.finite, worker.replica
    numbers = [None if x is None else numbers_in(x) for x in replica.all_gradients]
    gradients = [x for x in numbers if x is not None]
    if not gradients:
        return False
    is_bad = not finite.sees([x for x in gradients if x.layout == torch.strided])
    if not worker.means.headers.most_of_pieces(float(is_bad)):
        return False
    if is_bad:
        finite.note(replica.all_names, numbers)
    return finite.leaves_out([worker.rank], worker.updates + 1, is_scaled=replica.is_scaled)


@contextmanager
def accumulating(worker: StrategyWorker) -> Iterator[None]:
    """Let backward passes inside only add to `.grad`; for models in pieces, see `Traffic.syncs`."""
    if worker.kept is not None:
        raise ConfigurationError(
            'with batch="kept" each batch of the loader is a micro-batch of a step; say how many by micro_batches=, '
            "and leave out optimizer.accumulate()"
        )
    syncs = () if worker.coordinates is None else worker.coordinates.traffic.syncs
    with worker.means.ready.pausing():
        for sync in syncs:
            sync(False)
        try:
            yield
        finally:
            for sync in syncs:
                sync(True)


@contextmanager
def evaluating(worker: StrategyWorker, has_agreed: Callable[[], bool]) -> Iterator[None]:
    """Exclude backward passes inside from training: they are not exchanged, and add to this worker's `.grad`.

    Raises `ConfigurationError` if they added to a gradient that all workers have agreed on, and not applied yet.
    """
    ready = worker.means.ready
    touched = [*ready.touched, *ready.touched_tables]
    with ready.apart():
        yield
    if has_agreed() and [*ready.touched, *ready.touched_tables] != touched:
        raise ConfigurationError(
            "a backward pass inside world.evaluate() has added this worker's numbers to gradients that all workers "
            "have agreed on and not stepped on. Call world.evaluate() after optimizer.step(), or use "
            "torch.autograd.grad inside it"
        )


def meet_pieces(worker: StrategyWorker, everything: Trained, call: str) -> None:
    """Bring the workers of a replica together before `call`, a pause or the end of training.

    Raises `Mismatch` where they are in the middle of a step, and as `Trained.check_entered`.
    """
    everything.check_entered()
    if worker.replica.host is not None:
        worker.replica.host.catch_up()
    if worker.coordinates is not None:
        worker.coordinates.traffic.forget()
        worker.coordinates.traffic.meet(call)


def note_end(worker: StrategyWorker, place: Place) -> None:
    """Report to the other workers that this one ends the training of an optimizer."""
    had_more = any(loader.is_under_way for loader in place.context(Loaders).by_number.values())
    are_learners = worker.has_rounds and worker.strategy.replicas == "meet"
    needs = None if are_learners else evaluates_with_all(worker)
    place.context(Ends).ended(place, worker.name, worker.step, had_more=had_more, needs_all=needs)


def evaluates_with_all(worker: StrategyWorker) -> bool:
    """Return whether an evaluation needs the workers whose training has ended, which agree on what was lost."""
    return is_gossip(worker.strategy) and worker.tolerates_death


class BufferWatch(StepObserver):
    """Reports once, in one line, that a buffer is not the same on all workers after equally many steps of each.

    The running statistics of batch norm are left out, as no forward pass of training reads them. Nobody waits: each
    worker writes digests to the board, and the last one that writes compares them. Cost, for models with such buffers:
    a sample of each buffer's numbers, and one message to the board. This is in steps 1, 2, 4, 8 and so on, and every
    1,024 from there.
    """

    phase = Phase.CHECK

    def __init__(self, worker: StrategyWorker) -> None:
        self.optimizer, self._worker = worker.name, worker

    def step_ended(self) -> None:
        step, worker = self._worker.step, self._worker
        self.due = min(1 << step.bit_length(), (step // _BUFFERS_EVERY + 1) * _BUFFERS_EVERY)
        if step & (step - 1) and step % _BUFFERS_EVERY:
            return
        if worker.wire.is_newcomer or worker.wire.joined:  # newcomers have made fewer steps
            self.due = NEVER
            return
        worker.buffers.find()
        own = {slot.name: f"{digest_of([x]):x}" for slot in worker.buffers.slots if (x := slot.tensor) is not None}
        if not own:
            return
        wire = worker.wire
        board, key = wire.board, f"buffers/{wire.name}/{step}"
        board.set(f"{key}/{wire.rank}", json.dumps(own).encode())
        if board.add(f"{key}/written") < len(wire.alive):
            return
        written = [board.get(f"{key}/{rank}") for rank in wire.alive]
        board.delete(f"{key}/")
        gathered = [json.loads(digests) for digests in written if digests is not None]
        name = next((name for name in own if any(digests.get(name) != own[name] for digests in gathered)), None)
        if name is not None:
            self.due = NEVER
            if board.add("buffers/told") == 1:
                tell(f"quorate: {self._sentence(name)}\n")

    def _sentence(self, name: str) -> str:
        return (
            f"the buffer {name} is not the same on all workers after {self._worker.step} steps of each, as under "
            f"{self._worker.label} each has its own between pauses. If forward passes read it, let all workers write "
            'the same into it, or use all-reduce with buffers="rank0-each-step", its default'
        )


_TENSORS, _NUMBERS = 32, 64
"""The number of tensors in a sample, and of numbers of each."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers of a size in bytes."""
_BUFFERS_EVERY = 1024
"""Steps between two checks of buffers, once there have been so many."""
_NEAR = 8
"""The largest change of a number that is rounding, in units of the last place of the largest number."""
_BACK = "To move weights and move them back before a step (as SAM does), copy them back from a clone"
_ROUNDED = (
    "the script has moved the parameters after a backward pass and moved them back before step(), with other rounding "
    f"on each worker, so their replicas would diverge. {_BACK}"
)


class Edits(StepObserver):
    """Detects writes into the parameters of a worker that agrees in rounds between two of its steps.

    Workers make their steps at different rounds, so their writes would make replicas differ. Not checked where every
    round waits for all, after a pause of all workers, in strategies whose replicas differ anyway, and with
    `compare_every=0`. Cost: a sample of at most 2,048 numbers, copied and compared in every step.
    """

    phase = Phase.CHECK

    def __init__(self, worker: StrategyWorker) -> None:
        self.optimizer, self._worker = worker.name, worker
        self._sampled = SampledParameters(())
        self._seen: tuple[int, Tensor | bytes] | None = None
        self._first: tuple[int, SampledParameters] | None = None
        """The parameters of the first gradient of a step, with the round, where no step has noted them."""
        self._late: HostCopy | None = None
        """Whether parameters on a GPU had been edited before the newest step."""

    def backward_ended(self) -> None:
        """Note the parameters of the first gradient of a step, where the step before has not noted them."""
        rounds, parameters = self._worker.rounds, self._worker.replica.all_trained
        is_noted = self._seen is not None and self._seen[0] == rounds.version
        if is_noted or self._first is not None or rounds.waits_for_all or not has_gradient(parameters):
            return
        self._first = rounds.version, SampledParameters(parameters)
        self._first[1].note()

    def step_ended(self) -> None:
        rounds, parameters = self._worker.rounds, self._worker.replica.all_trained
        if rounds.waits_for_all:
            return
        if self._sampled.parameters is not parameters:
            self._sampled = SampledParameters(parameters)
        self._seen = rounds.version, self._sampled.numbers()

    def step_begins(self) -> None:
        """Raise `ConfigurationError` if the parameters differ from those after the step before.

        In the first step, and in the first after a pause, raise it if they differ by rounding alone from those of the
        step's first gradient.
        """
        seen, self._seen = self._seen, None
        first, self._first = self._first, None
        worker = self._worker
        if first is not None and first[0] == worker.rounds.version and first[1].are_rounded():
            raise ConfigurationError(_ROUNDED)
        if (
            seen is None
            or seen[0] != worker.rounds.version
            or self._sampled.parameters is not worker.replica.all_trained
        ):
            return
        numbers = self._sampled.numbers()
        before = seen[1]
        if isinstance(numbers, bytes) or isinstance(before, bytes):
            is_edited = numbers != before
        elif numbers.device.type != "cpu":  # which is asked for the answer in the next step
            late, self._late = self._late, HostCopy((before.nan_to_num() != numbers.nan_to_num()).any())
            is_edited = late is not None and bool(late.value())
        else:
            is_edited = not torch.equal(before.nan_to_num(), numbers.nan_to_num())
        if is_edited:
            raise ConfigurationError(
                "the script has written into the parameters between two steps, and under this strategy workers reach "
                "their steps at different rounds, so their replicas would diverge. Write into them in a hook of "
                "optimizer.register_step_post_hook(), which runs after every round on all workers, or on all workers "
                "inside `with world.evaluate():`. " + _BACK
            )


class OwnGradients(StepObserver):
    """Clears this worker's gradients behind a step, where the step or its hooks have cleared those of the update.

    Servers make that step elsewhere: a trial shows whether the optimizer's class clears gradients.
    """

    phase = Phase.CHECK

    def __init__(self, worker: StrategyWorker) -> None:
        self.optimizer, self._replica = worker.name, worker.replica
        plain, groups = worker.replica.plain, worker.replica.optimizer.param_groups
        is_of_others = worker.is_served and not plain.__module__.startswith("torch.optim.")
        self._clears = is_of_others and any(clears_gradients(plain, group) for group in groups)

    def step_ended(self) -> None:
        self._replica.cleared.clear_own()
        for p in self._replica.every if self._clears else ():
            p.grad = None


class TakenGradients(StepObserver):
    """Refuses gradients that one hook takes out of `.grad` in the backward pass, and a hook of steps puts back.

    Workers exchange gradients before hooks of steps run: others would step without it, and this worker on its own.
    Cost: nothing but a list without such hooks.
    """

    phase = Phase.CHECK

    def __init__(self, worker: StrategyWorker) -> None:
        self.optimizer, self._worker = worker.name, worker
        self._is_inside = False
        """Whether the newest step was made inside a backward pass, whose hook may have cleared the gradient since."""

    def backward_ended(self) -> None:
        worker = self._worker
        if worker.agrees_in_backward and not self._is_inside and not worker.means.ready.paused:
            self._check()
        self._is_inside = False

    def step_begins(self) -> None:
        self._is_inside = torch._C._current_graph_task_id() != -1
        if not self._worker.agrees_in_backward and not self._is_inside:
            self._check()

    def step_ended(self) -> None:
        if not self._worker.agrees_in_backward:
            self._worker.means.ready.forget_touched()

    def _check(self) -> None:
        replica, touched = self._worker.replica, self._worker.means.ready.touched
        if not (replica.optimizer._optimizer_step_pre_hooks or _global_optimizer_pre_hooks):
            return
        if isinstance(counts := self._worker.step_weight, LossCounts) and counts.is_empty:
            return
        columns = zip(replica.names, replica.trained, touched, strict=True)
        name = next((name for name, p, is_touched in columns if is_touched and p.grad is None), None)
        if name is not None:
            when = "as the backward pass ends" if self._worker.agrees_in_backward else "as step() is called"
            raise ConfigurationError(
                f"{name}.grad is None {when}, though the backward pass has computed it: {self._worker.label} exchanges "
                "gradients then, and a hook of register_step_pre_hook() that puts it back comes too late. Leave "
                "gradients in .grad until step() has returned, or use local-sgd, whose steps are on the own gradient"
            )


class SampledParameters:
    """Some numbers of parameters: at most 2,048, from at most 32 tensors.

    Cost: 10 µs for plain tensors on the CPU, else one operation.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self._chosen = list(map(local, parameters[:: -(-len(parameters) // _TENSORS)] if parameters else ()))
        self._views: list[Tensor] = []
        self._words: list[Any] | None = None
        """The numbers as integers of numpy, where all are plain tensors on the CPU."""
        self._pointers: list[int] = []
        self._noted = torch.zeros(1)

    def note(self) -> None:
        """Note the numbers as they are now, for `are_rounded`."""
        self._noted = self._values()

    def are_rounded(self) -> bool:
        """Return whether the numbers differ from those that were noted by no more than rounding."""
        unit = max((torch.finfo(p.dtype).eps for p in self._chosen), default=0.0)
        change = float((self._values() - self._noted).abs().max())
        return 0.0 < change <= _NEAR * unit * float(self._noted.abs().max())

    def _values(self) -> Tensor:
        views = [_spread(p) for p in self._chosen if p.is_contiguous()]
        return torch.cat([x.to(views[0].device, widest(views[0].device)) for x in views]) if views else torch.zeros(1)

    def numbers(self) -> Tensor | bytes:
        """Return a copy of the numbers as they are now; their bits where all are plain tensors on the CPU."""
        pointers = [p.data_ptr() for p in self._chosen]
        if pointers != self._pointers:  # the script may let a parameter stand on other memory
            self._pointers, self._views = pointers, [_spread(p) for p in self._chosen if p.is_contiguous()]
            are_plain = all(type(p) in (Parameter, Tensor) and p.is_cpu for p in self._chosen)
            self._words = [x.view(_INTEGERS[x.itemsize]).numpy() for x in self._views] if are_plain else None
        if self._words is not None:
            return b"".join([words.tobytes() for words in self._words])
        views = self._views
        if len({x.dtype for x in views}) > 1 or len({x.device for x in views}) > 1:
            views = [x.to(views[0].device, widest(views[0].device)) for x in views]
        return torch.cat(views) if views else torch.empty(0)


def _spread(p: Tensor) -> Tensor:
    """Return a view of some numbers of a tensor, evenly spaced."""
    numbers = p.detach().view(-1)
    numbers = numbers[:: max(1, -(-p.numel() // _NUMBERS))]
    return torch.view_as_real(numbers).reshape(-1) if numbers.is_complex() else numbers
