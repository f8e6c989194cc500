"""Sums by messages, formed one after the other by a task beside the training thread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from quorate.core.contracts import Done, Message, Wire, Work
from quorate.core.errors import Mismatch, WireTimeout
from quorate.means.algorithms.steps import Step
from quorate.wire.exchange import Turns, describe

T = TypeVar("T")

CHANNEL = "by messages"
"""The channel of the messages, below that of the training thread."""
_IDLE_SECONDS = 60.0


class SumsInTurn:
    """All sums of one reducer. The task lives as long as there are sums to form; without it no message is sent.

    `wire` is the training thread's, to which the task reports complete sums; the task raises nothing. After an error
    every sum that is waited for raises it: which messages were received is not known any more.
    """

    def __init__(self, wire: Wire, pieces: int, steps: Sequence[Step]) -> None:
        self._wire, self._pieces, self._steps = wire, pieces, steps
        self._others = [rank for rank in range(wire.size) if rank != wire.rank]
        self._turns = Turns(wire, CHANNEL)
        self._started = 0
        self._error: Exception | None = None
        self.waits_for: tuple[int, ...] = ()
        """The rank whose message the task needs next."""

    def start(self, x: Tensor) -> Work[Tensor]:
        """Return the sum of the `x` of all workers, written into `x`; never waits."""
        if self._wire.size == 1:
            return Done(x)
        number, self._started = self._started, self._started + 1
        sum_ = SumInTurn(self, self._wire, number, x)
        self._turns.add(partial(self._run, sum_))
        return sum_

    # -- the task

    def _run(self, sum_: SumInTurn, wire: Wire) -> None:
        try:
            if self._error is None:
                self._form(wire, sum_)
        except Exception as error:  # the training thread raises it when it waits
            self._error = error
        sum_.error = self._error
        self._wire.send(Message(), self._wire.rank, sum_.tag)

    def _form(self, wire: Wire, sum_: SumInTurn) -> None:
        x = sum_.moved.view(-1)
        is_small = x.is_floating_point() and x.element_size() < 4
        own = wire.empty(x.numel(), torch.float32 if is_small else x.dtype).copy_(x)
        held = list(own.tensor_split(self._pieces))
        for number, step in enumerate(self._steps):
            self._take_step(wire, step, f"{sum_.number}/{number}", held, x.dtype)
        for there, piece in zip(x.tensor_split(self._pieces), held, strict=True):
            there.copy_(piece)

    def _take_step(self, wire: Wire, step: Step, tag: str, held: list[Tensor], dtype: torch.dtype) -> None:
        """Do one step. Tensors in `held` are replaced, never changed: others may read those that were sent."""
        receive, send = step.receive, step.send
        asked = None if receive is None else wire.receive(receive.peer, tag, self._others)
        leaves = None
        if send is not None:
            if not send.adds:
                for piece in send.pieces:
                    held[piece] = held[piece].to(dtype)  # complete: rounded once, here
            sent = tuple(held[piece] for piece in send.pieces)
            leaves = wire.send(Message(sent, shared=True), send.peer, tag)
        if receive is not None and asked is not None:
            _, message = self._patiently(asked, receive.peer)
            own = [held[piece] for piece in receive.pieces]
            compare(wire.rank, own if receive.adds else [x.to(dtype) for x in own], receive.peer, message.tensors)
            for piece, theirs in zip(receive.pieces, message.tensors, strict=True):
                held[piece] = _sum(wire, held[piece], theirs, receive.peer) if receive.adds else theirs
        if send is not None and leaves is not None:
            self._patiently(leaves, send.peer)

    def _patiently(self, work: Work[T], peer: int) -> T:
        """Wait without a limit for the result of `work`: the training thread has the limit."""
        self.waits_for = (peer,)
        while True:
            try:
                return work.wait(_IDLE_SECONDS)
            except WireTimeout:
                continue


class SumInTurn:
    """One sum under way, written into `x`; a tensor on another device is written by the thread that waits."""

    def __init__(self, sums: SumsInTurn, wire: Wire, number: int, x: Tensor) -> None:
        self._sums, self._wire, self._x = sums, wire, x
        self.number, self.tag = number, f"sum by messages/{number}"
        self._is_elsewhere = x.device.type != "cpu" or not x.is_contiguous()
        self.moved = x.detach().cpu().contiguous() if self._is_elsewhere else x.detach()
        """The tensor that the task reads and writes."""
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


def _sum(wire: Wire, own: Tensor, theirs: Tensor, peer: int) -> Tensor:
    """Return the sum in order of rank, so that both workers of a pair get the same bits, also of NaN."""
    first, second = (own, theirs) if wire.rank < peer else (theirs, own)
    return torch.add(first, second, out=wire.empty(own.numel(), own.dtype))


def compare(rank: int, own: Sequence[Tensor], peer: int, theirs: Sequence[Tensor]) -> None:
    """Raise `Mismatch` if `peer` sums other tensors."""
    described, other = (", ".join(map(describe, pieces)) for pieces in (own, theirs))
    if described != other:
        raise Mismatch.between(
            rank, f"all_reduce by messages, here {described}", peer, f"all_reduce by messages, here {other}"
        )
