"""Parameters that all workers have in common: how a training begins with them, and what a pause of all is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from quorate.agreement.admission import wait_outside
from quorate.agreement.common_parameters import CommonParameters, check_shareable
from quorate.core.contracts import Message
from quorate.core.errors import ConfigurationError, WireTimeout
from quorate.membership.same_call import compare_with_those_joined
from quorate.reducers.fault_tolerant_sum import FaultTolerantSum
from quorate.rounds.entering import KNOCK_SECONDS, leave_if_over
from quorate.train.worker import StrategyWorker

_TAG = "entering"


class _Training(Protocol):
    """One optimizer's training, as far as its parameters may be in common."""

    common: CommonParameters | None
    worker: StrategyWorker


def common_of(worker: StrategyWorker, label: str, others: Iterable[_Training]) -> CommonParameters | None:
    """Those of a worker that begins; None where each has its own. Raises as `check_shareable`, and for parameters that
    are a part of those of `others`."""
    if worker.strategy.replicas != "shared":
        return None
    replica = worker.replica
    check_shareable(replica, worker.wire, label)
    if any(other.common is not None and other.common.has_any(replica.every) for other in others):
        raise ConfigurationError(
            f"two optimizers under {label} have parameters that look at the same numbers; give each its own"
        )
    return CommonParameters(replica, worker.wire, lambda: worker.means.headers.admission.members)


def enter_in_common(worker: StrategyWorker, common: CommonParameters) -> None:
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
        joined = common.admission.enter(header["stretch"])
        if joined is not None:
            break
        receive = wire.receive(None, _TAG)
    count = len(message.tensors) - header["common tensors"]
    worker.copies.adopt(header["replica"], list(message.tensors[:count]))
    common.follow(header["common"], message.tensors[count:], source)
    common.rests = header["rests"]
    worker.means.headers.admission.members.update(joined)
    reducer.take_in(worker.means.headers.admission.members, header["calls"])
    worker.strategy.restored(worker, None)
    wire.enter()


def admit_in_common(worker: StrategyWorker, common: CommonParameters) -> None:
    """A step has ended: the first worker gives those that wait to join what they need for it."""
    members, wire, reducer = worker.means.headers.admission.members, worker.wire, worker.means.reducer
    if not common.admission.is_possible or not isinstance(reducer, FaultTolerantSum) or worker.means.some_ended:
        return
    if wire.rank != min(members - wire.dead):
        return
    for rank in common.admission.waiting():
        copied, tensors = worker.copies.capture(is_whole=True)
        where, memory = common.invitation()
        header: dict[str, Any] = {"replica": copied, "stretch": common.admission.stretch, "calls": reducer.calls}
        header |= {"rests": common.rests, "common": where, "common tensors": len(memory)}
        wire.send(Message((*tensors, *memory), header, shared=True), rank, _TAG)


def close_admission(worker: StrategyWorker, common: CommonParameters) -> None:
    """This worker rests, or has ended: who has joined by now takes part, and nobody else until all go on."""
    known, reducer = worker.means.headers.admission.members, worker.means.reducer
    if not common.admission.is_possible or not isinstance(reducer, FaultTolerantSum):
        return
    new = set(common.admission.close()) - known
    if new:
        known.update(new)
        reducer.take_in(known)
    worker.losses.joined([rank for rank in known if rank >= worker.size], worker.updates + 1)


@contextmanager
def apart(trainings: Iterable[_Training]) -> Iterator[None]:
    """Inside, as all rest, parameters that are in common are this worker's own, as they were when all rested.

    What is written into them inside, the same on all workers, stays.
    """
    found = [one.common for one in trainings if one.common is not None and not one.worker.finished]
    for common in found:
        common.stand_apart()
    try:
        yield
    finally:
        for common in found:
            common.come_back()
