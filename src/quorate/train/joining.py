"""The beginning of a replica: equal to rank 0's; on a newcomer, to that of a worker that trains.

Where no step brings all workers together, newcomers enter between two pauses, with the common state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from quorate.checkpoint.frozen import base_digest, base_of, words_on_rates
from quorate.checkpoint.participants import Trained, by_name
from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError, Stopped, WireTimeout
from quorate.core.fields import Fields, Header
from quorate.core.telling import tell
from quorate.means.admission import OpenAdmission, wait_outside
from quorate.means.equal_replicas import copy_optimizer, copy_tensors
from quorate.means.fault_tolerant_sum import FaultTolerantSum
from quorate.replica.optimizer_state import beside
from quorate.rounds.entering import KNOCK_SECONDS, leave_if_over
from quorate.rounds.replay.replayed import ReplayedRounds
from quorate.train.combination import Combination
from quorate.train.compatibility import check
from quorate.train.replica_copy import TooFewOptimizers
from quorate.train.same_call import compare_calls, compare_with_those_joined, gathered_values
from quorate.train.worker import StrategyWorker

_TAG = "entering"
_SEVERAL = "optimizers/several"
"""Written to the board when a second optimizer is distributed: newcomers read it before they enter."""
_TOGETHER = (
    "workers join a training with several distributed optimizers only where all of these are under quorum and its "
    "presets or adaptive, with whole models"
)


def begin(worker: StrategyWorker) -> None:
    """Copy rank 0's parameters, buffers and optimizer state to all workers but newcomers, which get a copy later.

    Raises `ConfigurationError` if workers call `distribute` differently.
    """
    wire, replica = worker.wire, worker.replica
    if wire.is_newcomer:
        return
    compare_calls(worker.call, replica.optimizer, wire)
    equal = _equal_base(worker)
    others = [x for x in beside(replica.model, replica.every) if id(x) not in equal]
    copy_tensors([*replica.every, *others], wire)
    copy_optimizer(replica.optimizer, wire)
    wire.trim()  # memory of the copies


def _equal_base(worker: StrategyWorker) -> set[int]:
    """Return the `id` of each parameter that is not trained, if all workers have the same ones; else nothing."""
    replica = worker.replica
    own = {id(p) for p in replica.every}
    base = {id(x) for x in base_of(replica.model).values()} - own
    if not base or worker.wire.size == 1 or worker.coordinates is not None:
        return set()
    digests = gathered_values(base_digest(replica.model), worker.wire)
    return base if len(set(digests)) == 1 else set()


def connect(worker: StrategyWorker) -> None:
    """Open the connections of sums now: a paused worker answers for several optimizers, and must not block in one."""
    devices = {part.device for part in worker.replica.layout.parts}
    worker.wire.use_device(next((p.device for p in worker.replica.every), torch.device("cpu")))
    if not (worker.has_rounds or worker.wire.is_newcomer):
        for device in sorted(devices, key=str):
            worker.wire.connect(device)


def enter(
    worker: StrategyWorker, training: OpenTraining | None, trained: Trained, others: Sequence[StrategyWorker]
) -> None:
    """Wait, on a newcomer, until it is a member with the replica of the others. Raises as `Rounds.enter`.

    `training` is the common state, where no step brings all workers together; `others` are the workers of optimizers
    that were distributed before. A newcomer enters when it has distributed as many optimizers as the others.
    """
    board = worker.wire.board
    if not worker.wire.is_newcomer:
        if others and worker.wire.rank == 0:
            board.set(_SEVERAL, b"")
        return
    if others and not trained.missing:
        raise ConfigurationError(
            f"this worker has joined with {len(others)} distributed optimizers, as many as the others had then, and "
            "cannot distribute another one. Run the same script, and distribute all optimizers before the first step"
        )
    everyone = sorted([*others, worker], key=lambda each: by_name(each.name))
    if (others or board.get(_SEVERAL) is not None) and not all(map(_joins_beside_others, everyone)):
        raise ConfigurationError(_TOGETHER)
    replica = worker.replica
    table = replica.all_names[len(replica.trained)] if replica.sparse_tables else None
    chosen: dict[str, Any] = {"strategy": worker.strategy, "optimizer": replica.plain, "sparse_table": table}
    check(Combination(label=worker.label, joins=True, **chosen), "joining")
    if training is not None:
        enter_openly(worker, training)
    elif worker.has_rounds:
        _enter_rounds(trained, everyone)
    elif isinstance(worker.means.reducer, FaultTolerantSum):
        _enter_sums(worker)
    members = len(worker.wire.alive)
    if (words := words_on_rates(worker.replica.model, members, members - 1)) is not None:
        tell(f"quorate: {words}\n")


def _joins_beside_others(worker: StrategyWorker) -> bool:
    return worker.has_rounds and not worker.differs and worker.coordinates is None


def _enter_rounds(trained: Trained, workers: Sequence[StrategyWorker]) -> None:
    """Enter the rounds of all optimizers of this worker, in the order of pauses.

    All workers pause together, and the rounds of the first optimizer pause first. As soon as this worker is in these,
    the others cannot pause without it, so that it enters the rounds of all optimizers between the same two pauses.
    Meanwhile it counts as away in those that it has entered, and no worker waits for its steps. If it has not
    distributed all optimizers yet, it enters none and notes which are missing.
    """
    trained.missing, entered = (), list[StrategyWorker]()
    try:
        for worker in workers:
            worker.copies.is_first = worker is workers[0]
            worker.rounds.enter(is_further=worker is not workers[0])
            entered.append(worker)
            if worker is not workers[-1]:
                worker.rounds.goes_away()
        for worker in workers[:-1]:
            worker.rounds.is_back()
    except TooFewOptimizers as error:
        if isinstance(workers[0].rounds.rounds, ReplayedRounds):
            raise ConfigurationError("a run that workers joined with several optimizers cannot be replayed") from None
        trained.missing = error.missing
    except BaseException as error:
        if isinstance(error, Stopped):  # one training is over: the others end without this worker's steps
            for worker in entered:
                worker.rounds.pause(ended=True)
        for worker in workers:
            worker.finished = True
        raise


def _enter_sums(worker: StrategyWorker) -> None:
    """Wait to be admitted by a sum of the others; the first of them sends its replica."""
    wire, clock = worker.wire, worker.wire.clock
    receive = wire.receive(None, _TAG)
    wait_outside(wire.board, wire.name, wire.rank)
    until, senders = clock.now() + wire.timeout, set[int]()
    while True:
        try:
            source, message = receive.wait(KNOCK_SECONDS)
        except WireTimeout:
            if not senders:
                leave_if_over(wire)
            if senders and senders <= wire.dead:
                raise RuntimeError("the workers that admitted this one have died") from None
            if clock.now() > until:
                raise WireTimeout(f"rank {wire.rank} waited {wire.timeout:g} s to join") from None
            continue
        senders.add(source)
        if source == Sender.read(message.header).source:
            break
        receive = wire.receive(None, _TAG)
    wire.board.set(_copied(wire, wire.rank), b"")
    admitted = Admitted.read(message.header)
    worker.copies.adopt(admitted.replica, list(message.tensors))
    worker.means.take_in(admitted.members[wire.size :], admitted.calls)
    worker.strategy.restored(worker, None)
    worker.neighbours.joins(admitted.stands)
    worker.means.headers.has_vectors, worker.means.headers.has_voted = admitted.flags
    wire.enter()


@dataclass(frozen=True, slots=True)
class Sender(Fields):
    """The message to a newcomer that names the worker whose copy it gets."""

    source: int


@dataclass(frozen=True, slots=True)
class Admitted(Fields):
    """The message with the copy of a replica to a newcomer that sums have admitted."""

    source: int
    replica: dict[str, Any]  # open: see `replica_copy`
    calls: int  # of sums so far
    members: Sequence[int]
    stands: Any  # open: see `NeighbourExchange.position`
    flags: Sequence[bool]  # whether headers have vectors, and have voted


def _copied(wire: Wire, rank: int) -> str:
    return f"{wire.name}/copied/{rank}"


def admit(worker: StrategyWorker) -> None:
    """Make the newcomers that sums have admitted members from the next sum on; called after a step."""
    means, admission = worker.means, worker.means.headers.admission
    if not admission.entering or not isinstance(means.reducer, FaultTolerantSum):
        return
    senders, new = admission.living, admission.entering
    if worker.kept is not None:
        worker.kept.division.join(new)
    calls, members = means.take_in(new), sorted(admission.members.everyone)
    flags = [means.headers.has_vectors, means.headers.has_voted]
    about = Admitted(senders[0], {}, calls, members, worker.neighbours.position, flags)
    copies = means.reducer.copies = _CopiesForNewcomers(worker, senders, new, about)
    worker.losses.joined(admission.members.joined, worker.updates + 1)
    copies.begin()


class _CopiesForNewcomers:
    """The copies of a replica for `new` members, which one of the `senders` sends; if it dies, the next one does.

    Nobody has a further sum until the newcomers have their copies. So a later copy is of the same update.
    """

    def __init__(self, worker: StrategyWorker, senders: Sequence[int], new: Sequence[int], about: Admitted) -> None:
        """`about` is the message, without its sender and the copy."""
        self._worker, self._about, self._step = worker, about, worker.step
        self._senders, self._new, self._source = senders, new, senders[0]

    def begin(self) -> None:
        """Send the newcomers the copy, or, on all workers but the first, only the name of the one that sends it."""
        if self._source == self._worker.wire.rank:
            self._send(self._new)
            return
        for rank in self._new:
            self._worker.wire.send(Message((), Sender(self._source).header()), rank, _TAG)

    def look(self) -> None:
        """Send the copy to newcomers that have none, where those that were to send it have died."""
        wire = self._worker.wire
        if not self._new or self._source not in wire.dead:
            return
        living = [rank for rank in self._senders if rank not in wire.dead]
        left = [rank for rank in self._new if rank not in wire.dead and wire.board.get(_copied(wire, rank)) is None]
        if not left:
            self._new = ()
            return
        self._source = living[0]
        if self._source == wire.rank:
            self._send(left)

    def _send(self, ranks: Sequence[int]) -> None:
        worker, step = self._worker, self._worker.step
        worker.step = self._step  # a step that has begun since is the newcomers' next one
        copied, tensors = worker.copies.capture(is_whole=True)
        worker.step = step
        header = replace(self._about, source=self._source, replica=copied).header()
        for rank in ranks:
            worker.wire.send(Message(tuple(tensors), header), rank, _TAG)


@dataclass(frozen=True, slots=True)
class Invited(Fields):
    """The message with the copy of a replica to a newcomer."""

    replica: dict[str, Any]  # open: see `replica_copy`
    era: int
    calls: int  # of sums so far
    training: Mapping[str, Any]  # open: see `OpenTraining.invitation`
    tensors: int  # those of `training`, behind those of the replica

    def header(self) -> dict[str, Any]:
        about = {"calls": self.calls, "training": self.training, "tensors": self.tensors}
        return {"replica": self.replica, "stretch": self.era, **about}

    @classmethod
    def read(cls, header: Header, **others: Any) -> Invited:
        return super(Invited, cls).read(header, era=header["stretch"])


class OpenTraining(Protocol):
    """The common state of one optimizer's workers, which a newcomer has to find: common parameters, or servers."""

    admission: OpenAdmission

    def invitation(self) -> tuple[dict[str, Any], list[Tensor]]:
        """Return the data that a newcomer needs: plain JSON, and tensors."""

    def comes(self, invitation: Mapping[str, Any], leave_if_over: Callable[[], None]) -> None:
        """Note that a newcomer has this data; waits call `leave_if_over`, which raises `Stopped` after the end."""

    def withdraws(self) -> None:
        """Note that it is not admitted, as all pause; it may be invited again."""

    def follow(self, invitation: Mapping[str, Any], tensors: Sequence[Tensor], source: int) -> None:
        """Note that it is admitted with a copy of another replica: its parameters are the common ones."""

    def enters(self) -> None:
        """Note that it is a member, and its strategy knows it."""


