"""Tensors that the stages of one pipeline give each other, between workers.

Between GPUs torch's collectives carry them, and messages only say whether there are gradients: shapes are those of the
route. All workers of a pipeline launch their sends and receives in the order of one clock, by which each pass takes
equally long: that in which tensors are made. So a receive is under way before its tensor is needed, and no two GPUs
wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import Mismatch
from quorate.core.fields import Fields
from quorate.sharding.stages.batches import MicroBatch
from quorate.sharding.stages.clock import ends_of
from quorate.sharding.stages.orders import FORWARD, INPUT, Layout, Order
from quorate.sharding.stages.route import Route, Transfer
from quorate.sharding.traffic import Traffic


@dataclass(frozen=True, slots=True)
class PassFields(Fields):
    """The message with a tensor from one stage to another."""

    learns: bool  # whether a gradient comes back
    is_there: bool  # backward: whether there is a gradient


@dataclass(frozen=True, slots=True)
class OutputFields(Fields):
    """The message with the outputs of the model."""

    learns: Sequence[bool]
    likes: Sequence[tuple[Sequence[int], str]]  # the shape and the dtype of each


class Move(NamedTuple):
    """A transfer of one micro-batch; `way` is "f" (forward) or "b" (backward)."""

    way: str
    transfer: int
    microbatch: int


class Moves:
    """The moves of one run from and to this worker, in the order in which all workers launch theirs."""

    def __init__(self, run: Run, layout: Layout, order: Order, wire: Wire, device: torch.device) -> None:
        self._run, self._layout, self._wire, self._device = run, layout, wire, device
        ends = ends_of(order)
        every = []
        for number, route in enumerate(run.routes):
            for place, transfer in enumerate(route.transfers):
                if wire.rank not in (peers := [layout.owner(transfer.source), layout.owner(transfer.target)]):
                    continue
                if peers[0] != peers[1]:
                    every.append((ends[FORWARD, transfer.source, number], Move("f", place, number)))
                    if run.learns:
                        every.append((ends[INPUT, transfer.target, number], Move("b", place, number)))
        self._order = [move for _, move in sorted(every)]
        self._place = {move: place for place, move in enumerate(self._order)}
        self._next = self._until = 0
        self._ready: dict[Move, Tensor] = {}
        self._arriving: dict[Move, Work[list[Tensor]]] = {}
        self.learns: dict[tuple[int, int], bool] = {}
        """Whether a gradient comes back, for transfers and micro-batches."""

    def give(self, move: Move, x: Tensor | None) -> None:
        """Launch a send, or zeros where there is no gradient, and all moves before it."""
        transfer = self._transfer(move)
        if x is not None and (x.shape, x.dtype) != (transfer.shape, transfer.dtype):
            raise Mismatch(
                f"stage {transfer.source} made a tensor of the shape {tuple(x.shape)} and {x.dtype} for stage "
                f"{transfer.target}, and one of {tuple(transfer.shape)} and {transfer.dtype} was expected"
            )
        self._ready[move] = self._blank(transfer).zero_() if x is None else x.detach().contiguous()
        self._launch(move)

    def take(self, move: Move) -> Work[list[Tensor]]:
        """Return a receive under way."""
        self._launch(move)
        return self._arriving.pop(move)

    def _transfer(self, move: Move) -> Transfer:
        return self._run.routes[move.microbatch].transfers[move.transfer]

    def _blank(self, transfer: Transfer) -> Tensor:
        return torch.empty(transfer.shape, dtype=transfer.dtype, device=self._device)

    def _launch(self, last: Move) -> None:
        """Launch the moves up to `last`, and sends that are ready behind it. A send that is not ready holds up all."""
        self._until = max(self._until, self._place[last] + 1)
        while self._next < len(self._order):
            move = self._order[self._next]
            transfer = self._transfer(move)
            ends = (transfer.source, transfer.target) if move.way == "f" else (transfer.target, transfer.source)
            source, target = map(self._layout.owner, ends)
            is_asked = move.way == "f" or self.learns.get((move.transfer, move.microbatch), False)
            tag = f"{move.way}{move.transfer}.{move.microbatch}"
            if is_asked and source == self._wire.rank:
                if move not in self._ready:
                    return
                self._run.sends.append(self._wire.exchange([(target, self._ready.pop(move))], [], tag))
            elif self._next >= self._until:
                return
            elif is_asked:
                self._arriving[move] = self._wire.exchange([], [(source, self._blank(transfer))], tag)
            self._next += 1


@dataclass
class Kept:
    """Tensors of one micro-batch in one stage, from its forward pass until its backward pass."""

    inputs: dict[int, Tensor] = field(default_factory=dict)
    """Inputs by transfer."""
    sent: dict[int, Tensor] = field(default_factory=dict)
    ends: list[Tensor] = field(default_factory=list)
    """In the last stage: tensors from which the backward pass begins."""
    groups: Any = None
    """Between the two halves of a backward pass: the parameter groups of the second half."""


@dataclass
class Run:
    """One step, or one call, of the model."""

    batches: list[MicroBatch]
    routes: list[Route]
    learns: bool
    kept: dict[tuple[int, int], Kept] = field(default_factory=dict)
    handed: dict[tuple[str, int, int], Tensor | None] = field(default_factory=dict)
    """Tensors from one stage of this worker to its next."""
    sends: list[Work[Any]] = field(default_factory=list)
    moves: Moves | None = None
    """The moves of this run, if torch's collectives carry tensors between stages."""
    outputs: dict[int, Any] = field(default_factory=dict)
    """Outputs of the last stage, by micro-batch."""


