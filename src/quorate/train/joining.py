"""How a replica begins: as rank 0's is; of a worker that joins, as one of those that train are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module

from quorate.agreement.admission import wait_outside
from quorate.agreement.equal_replicas import beside, copy_optimizer, copy_tensors
from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError, WireTimeout, ranks_in_words
from quorate.membership.replica_copy import adopt, capture
from quorate.membership.same_call import compare_calls, compare_layouts
from quorate.membership.survivors import survivors
from quorate.reducers.outliving import Outliving
from quorate.rounds.entering import KNOCK_SECONDS, leave_if_over, say_over
from quorate.wire.current import Place

if TYPE_CHECKING:
    from quorate.core.vectors import Layout
    from quorate.train.worker import OptimizerWorker

_TAG = "entering"


def compare(worker: OptimizerWorker) -> None:
    """Raise `ConfigurationError` where the workers do not call `distribute` alike; one that joins finds out with its
    copy."""
    if not worker.wire.is_newcomer:
        compare_calls(worker.call, worker.wire)


def compare_anew(layout: Layout, wire: Wire, place: Place) -> None:
    """The same of those that train by now, when other parameters are trained than before; all have laid them out."""
    there = survivors(place)
    if there is None:
        compare_layouts(layout, wire)
        return
    found = there.gather(Message(header={"layout": layout.digest}), "layout").wait()
    others = [rank for rank, one in found.items() if one.header["layout"] != layout.digest]
    if others:
        raise ConfigurationError(
            f"other parameters are trained on rank {wire.rank} than on {ranks_in_words(others)}; parameters freeze and "
            "thaw on all workers alike"
        )


def begin(worker: OptimizerWorker, model: Module) -> None:
    """Every worker gets rank 0's parameters, buffers and optimizer state, unless it joins."""
    if not worker.wire.is_newcomer:
        copy_tensors([*worker.every, *beside(model, worker.every)], worker.wire)
        copy_optimizer(worker.optimizer, worker.wire)


def enter(worker: OptimizerWorker, model: Module, place: Place) -> None:
    """One that joins returns when it is one of those that train, with their replica. Raises as `Rounds.enter`."""
    if not worker.wire.is_newcomer:
        return
    if worker.everyone():
        raise ConfigurationError("workers join trainings with one distributed optimizer; this script has several")
    if not (worker.strategy.lets_join and worker.safeguards.outlives):
        raise ConfigurationError(
            "workers join where the others go on without the dead: under quorum and its presets, adaptive, all kinds "
            'of local steps (without overlap), and all-reduce with on_death="continue"; under others all begin together'
        )
    if worker.has_rounds:
        worker.rounds.enter()
    elif isinstance(worker.peers.reducer, Outliving):
        _enter_sums(worker, worker.peers.reducer, model, place)


def _enter_sums(worker: OptimizerWorker, reducer: Outliving, model: Module, place: Place) -> None:
    """Wait to be let in by a sum of the others; the first of them sends its replica."""
    wire, clock = worker.wire, worker.clock
    receive = wire.receive(None, _TAG)
    wait_outside(wire.board, wire.name, wire.rank)
    until, sources = clock.now() + wire.timeout, set[int]()
    while True:
        try:
            source, message = receive.wait(KNOCK_SECONDS)
        except WireTimeout:
            if not sources:
                leave_if_over(wire)
            if sources and sources <= wire.gone:
                raise RuntimeError("the worker that was to send its replica has died") from None
            if clock.now() > until:
                raise WireTimeout(f"rank {wire.rank} waited {wire.timeout:g} s to join") from None
            continue
        says = dict(message.header)
        sources.add(int(says["source"]))
        if source == says["source"]:
            break
        receive = wire.receive(None, _TAG)
    adopt(worker, model, place, says["replica"], list(message.tensors))
    worker.peers.admission.members = set(says["members"])
    worker.strategy.restored(worker, None)
    worker.neighbours.joins(says["stands"])
    reducer.take_in(says["members"], says["calls"])
    worker.peers.has_vectors, worker.peers.has_voted = says["flags"]
    wire.come()


def connect(worker: OptimizerWorker) -> None:
    """Make the connections that its sums need now: one that rests answers for several optimizers, and must not be held
    by one of them."""
    if not (worker.has_rounds or worker.wire.is_newcomer):
        for kind in sorted({part.device.type for part in worker.peers.layout.parts}):
            worker.wire.connect(torch.device(kind))


def admit(worker: OptimizerWorker, model: Module, place: Place) -> None:
    """A step has ended: those that its sums have let in are members from the next sum on."""
    peers, wire = worker.peers, worker.wire
    if not peers.admission.entering or not isinstance(peers.reducer, Outliving):
        return
    source = min(peers.admission.members - wire.gone)
    new = peers.admission.take_in()
    calls = peers.reducer.take_in(peers.admission.members)
    says: dict[str, Any] = {"source": source}
    tensors: Sequence[Tensor] = ()
    if source == wire.rank:
        about, tensors = capture(worker, model, place)
        says |= {
            "replica": about,
            "members": sorted(peers.admission.members),
            "calls": calls,
            "stands": worker.neighbours.stands,
            "flags": [peers.has_vectors, peers.has_voted],
        }
    worker.losses.joined([rank for rank in peers.admission.members if rank >= wire.size], worker.timer.rounds + 1)
    for rank in new:
        wire.send(Message(tuple(tensors), says), rank, _TAG)


def met(worker: OptimizerWorker, place: Place) -> None:
    """All have come to a rest, or to their ends: what workers call together, newcomers call as well from here on."""
    admission, left = worker.peers.admission, survivors(place)
    reducer = worker.peers.reducer
    if left is not None and isinstance(reducer, Outliving) and left.members != admission.members:
        left.among(admission.members, reducer.calls)
    if worker.peers.all_ended:
        say_over(worker.wire)
