"""Rows of images that lie on other workers: which ones a window needs, and how they come and their gradients go back.

Rows are dimension 2. Of `count` rows each of T workers has as many as `Tensor.tensor_split` gives it, whatever layer
they come from, so that results of one height fit each other. Importing this takes torch a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from quorate.core.contracts import Message
from quorate.core.errors import ConfigurationError
from quorate.sharding.tensor.activations import Together

ROWS = 2
_TAG = "rows"


def dealt(count: int, workers: int) -> list[range]:
    """The rows of each worker. Raises `ConfigurationError` where one would have none."""
    if count < workers:
        raise ConfigurationError(
            f"{count} rows of an image cannot be shared by {workers} workers; give larger images, or take fewer "
            "workers along the tensor axis"
        )
    each, more = divmod(count, workers)
    starts = [worker * each + min(worker, more) for worker in range(workers + 1)]
    return [range(begin, end) for begin, end in pairwise(starts)]


@dataclass(frozen=True)
class Window:
    """Which rows a row of the result is made of, as in a convolution or a pooling."""

    kernel: int = 1
    stride: int = 1
    before: int = 0
    """Rows that are added at the top."""
    after: int = 0
    dilation: int = 1
    ceil: bool = False
    """Whether there is a window more where some of it lies inside."""

    def rows(self, count: int) -> int:
        """Of the result."""
        room = count + self.before + self.after - self.dilation * (self.kernel - 1) - 1
        found = room // self.stride + 1
        if self.ceil and room % self.stride and found * self.stride < count + self.before:
            return found + 1
        return found

    def needs(self, rows: range) -> range:
        """The rows that some of the result are made of; those outside of the image are added ones."""
        last = (rows.stop - 1) * self.stride - self.before + self.dilation * (self.kernel - 1)
        return range(rows.start * self.stride - self.before, last + 1)


def with_halos(x: Tensor, count: int, window: Window, together: Together, value: float = 0.0) -> tuple[Tensor, int]:
    """What the windows of this worker's rows of the result look at, and how many rows the result has.

    `x` has its rows of `count`; rows outside of the image are filled with `value`. Cost: the rows that others need of
    it sent forward, and the gradients of those that were needed here sent backward; for a kernel of K rows and a stride
    of 1 it is K - 1 rows between two neighbours.

    Raises `ConfigurationError` where the result has fewer rows than there are workers.
    """
    found = window.rows(count)
    needed = [window.needs(rows) for rows in dealt(found, together.size)]
    inside = [_within(rows, count) for rows in needed]
    have = dealt(count, together.size)
    if any(not _holds(mine, wanted) for mine, wanted in zip(have, inside, strict=True)):
        x = _Fetched.apply(x, together, have, inside)  # type: ignore[no-untyped-call]
    else:
        own, wanted = have[together.rank], inside[together.rank]
        x = x.narrow(ROWS, wanted.start - own.start, len(wanted))
    mine = needed[together.rank]
    above = min(max(0, -mine.start), len(mine))
    below = len(mine) - above - len(inside[together.rank])
    if above or below:
        x = F.pad(x, [0, 0] * (x.dim() - ROWS - 1) + [above, below], value=value)
    return x, found


def _within(rows: range, count: int) -> range:
    begin = min(max(0, rows.start), count)
    return range(begin, max(begin, min(rows.stop, count)))


def _both(one: range, other: range) -> range:
    begin = max(one.start, other.start)
    return range(begin, max(begin, min(one.stop, other.stop)))


def _holds(rows: range, wanted: range) -> bool:
    return len(_both(rows, wanted)) == len(wanted)


def _exchange(together: Together, piece: Callable[[int], Tensor | None], sources: Sequence[int]) -> dict[int, Tensor]:
    """Send each other worker its piece, if it has one; what has come from `sources`, on the CPU."""
    wire, wait = together.wire, together.traffic.wait
    others = [peer for peer in range(together.size) if peer != together.rank]
    outgoing = {peer: x.contiguous() for peer in others if (x := piece(peer)) is not None}
    sends = [wire.send(Message((x,)), peer, _TAG) for peer, x in outgoing.items()]
    receives = {peer: wire.receive(peer, _TAG, [peer]) for peer in sources}
    found = {peer: wait(work, wire.clock)[1].tensors[0] for peer, work in receives.items()}
    for sent in sends:
        wait(sent, wire.clock)
    return found


class _Fetched(Function):
    """The rows that are wanted here, of which others have some."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, together: Together, have: list[range], want: list[range]) -> Tensor:
        """In order of rows."""
        ctx.how, rank, size = (together, have, want), together.rank, together.size
        came = _moved(x.detach(), together, have, want)
        came[rank] = _part(x.detach(), have[rank], want[rank])
        return torch.cat([came[peer] for peer in range(size) if peer in came], ROWS)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Each row's gradients from all who had it, added in order of rank."""
        together, have, want = ctx.how
        rank = together.rank
        came = _moved(gradient, together, want, have)
        came[rank] = _part(gradient, want[rank], have[rank])
        shape = list(gradient.shape)
        shape[ROWS] = len(have[rank])
        found = gradient.new_zeros(shape)
        for peer in sorted(came):
            rows = _both(want[peer], have[rank])
            found.narrow(ROWS, rows.start - have[rank].start, len(rows)).add_(came[peer])
        return found, None, None, None


def _part(x: Tensor, rows: range, wanted: range) -> Tensor:
    """Those of `rows`, which `x` has, that are wanted."""
    both = _both(rows, wanted)
    return x.narrow(ROWS, both.start - rows.start, len(both)) if both else x.narrow(ROWS, 0, 0)


def _moved(x: Tensor, together: Together, from_: list[range], to: list[range]) -> dict[int, Tensor]:
    """From who has rows to who is to have them."""
    rank = together.rank
    others = [peer for peer in range(together.size) if peer != rank]
    sources = [peer for peer in others if _both(from_[peer], to[rank])]
    came = _exchange(
        together, lambda peer: _part(x, from_[rank], to[peer]) if _both(from_[rank], to[peer]) else None, sources
    )
    return {peer: piece.to(x.device) for peer, piece in came.items()}


class _Whole(Function):
    """All rows, which all workers go on with alike."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, together: Together, rows: range) -> Tensor:
        """Joined."""
        ctx.rows = rows
        return together.join(x, ROWS)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The own ones of it."""
        return gradient.narrow(ROWS, ctx.rows.start, len(ctx.rows)), None, None


class _Own(Function):
    """The rows of this worker, of what all have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, together: Together, rows: range) -> Tensor:
        """Cut."""
        ctx.together = together
        return x.narrow(ROWS, rows.start, len(rows)).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Joined."""
        return ctx.together.join(gradient, ROWS), None, None


def whole(x: Tensor, count: int, together: Together) -> Tensor:
    """All rows, of which `x` has those here. Cost: its bytes sent to each of the T - 1 others, nothing backward."""
    found: Tensor = _Whole.apply(x, together, dealt(count, together.size)[together.rank])  # type: ignore[no-untyped-call]
    return found


def own(x: Tensor, together: Together) -> Tensor:
    """The rows of `x` that lie here. Cost: nothing forward; backward as `whole`, where `x` has a gradient."""
    found: Tensor = _Own.apply(x, together, dealt(x.shape[ROWS], together.size)[together.rank])  # type: ignore[no-untyped-call]
    return found
