"""Ring attention over a sequence in pieces: keys and values circulate, queries stay on their worker.

Liu et al. 2023, arXiv 2310.01889, section 3: a worker calculates with the keys and values of one piece while those of
the next are on their way. The softmax is formed piece by piece (Milakov and Gimelshein 2018, arXiv 1805.02867,
algorithm 3). The backward pass recalculates it from its logarithm, and the gradients of keys and values circulate with
them. Importing this module imports torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from quorate.core.contracts import Message
from quorate.sharding.tensor.activations import Together

_TAG = "ring"


class _Round:
    """Tensors that go from each worker to the next, one step at a time."""

    def __init__(self, together: Together) -> None:
        self._together, self._wire = together, together.wire
        self._after, self._before = (together.rank + 1) % together.size, (together.rank - 1) % together.size

    def start(self, tensors: Sequence[Tensor]) -> Any:
        """Send `tensors` to the next worker; return the handle that `end` takes."""
        wire = self._wire
        sent = wire.send(Message(tuple(x.contiguous() for x in tensors)), self._after, _TAG)
        return sent, wire.receive(self._before, _TAG, [self._before]), tensors[0].device

    def end(self, under_way: Any) -> tuple[Tensor, ...]:
        """Return the tensors that the preceding worker has sent."""
        sent, received, device = under_way
        wait, clock = self._together.traffic.wait, self._wire.clock
        _, message = wait(received, clock)
        wait(sent, clock)
        return tuple(x.to(device) for x in message.tensors)


def _scores(q: Tensor, k: Tensor, scale: float, places: tuple[int, int] | None) -> Tensor | None:
    """Return the scores of queries and the keys of one piece; None where all keys lie after all queries. `places` are
    the first positions of both, for a causal mask."""
    if places is None:
        return q @ k.mT * scale
    first, other = places
    if other > first + q.shape[-2] - 1:
        return None
    scores = q @ k.mT * scale
    if other + k.shape[-2] - 1 <= first:
        return scores
    rows = torch.arange(first, first + q.shape[-2], device=q.device).unsqueeze(1)
    keys = torch.arange(other, other + k.shape[-2], device=q.device)
    return scores.masked_fill(keys > rows, -torch.inf)


class _Ring(Function):
    """Queries (..., key heads, group, positions, size); keys and values (..., key heads, 1, positions, size)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, together: Together, scale: float, starts: list[int] | None
    ) -> Tensor:
        """Start with the local piece, so that every query has seen a key; then take those of the preceding workers."""
        rank, size, turn = together.rank, together.size, _Round(together)
        most: Any = None
        total: Any = None
        output: Any = None
        block: tuple[Tensor, ...] = (k.detach(), v.detach())
        for step in range(size):
            under_way = turn.start(block) if step < size - 1 else None
            keys, values = block
            owner = (rank - step) % size
            scores = _scores(q, keys, scale, None if starts is None else (starts[rank], starts[owner]))
            if scores is not None and most is None:
                most = scores.amax(-1, keepdim=True)
                p = (scores - most).exp()
                total, output = p.sum(-1, keepdim=True), p @ values
            elif scores is not None:
                more = torch.maximum(most, scores.amax(-1, keepdim=True))
                p, less = (scores - more).exp(), (most - more).exp()
                total, output, most = total * less + p.sum(-1, keepdim=True), output * less + p @ values, more
            if under_way is not None:
                block = turn.end(under_way)
        output = output / total
        ctx.save_for_backward(q, k, v, output, most + total.log())
        ctx.how = together, scale, starts
        result: Tensor = output
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Sum the gradients of keys and values as they circulate; the last step brings them back to their worker."""
        q, k, v, output, log_total = ctx.saved_tensors
        together, scale, starts = ctx.how
        rank, size, turn = together.rank, together.size, _Round(together)
        of_q, both = torch.zeros_like(q), (gradient * output).sum(-1, keepdim=True)
        block: tuple[Tensor, ...] = (k, v)
        sums: tuple[Tensor, ...] = (torch.zeros_like(k), torch.zeros_like(v))
        for step in range(size):
            under_way = turn.start(block) if step < size - 1 else None
            keys, values = block
            owner = (rank - step) % size
            scores = _scores(q, keys, scale, None if starts is None else (starts[rank], starts[owner]))
            if scores is not None:
                p = (scores - log_total).exp()
                of_scores = p * (gradient @ values.mT - both) * scale
                of_q += of_scores @ keys
                of_keys = (of_scores.mT @ q).sum(-3, keepdim=True)
                sums = sums[0] + of_keys, sums[1] + (p.mT @ gradient).sum(-3, keepdim=True)
            if under_way is not None:
                block = turn.end(under_way)
            sums = turn.end(turn.start(sums))
        return of_q, *sums, None, None, None


def ring_attention(q: Tensor, k: Tensor, v: Tensor, together: Together, *, is_causal: bool, scale: float) -> Tensor:
    """Attention of the queries here to all keys; sums are formed in float32 at least. Without masks and dropout."""
    starts = None
    if is_causal:
        lengths = together.traffic.wait(together.wire.all_gather(torch.tensor([q.shape[-2]])), together.wire.clock)
        starts = list(itertools.accumulate((int(n) for n in lengths), initial=0))
    wide = torch.promote_types(q.dtype, torch.float32)
    groups = q.unflatten(-3, (k.shape[-3], -1)).to(wide)
    keys, values = (x.unsqueeze(-3).to(wide) for x in (k, v))
    output: Tensor = _Ring.apply(groups, keys, values, together, scale, starts)  # type: ignore[no-untyped-call]
    return output.flatten(-4, -3).to(q.dtype)
