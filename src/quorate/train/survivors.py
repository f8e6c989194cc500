"""Continuing after deaths, from the time on when every worker has called `distribute`; beside rounds and sums."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.core.contracts import Message, Wire
from quorate.core.fields import Fields
from quorate.core.local_tensor import local
from quorate.core.strategy import Strategy
from quorate.core.telling import tell
from quorate.means.equal_replicas import agree_on, can_be_averaged, widened
from quorate.means.equal_replicas import level as level_all
from quorate.means.fault_tolerant_sum import FaultTolerantSum
from quorate.means.forward_buffers import ForwardBuffers
from quorate.means.means import MeansOfAll
from quorate.replica.optimizer_state import optimizer_from_plain, optimizer_to_plain, write_back
from quorate.rounds.entering import say_over
from quorate.sharding.mesh import Coordinates
from quorate.wire import failure
from quorate.wire.exchange import sum_in_order
from quorate.wire.survivors import DeathTolerance, Survivors

Kind = Literal["none", "mean", "rank0"]
"""How buffers become equal."""
_TAG = "gone"
"""Nobody reads its messages: this worker reads `Wire.dead`."""


@dataclass(frozen=True, slots=True)
class Updates(Fields):
    """The message of a worker whose replica has made so many updates."""

    updates: int


def tolerate_deaths(
    wire: Wire, tolerance: DeathTolerance, name: str, strategy: Strategy, coordinates: Coordinates | None = None
) -> None:
    """Prepare for deaths, and errors in a script, as `strategy` says, now that optimizer `name` is distributed.

    Workers continue only if the strategies of all optimizers do. `coordinates` are this worker's where replicas are in
    pieces.
    """
    wanted, errors = strategy.on_death == "continue", strategy.on_error == "continue"
    failure.note_training(wire.board, wire.rank, is_under_way=True)
    failure.allow_going_on_after_errors(wire.board, wanted=wanted and errors)
    if wanted and not tolerance.is_refused:
        tolerance.survivors = tolerance.survivors or Survivors(wire.channel("survivors"))
        if coordinates is not None:
            tolerance.between = tolerance.between or Survivors(coordinates.across.channel("survivors"))
            tolerance.replica = frozenset(coordinates.replica_ranks)
        wire.tolerate_deaths(_TAG)
        if not wire.is_newcomer:
            failure.allow_going_on(wire.board, wire.size, name=name)
            failure.wait_for_all_to_say(wire.board, wire.rank, wire.size, wire.timeout)
    elif wire.size > 1:
        tolerance.survivors, tolerance.between, tolerance.is_refused = None, None, True
        failure.forbid_going_on(wire.board)
    tolerance.tell_launcher()  # it judges a death by what it knows then


def agree_on_buffers(buffers: Sequence[Tensor], kind: Kind, wire: Wire, group: Survivors | None) -> None:
    """Make buffers equal as `means.equal_replicas.agree_on`, among survivors; rank 0's are the first one's."""
    if group is None:
        agree_on(buffers, kind, wire)
        return
    if kind == "none" or not buffers:
        return
    dtypes = sorted({x.dtype for x in buffers}, key=str)
    with torch.no_grad():
        for dtype in dtypes:
            own = [x.detach() for x in buffers if x.dtype == dtype]
            whole = torch.cat([x.reshape(-1) for x in own])
            gathered = group.all_gather(whole).wait()
            is_mean = kind == "mean" and can_be_averaged(dtype)
            write_back(own, sum_in_order(list(map(widened, gathered))) / len(gathered) if is_mean else gathered[0])


def agree_on_buffers_of(
    buffers: ForwardBuffers, wire: Wire, group: Survivors | None, *, kind: Kind, row: Wire | None
) -> None:
    """Make the buffers of a model equal as `agree_on_buffers`; `row` connects the workers of its pieces, if any."""
    if row is not None:
        every = list(buffers.model.buffers())
        agree_on_buffers(every, kind, wire, group)
        agree_on(every, kind, row)
    elif kind != "none":
        agree_on_buffers(_buffers_alike(buffers, wire, group), kind, wire, group)


def _buffers_alike(buffers: ForwardBuffers, wire: Wire, group: Survivors | None) -> list[Tensor]:
    """Return the buffers of a model that have the same shape and dtype on all workers.

    Others stay each worker's own, such as caches as long as the longest sequence. One line on stderr names the first of
    them that is a part of the model's state. Cost: an exchange of names and shapes, for models with buffers that
    forward passes read.
    """
    if not buffers.are_there:
        return list(buffers.model.buffers())
    buffers.find()
    own = {slot.name: f"{x.dtype} {tuple(x.shape)}" for slot in buffers.slots if (x := slot.tensor) is not None}
    carried = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
    gathered = (wire if group is None else group).all_gather(carried).wait()
    of_workers = [json.loads(bytes(x.tolist())) for x in gathered]
    names = {name for shapes in of_workers for name in shapes}
    differ = {name for name in names if len({shapes.get(name) for shapes in of_workers}) > 1}
    kept = next((slot.name for slot in buffers.slots if slot.is_persistent and slot.name in differ), None)
    if kept is not None and wire.board.add("buffers/shapes") == 1:
        tell(
            f"quorate: the buffer {kept} has another shape on other workers, so each keeps its own where buffers "
            "become equal; register a cache with persistent=False\n"
        )
    return [x for name, x in buffers.model.named_buffers() if name not in differ]


def level(
    tensors: Sequence[Tensor],
    optimizer: Optimizer,
    wire: Wire,
    updates: int,
    group: Survivors | None,
    *,
    always: bool = False,
) -> int:
    """Level replicas as `means.equal_replicas.level`, among survivors."""
    if group is None:
        return level_all(tensors, optimizer, wire, updates, always=always)
    while True:
        answers = group.gather(Message(header=Updates(updates).header()), "updates").wait()
        counts = {rank: Updates.read(answer.header).updates for rank, answer in answers.items()}
        most = max(counts.values())
        if not always and len(set(counts.values())) == 1:
            return most
        ahead = next(rank for rank, count in counts.items() if count == most)
        own = Message()
        if ahead == wire.rank:
            about, state = optimizer_to_plain(optimizer)
            own = Message((*(local(x).detach().clone() for x in tensors), *(x.clone() for x in state)), about)
        message = group.gather(own, "replica").wait().get(ahead)
        if message is None:
            continue  # the worker has died meanwhile
        if ahead != wire.rank:
            with torch.no_grad():
                for x, numbers in zip(tensors, message.tensors, strict=False):
                    local(x).copy_(numbers)
            kept = [x.clone() for x in message.tensors[len(tensors) :]]  # other workers may have the same memory
            optimizer_from_plain(optimizer, dict(message.header), kept)
        return most


def synchronize(means: MeansOfAll, left: Survivors | None) -> None:
    """Include newcomers in what workers call together from here on, as all have paused or ended."""
    reducer, members = means.reducer, means.headers.admission.members.everyone
    if left is not None and isinstance(reducer, FaultTolerantSum) and left.members != members:
        left.among(members, reducer.calls)
    if means.all_ended:
        say_over(means.wire)