def enter_openly(worker: StrategyWorker, training: OpenTraining) -> None:
    """Wait, on a newcomer, for a copy of a replica, and become a member. Raises as `train.joining.enter`."""
    wire = worker.wire
    wait_outside(wire.board, wire.name, wire.rank)
    receive, until = wire.receive(None, _TAG), wire.clock.now() + wire.timeout
    while True:
        leave_if_over(wire)
        try:
            source, message = receive.wait(KNOCK_SECONDS)
        except WireTimeout:
            if wire.clock.now() > until:
                raise WireTimeout(f"rank {wire.rank} waited {wire.timeout:g} s to join") from None
            continue
        invited = Invited.read(message.header)
        compare_with_those_joined(worker.call, invited.replica["whole"]["call"])
        count = len(message.tensors) - invited.tensors
        worker.copies.adopt(invited.replica, list(message.tensors[:count]))  # with the masks, by which servers write
        training.comes(invited.training, partial(leave_if_over, wire))
        joined = training.admission.enter(invited.era)
        if joined is not None:
            break
        training.withdraws()
        receive = wire.receive(None, _TAG)
    training.follow(invited.training, message.tensors[count:], source)
    worker.means.take_in(joined, invited.calls)
    worker.strategy.restored(worker, None)
    training.enters()
    wire.enter()


def admit_openly(worker: StrategyWorker, training: OpenTraining) -> None:
    """Send waiting newcomers their invitations, on the first worker; called after a step."""
    wire, reducer = worker.wire, worker.means.reducer
    if not training.admission.is_possible or not isinstance(reducer, FaultTolerantSum) or worker.means.some_ended:
        return
    if wire.rank != worker.means.headers.admission.living[0]:
        return
    for rank in training.admission.waiting():
        copied, tensors = worker.copies.capture(is_whole=True)
        invitation, more = training.invitation()
        invited = Invited(copied, training.admission.era, reducer.calls, invitation, len(more))
        wire.send(Message((*tensors, *more), invited.header(), shared=True), rank, _TAG)


def close_admission(worker: StrategyWorker, training: OpenTraining) -> None:
    """Close the admission, as this worker pauses or has ended, and take in those that have joined by now."""
    means = worker.means
    if not training.admission.is_possible or not isinstance(means.reducer, FaultTolerantSum):
        return
    if new := set(training.admission.close()) - means.headers.admission.members.joined:
        means.take_in(new)
    worker.losses.joined(means.headers.admission.members.joined, worker.updates + 1)
