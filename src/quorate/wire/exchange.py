"""Collectives made of messages: every worker sends one message to every other, then each combines what it got.

Used for groups in both worlds, and in the real one for the ragged collectives. One phase only, so a collective that
was called is under way, whoever waits first; sums are formed in order of rank, so all workers get the same bits.
Cost per worker: P - 1 messages out; `all_reduce` sends (P - 1) n elements, `reduce_scatter` (P - 1) n / P.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import Mismatch
from quorate.wire.work import Together

T = TypeVar("T")

_SMALL_FLOATS = (torch.bfloat16, torch.float16)


def sum_in_order(tensors: Sequence[Tensor]) -> Tensor:
    """The sum, added in the order given; bf16 and fp16 are added in float32 and rounded once. Shares no memory."""
    first = tensors[0]
    total = first.float() if first.dtype in _SMALL_FLOATS else first.clone()
    for x in tensors[1:]:
        total = total + x if total.dim() == 0 else total.add_(x)
    return total.to(first.dtype)


def describe(x: Tensor) -> str:
    """Shape and dtype in words: `float32 (3, 4)`."""
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"


class Exchange(Wire):
    """A wire whose collectives are made of its own `send` and `receive`."""

    def __init__(self) -> None:
        self._calls = itertools.count()

    def _swap(self, operation: str, outgoing: Sequence[Message], combine: Callable[[list[Message]], T]) -> Work[T]:
        """Send `outgoing[r]` to rank r; `combine` what each rank sent here, by rank.

        All workers' `operation` must be equal (`Mismatch` otherwise, on every worker: each hears from all).
        """
        tag = f"collective/{next(self._calls)}"
        others = [peer for peer in range(self.size) if peer != self.rank]
        sends = [
            self.send(Message(outgoing[peer].tensors, {"operation": operation, **outgoing[peer].header}), peer, tag)
            for peer in others
        ]
        receives = [self.receive(peer, tag) for peer in others]

        def finish(results: list[tuple[int, Message]]) -> T:
            arrived: list[Message] = [outgoing[self.rank]] * self.size
            for peer, message in results[: len(others)]:
                theirs = message.header["operation"]
                if theirs != operation:
                    raise Mismatch(
                        f"workers called different things at the same place: rank {self.rank} {operation}, "
                        f"rank {peer} {theirs}; every worker must call the same collectives in the same order"
                    )
                arrived[peer] = message
            return combine(arrived)

        return Together([*receives, *sends], finish, self.clock)

    def _to_all(self, message: Message) -> list[Message]:
        return [message] * self.size

    def _from_root(self, message: Message, root: int) -> list[Message]:
        """`message` for everyone at the root; elsewhere nothing but a sign of life."""
        return self._to_all(message if self.rank == root else Message())

    def all_reduce(self, x: Tensor) -> Work[Tensor]:
        def combine(messages: list[Message]) -> Tensor:
            return x.copy_(sum_in_order([m.tensors[0] for m in messages]))

        return self._swap(f"all_reduce {describe(x)}", self._to_all(Message((x,))), combine)

    def reduce_scatter(self, x: Tensor) -> Work[Tensor]:
        pieces = x.flatten().tensor_split(self.size)

        def combine(messages: list[Message]) -> Tensor:
            return sum_in_order([m.tensors[0] for m in messages])

        return self._swap(f"reduce_scatter {describe(x)}", [Message((piece,)) for piece in pieces], combine)

    def all_gather(self, x: Tensor) -> Work[list[Tensor]]:
        def combine(messages: list[Message]) -> list[Tensor]:
            return [m.tensors[0] if r != self.rank else x.clone() for r, m in enumerate(messages)]

        return self._swap(f"all_gather {x.dtype}", self._to_all(Message((x,))), combine)

    def all_to_all(self, pieces: Sequence[Tensor]) -> Work[list[Tensor]]:
        _one_each(pieces, self.size)

        def combine(messages: list[Message]) -> list[Tensor]:
            return [m.tensors[0] if r != self.rank else m.tensors[0].clone() for r, m in enumerate(messages)]

        return self._swap(f"all_to_all {pieces[0].dtype}", [Message((piece,)) for piece in pieces], combine)

    def broadcast(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        def combine(messages: list[Message]) -> Tensor:
            return x if self.rank == root else x.copy_(messages[root].tensors[0])

        return self._swap(f"broadcast from {root} {describe(x)}", self._from_root(Message((x,)), root), combine)

    def reduce(self, x: Tensor, root: int = 0) -> Work[Tensor]:
        outgoing = [Message((x,)) if peer == root else Message() for peer in range(self.size)]

        def combine(messages: list[Message]) -> Tensor:
            if self.rank == root:
                x.copy_(sum_in_order([m.tensors[0] for m in messages]))
            return x

        return self._swap(f"reduce to {root} {describe(x)}", outgoing, combine)

    def gather(self, x: Tensor, root: int = 0) -> Work[list[Tensor] | None]:
        outgoing = [Message((x,)) if peer == root else Message() for peer in range(self.size)]

        def combine(messages: list[Message]) -> list[Tensor] | None:
            if self.rank != root:
                return None
            return [m.tensors[0] if r != self.rank else x.clone() for r, m in enumerate(messages)]

        return self._swap(f"gather to {root} {x.dtype}", outgoing, combine)

    def scatter(self, pieces: Sequence[Tensor] | None, root: int = 0) -> Work[Tensor]:
        if self.rank == root:
            assert pieces is not None, "the root of a scatter gives the pieces"
            _one_each(pieces, self.size)
            outgoing = [Message((piece,)) for piece in pieces]
        else:
            outgoing = self._to_all(Message())

        def combine(messages: list[Message]) -> Tensor:
            mine = messages[root].tensors[0]
            return mine.clone() if self.rank == root else mine

        return self._swap(f"scatter from {root}", outgoing, combine)

    def barrier(self) -> Work[None]:
        return self._swap("barrier", self._to_all(Message()), lambda messages: None)


def _one_each(pieces: Sequence[Tensor], size: int) -> None:
    if len(pieces) != size:
        raise ValueError(f"{len(pieces)} pieces for {size} workers; give one for each")
