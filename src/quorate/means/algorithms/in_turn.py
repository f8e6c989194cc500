"""Sums by messages, formed one after the other by a task beside the training thread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import Mismatch, WireTimeout
from quorate.means.algorithms.steps import Step
from quorate.wire.exchange import describe
from quorate.wire.turns import Turns
from quorate.wire.work import Done

T = TypeVar("T")

CHANNEL = "by messages"
"""On which the messages travel, below the channel of the training thread."""
_IDLE_SECONDS = 60.0


class SumsInTurn:
    """All sums of one reducer. The task lives as long as there are any to form, and no message is sent without one.

    `wire` is the training thread's, to which the task says when a sum is there; it raises nothing by itself. After an
    error every sum that is asked for raises it: who has received what is not known any more.
    """

    def __init__(self, wire: Wire, pieces: int, steps: Sequence[Step]) -> None:
        self._wire, self._pieces, self._steps = wire, pieces, steps
        self._others = [rank for rank in range(wire.size) if rank != wire.rank]
        self._turns = Turns(wire, CHANNEL)
        self._started = 0
        self._error: Exception | None = None
        self.waits_for: tuple[int, ...] = ()
        """Whose message the task needs next."""

    def start(self, x: Tensor) -> Work[Tensor]:
        """The sum of all workers' `x`, written into `x`; never waits."""
        if self._wire.size == 1:
            return Done(x)
        number, self._started = self._started, self._started + 1
        one = SumInTurn(self, self._wire, number, x)
        self._turns.add(partial(self._run, one))
        return one

    # -- the task

    def _run(self, one: SumInTurn, wire: Wire) -> None:
        try:
            if self._error is None:
                self._form(wire, one)
        except Exception as error:  # the training thread raises it when it waits
            self._error = error
        one.error = self._error
        self._wire.send(Message(), self._wire.rank, one.tag)

    def _form(self, wire: Wire, one: SumInTurn) -> None:
        x = one.moved.view(-1)
        is_small = x.is_floating_point() and x.element_size() < 4
        own = wire.empty(x.numel(), torch.float32 if is_small else x.dtype).copy_(x)
        held = list(own.tensor_split(self._pieces))
        for number, step in enumerate(self._steps):
            self._take_step(wire, step, f"{one.number}/{number}", held, x.dtype)
        for there, piece in zip(x.tensor_split(self._pieces), held, strict=True):
            there.copy_(piece)

    def _take_step(self, wire: Wire, step: Step, tag: str, held: list[Tensor], dtype: torch.dtype) -> None:
        """Tensors in `held` are replaced, never changed: those that were sent may be looked at by others."""
        receive, send = step.receive, step.send
        asked = None if receive is None else wire.receive(receive.peer, tag, self._others)
        leaves = None
        if send is not None:
            if not send.adds:
                for piece in send.pieces:
                    held[piece] = held[piece].to(dtype)  # complete: rounded once, here
            given = tuple(held[piece] for piece in send.pieces)
            leaves = wire.send(Message(given, shared=True), send.peer, tag)
        if receive is not None and asked is not None:
            _, message = self._patiently(asked, receive.peer)
            mine = [held[piece] for piece in receive.pieces]
            compare(wire.rank, mine if receive.adds else [x.to(dtype) for x in mine], receive.peer, message.tensors)
            for piece, theirs in zip(receive.pieces, message.tensors, strict=True):
                held[piece] = _sum(wire, held[piece], theirs, receive.peer) if receive.adds else theirs
        if send is not None and leaves is not None:
            self._patiently(leaves, send.peer)

    def _patiently(self, work: Work[T], peer: int) -> T:
        """Its result, however long that takes: how long is too long is for the training thread to say."""
        self.waits_for = (peer,)
        while True:
            try:
                return work.wait(_IDLE_SECONDS)
            except WireTimeout:
                continue


class SumInTurn:
    """One sum under way; it is written into `x`, in the thread that waits for it if that is on another device."""

    def __init__(self, sums: SumsInTurn, wire: Wire, number: int, x: Tensor) -> None:
        self._sums, self._wire, self._x = sums, wire, x
        self.number, self.tag = number, f"sum by messages/{number}"
        self._is_elsewhere = x.device.type != "cpu" or not x.is_contiguous()
        self.moved = x.detach().cpu().contiguous() if self._is_elsewhere else x.detach()
        """What the task reads and writes."""
        self.error: Exception | None = None
        self._news = wire.receive(wire.rank, self.tag)
        self._is_taken = False

    def done(self) -> bool:
        return self._is_taken or self._news.done()

    def wait(self, timeout: float | None = None) -> Tensor:
        if not self._is_taken:
            try:
                self._news.wait(timeout)
            except WireTimeout:
                raise self._late(self._wire.timeout if timeout is None else timeout) from None
            if self.error is not None:
                raise self.error
            if self._is_elsewhere:
                self._x.detach().copy_(self.moved)
            self._is_taken = True
        return self._x

    def _late(self, seconds: float) -> WireTimeout:
        late = self._sums.waits_for
        whom = f"rank {late[0]}" if late else "its own task"
        return WireTimeout(f"rank {self._wire.rank} waited {seconds:g} s for {whom} in an all-reduce by messages", late)


def _sum(wire: Wire, mine: Tensor, theirs: Tensor, peer: int) -> Tensor:
    """In order of rank, so that both of a pair that add the same two get the same bits, of NaN as well."""
    first, second = (mine, theirs) if wire.rank < peer else (theirs, mine)
    return torch.add(first, second, out=wire.empty(mine.numel(), mine.dtype))


def compare(rank: int, mine: Sequence[Tensor], peer: int, theirs: Sequence[Tensor]) -> None:
    """Raise `Mismatch` where `peer` sums something else."""
    own, other = (", ".join(map(describe, pieces)) for pieces in (mine, theirs))
    if own != other:
        raise Mismatch.between(
            rank, f"all_reduce by messages, here {own}", peer, f"all_reduce by messages, here {other}"
        )
