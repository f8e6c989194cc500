"""Newcomers where no step brings all workers together: they enter between two pauses, with the common state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from quorate.core.contracts import Message
from quorate.core.errors import WireTimeout
from quorate.core.fields import Fields, Header
from quorate.means.admission import wait_outside
from quorate.means.fault_tolerant_sum import FaultTolerantSum
from quorate.means.open_admission import OpenAdmission
from quorate.rounds.entering import KNOCK_SECONDS, leave_if_over
from quorate.train.same_call import compare_with_those_joined
from quorate.train.worker import StrategyWorker

_TAG = "entering"


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
