"""Tokens on their way to experts on other workers, and back; gradients go the same ways in the other direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from quorate.core.contracts import Wire
from quorate.sharding.traffic import Traffic


class Exchange:
    """The workers that share the experts of one model, as one of them sees them."""

    def __init__(self, wire: Wire, traffic: Traffic) -> None:
        self.wire, self.traffic = wire, traffic
        self.rank, self.size = wire.rank, wire.size

    def swap(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """Send each worker its piece; return the pieces received, by rank. Raises as `core.contracts.Work.wait`."""
        return self.traffic.wait(self.wire.all_to_all(pieces), self.wire.clock)

    def counts(self, sent: Tensor) -> Tensor:
        """Return how many tokens each worker sends to each expert here, (S, E / S). `sent` is how many this worker
        sends to each of all E. Cost: E numbers sent."""
        return torch.stack(self.swap(sent.view(self.size, -1).unbind()))

    def rows(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """Send each worker so many rows of `x`; return the rows received, in order of ranks. Differentiable.

        Cost: the rows that go to other workers are sent, in each direction. All workers call it, and go backward
        through it, equally often and in the same order.
        """
        received: Tensor = _Swapped.apply(x, self, counts)  # type: ignore[no-untyped-call]
        return received


class _Swapped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, counts: Sequence[int]) -> Tensor:
        received = exchange.swap([piece.contiguous() for piece in x.detach().split(list(counts))])
        ctx.exchange, ctx.lengths = exchange, [len(piece) for piece in received]
        return torch.cat(received)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gradients = ctx.exchange.swap([piece.contiguous() for piece in gradient.split(ctx.lengths)])
        return torch.cat(gradients), None, None
