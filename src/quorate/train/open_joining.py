"""Workers that join where no step brings all together: between two rests, with what the others are all at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from quorate.core.contracts import Message
from quorate.core.errors import WireTimeout
from quorate.means.admission import wait_outside
from quorate.means.fault_tolerant_sum import FaultTolerantSum
from quorate.means.open_admission import OpenAdmission
from quorate.rounds.entering import KNOCK_SECONDS, leave_if_over
from quorate.train.same_call import compare_with_those_joined
from quorate.train.worker import StrategyWorker

_TAG = "entering"


class OpenTraining(Protocol):
    """What all workers of one optimizer are at, which one that joins has to find: parameters in common, or servers."""

    admission: OpenAdmission

    def invitation(self) -> tuple[dict[str, Any], list[Tensor]]:
        """What one that joins has to know: plain JSON, and tensors."""

    def comes(self, told: Mapping[str, Any], leave_if_over: Callable[[], None]) -> None:
        """This worker has that, and is about to be let in. What waits here calls `leave_if_over` now and then, which
        raises `Stopped` where the training has ended meanwhile."""

    def withdraws(self) -> None:
        """It is not let in, as all rest; it may be told again."""

    def follow(self, told: Mapping[str, Any], tensors: Sequence[Tensor], source: int) -> None:
        """It is let in, and has a copy of another worker's replica: its parameters are those of all from now on."""

    def enters(self) -> None:
        """It is one of those that train; its strategy has been told."""


def enter_openly(worker: StrategyWorker, training: OpenTraining) -> None:
    """Of one that joins: wait for a copy of a replica, and be one of those that train; its parameters are theirs.

    Raises as `train.joining.enter`.
    """
    wire, reducer = worker.wire, worker.means.reducer
    assert isinstance(reducer, FaultTolerantSum)
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
        header = dict(message.header)
        compare_with_those_joined(worker.call, header["replica"]["whole"]["call"])
        training.comes(header["training"], partial(leave_if_over, wire))
        joined = training.admission.enter(header["stretch"])
        if joined is not None:
            break
        training.withdraws()
        receive = wire.receive(None, _TAG)
    count = len(message.tensors) - header["tensors"]
    worker.copies.adopt(header["replica"], list(message.tensors[:count]))
    training.follow(header["training"], message.tensors[count:], source)
    worker.means.headers.admission.members.update(joined)
    reducer.take_in(worker.means.headers.admission.members, header["calls"])
    worker.strategy.restored(worker, None)
    training.enters()
    wire.enter()


def admit_openly(worker: StrategyWorker, training: OpenTraining) -> None:
    """A step has ended: the first worker gives those that wait to join what they need for it."""
    members, wire, reducer = worker.means.headers.admission.members, worker.wire, worker.means.reducer
    if not training.admission.is_possible or not isinstance(reducer, FaultTolerantSum) or worker.means.some_ended:
        return
    if wire.rank != min(members - wire.dead):
        return
    for rank in training.admission.waiting():
        copied, tensors = worker.copies.capture(is_whole=True)
        told, more = training.invitation()
        header: dict[str, Any] = {"replica": copied, "stretch": training.admission.stretch, "calls": reducer.calls}
        header |= {"training": told, "tensors": len(more)}
        wire.send(Message((*tensors, *more), header, shared=True), rank, _TAG)


def close_admission(worker: StrategyWorker, training: OpenTraining) -> None:
    """This worker rests, or has ended: who has joined by now takes part, and nobody else until all go on."""
    known, reducer = worker.means.headers.admission.members, worker.means.reducer
    if not training.admission.is_possible or not isinstance(reducer, FaultTolerantSum):
        return
    new = set(training.admission.close()) - known
    if new:
        known.update(new)
        reducer.take_in(known)
    worker.losses.joined([rank for rank in known if rank >= worker.size], worker.updates + 1)