class Between:
    """The workers of one pipeline, as one of them sees them; `way` is "f" (forward) or "b" (backward)."""

    def __init__(self, layout: Layout, wire: Wire, traffic: Traffic, device: torch.device) -> None:
        self._layout, self._wire, self._traffic, self._device = layout, wire, traffic, device
        begin = torch.zeros(1, device=device)
        self.is_carried = wire.carries(begin)
        """Whether tensors travel from device to device."""
        if self.is_carried:  # torch wants all workers in the first collective of a group
            wire.all_reduce(begin).wait()

    def begin(self, run: Run, order: Order) -> None:
        """Begin a run whose passes are in this order."""
        if self.is_carried:
            run.moves = Moves(run, self._layout, order, self._wire, self._device)

    def give(self, run: Run, way: str, transfer: int, number: int, stage: int, x: Tensor | None) -> None:
        """Send another stage a tensor, or (backward) nothing, where it has no gradient."""
        to = self._layout.owner(stage)
        if to == self._wire.rank:
            run.handed[way, transfer, number] = x
            return
        learns = run.learns and x is not None and x.requires_grad
        header, tag = PassFields(learns, x is not None).header(), f"{way}{transfer}.{number}"
        is_message = run.moves is None and x is not None
        tensors = (x.detach().cpu().contiguous(),) if is_message and x is not None else ()
        run.sends.append(self._wire.send(Message(tensors, header), to, tag))
        if run.moves is not None:
            if way == "f":
                run.moves.learns[transfer, number] = learns
            run.moves.give(Move(way, transfer, number), x)

    def take(self, run: Run, way: str, transfer: int, number: int, stage: int) -> Tensor | None:
        """Receive a tensor from another stage; it requires gradients where it does there."""
        source = self._layout.owner(stage)
        if source == self._wire.rank:
            x = run.handed.pop((way, transfer, number))
            return None if x is None else x.detach().requires_grad_(x.requires_grad and way == "f")
        tensors: list[Tensor] = []
        if run.moves is not None:
            under_way = run.moves.take(Move(way, transfer, number))
        _, message = self._traffic.wait_along(self._wire.receive(source, f"{way}{transfer}.{number}"), self._wire.clock)
        sent = PassFields.read(message.header)
        learns = sent.learns and way == "f"
        if run.moves is not None:
            tensors = self._traffic.wait_along(under_way, self._wire.clock)
            if way == "f":
                run.moves.learns[transfer, number] = learns
        if not sent.is_there:
            return None
        x = (tensors or message.tensors)[0]
        return x.requires_grad_() if learns else x

    def give_outputs(self, run: Run, outputs: list[Tensor], learns: list[bool]) -> None:
        """Send all other workers the outputs of the model."""
        others = [peer for peer in range(self._wire.size) if peer != self._wire.rank]
        likes = [(list(x.shape), str(x.dtype).removeprefix("torch.")) for x in outputs]
        header = OutputFields(learns, likes).header()
        tensors = () if self.is_carried else tuple(x.cpu().contiguous() for x in outputs)
        run.sends += [self._wire.send(Message(tensors, header), to, "out") for to in others]
        if self.is_carried:
            run.sends.append(self._wire.exchange([(to, x) for to in others for x in outputs], [], "out"))

    def take_outputs(self, root: int) -> tuple[list[Tensor], list[bool]]:
        """Return the outputs of the model that worker `root` has, and whether each has gradients."""
        _, message = self._traffic.wait_along(self._wire.receive(root, "out"), self._wire.clock)
        sent = OutputFields.read(message.header)
        learns = list(sent.learns)
        if not self.is_carried:
            return [x.to(self._device, copy=True) for x in message.tensors], learns
        blanks = [
            (root, torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)) for shape, dtype in sent.likes
        ]
        return self._traffic.wait_along(self._wire.exchange([], blanks, "out"), self._wire.clock), learns

    def pause(self, run: Run) -> None:
        """Wait until the sends have completed."""
        for work in run.sends:
            self._traffic.wait_along(work, self._wire.clock)
        run.sends.clear()
