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
    """The workers among whom the experts of one model are, seen from one of them."""

    def __init__(self, wire: Wire, traffic: Traffic) -> None:
        self.wire, self.traffic = wire, traffic
        self.rank, self.size = wire.rank, wire.size

    def swap(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """Give each worker its piece; what each has given here, by rank. Raises as `core.contracts.Work.wait`."""
        return self.traffic.wait(self.wire.all_to_all(pieces), self.wire.clock)

    def counts(self, given: Tensor) -> Tensor:
        """How many tokens each worker gives to each expert here, (S, E / S); `given` is how many this one gives to
        each of all E. Cost: E numbers sent."""
        return torch.stack(self.swap(given.view(self.size, -1).unbind()))

    def rows(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """So many rows of `x` to each worker; what came, in order of ranks. Once more backward.

        Cost: the rows that go to other workers sent, in each direction. All workers call it, and go backward
        through it, equally often and in the same order.
        """
        found: Tensor = _Swapped.apply(x, self, counts)  # type: ignore[no-untyped-call]
        return found


class _Swapped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, counts: Sequence[int]) -> Tensor:
        """What came."""
        came = exchange.swap([piece.contiguous() for piece in x.detach().split(list(counts))])
        ctx.exchange, ctx.came = exchange, [len(piece) for piece in came]
        return torch.cat(came)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """To where it came from."""
        found = ctx.exchange.swap([piece.contiguous() for piece in gradient.split(ctx.came)])
        return torch.cat(found), None, None
