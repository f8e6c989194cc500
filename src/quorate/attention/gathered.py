"""Attention to gathered blocks: the blocks of keys of each block of queries are copied side by side, and multiplied.

Blocks of queries are processed in chunks, whose scores fit a processor's cache. No more scores exist at any time, and
none are kept for the backward pass, which calculates them again. A query sees all its keys at once, so that its softmax
is an ordinary one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from quorate.attention.layout import Group, Layout

_SCORES = 2**18
"""Scores in a chunk for each thread."""


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """Pairs of positions that are hidden beside those outside the layout; positions are those of its blocks."""

    keys: Tensor | None = None
    """(B, columns, block) booleans: keys that no query sees."""
    documents: tuple[Tensor, Tensor] | None = None
    """(B, rows, block) and (B, columns, block): queries and keys see each other where the numbers are equal."""
    mask: Tensor | None = None
    """(B, H, rows, block, columns, block): booleans, False where hidden, or numbers that are added to scores."""
    leaves_some: bool = True
    """Whether every query sees at least one key."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments of one attention beside its tensors."""

    layout: Layout
    block: int
    before: int = 0
    """Positions in the first block of queries that precede the first query."""
    scale: float
    hidden: Hidden
    dropout_p: float = 0.0
    seed: int = 0
    """The seed of dropout."""


@dataclass(frozen=True)
class _Chunk:
    """Some blocks of queries, each with the same number W of blocks of keys."""

    group: Group
    queries: Tensor
    """(C,) places in a tensor of (batch * heads * rows, block, size)."""
    keys: Tensor
    """(C * W,) places in a tensor of (batch * key heads * columns, block, size)."""
    batch: Tensor
    heads: Tensor
    entries: Tensor
    """(C,) places in the group."""


class _Pass:
    """One pass, forward or backward, over all chunks of a call."""

    def __init__(self, call: Call, q: Tensor, k: Tensor, scores: int) -> None:
        """`scores`: how many a chunk has at most, if it has several blocks of queries."""
        self.call, self.wide, self._scores = call, torch.promote_types(q.dtype, torch.float32), scores
        self._batch, self._heads, self._key_heads, self._device = q.shape[0], q.shape[1], k.shape[1], q.device
        self._generator = torch.Generator(q.device).manual_seed(call.seed) if call.dropout_p else None
        self._later = q.new_full((call.block, call.block), -torch.inf, dtype=self.wide).triu(1)

    def chunks(self) -> Iterator[_Chunk]:
        """Yield every block of queries that has keys, once, in the same order in each pass."""
        layout = self.call.layout
        repeated = self._heads // layout.heads
        batch = torch.arange(self._batch, device=self._device).view(-1, 1, 1)
        others = torch.arange(repeated, device=self._device).view(1, -1, 1)
        for group in layout.groups:
            shape = self._batch, repeated, group.rows.numel()
            heads = (group.heads + others).expand(shape)
            queries = (batch * self._heads + heads) * layout.rows + group.rows
            key_heads = batch * self._key_heads + heads.div(self._heads // self._key_heads, rounding_mode="floor")
            keys = key_heads.unsqueeze(-1) * layout.columns + group.columns
            entries = torch.arange(shape[-1], device=self._device).expand(shape)
            each = max(1, self._scores // (self.call.block**2 * group.width))
            flat = (x.reshape(-1).split(each) for x in (queries, batch.expand(shape), heads, entries))
            for part, of_keys in zip(zip(*flat, strict=True), keys.reshape(-1, group.width).split(each), strict=True):
                yield _Chunk(group, part[0], of_keys.reshape(-1), *part[1:])

    def gathered(self, blocks: Tensor, places: Tensor, count: int) -> Tensor:
        """Return (`count`, positions, size) of the blocks at `places`, in the dtype of sums."""
        return blocks.index_select(0, places).to(self.wide).view(count, -1, blocks.shape[-1])

    def probabilities(self, chunk: _Chunk, q: Tensor, k: Tensor) -> Tensor:
        """Return the softmax of the scores of (C, block, size) scaled queries and (C, W * block, size) keys."""
        scores = torch.bmm(q, k.mT)
        self._mask(scores.view(*scores.shape[:2], chunk.group.width, self.call.block), chunk)
        probabilities = scores.softmax(-1)
        if not self.call.hidden.leaves_some:
            probabilities = probabilities.masked_fill(scores.amax(-1, keepdim=True) == -torch.inf, 0.0)
        return probabilities

    def _mask(self, scores: Tensor, chunk: _Chunk) -> None:
        """Mask (C, block, W, block) scores in place."""
        layout, hidden, group = self.call.layout, self.call.hidden, chunk.group
        columns = group.columns[chunk.entries]
        if layout.is_causal:
            later = self._later
            if group.on_diagonal is not None:
                later = later.where(group.on_diagonal[chunk.entries].view(-1, 1, 1), 0.0)
            scores[:, :, 0].add_(later)  # faster than masked_fill_
        if group.counts is not None:
            absent = torch.arange(group.width, device=self._device) >= group.counts[chunk.entries].unsqueeze(1)
            scores.masked_fill_(absent.view(-1, 1, group.width, 1), -torch.inf)
        batch = chunk.batch.unsqueeze(1)
        if hidden.keys is not None:
            scores.masked_fill_(hidden.keys[batch, columns].unsqueeze(1), -torch.inf)
        rows = group.rows[chunk.entries]
        if hidden.documents is not None:
            of_queries, of_keys = hidden.documents
            numbers = of_queries[chunk.batch, rows].unsqueeze(2).unsqueeze(3)
            scores.masked_fill_(numbers != of_keys[batch, columns].unsqueeze(1), -torch.inf)
        if hidden.mask is not None:
            mask = hidden.mask[batch, chunk.heads.unsqueeze(1), rows.unsqueeze(1), :, columns].transpose(1, 2)
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, -torch.inf)
            else:
                scores.add_(mask)

    def dropped(self, like: Tensor) -> Tensor | None:
        """Return the factors of dropout, 0 or 1 / (1 - p), of the next chunk; None without dropout."""
        if self._generator is None:
            return None
        keep = 1.0 - self.call.dropout_p
        return torch.empty_like(like).bernoulli_(keep, generator=self._generator).div_(keep)


def _blocks(x: Tensor, call: Call, *, is_query: bool) -> Tensor:
    """Return (..., positions, size) as (number of blocks, block, size), filled with zeros."""
    before, count = (call.before, call.layout.rows) if is_query else (0, call.layout.columns)
    after = count * call.block - before - x.shape[-2]
    filled = F.pad(x, (0, 0, before, after)) if before or after else x.contiguous()
    return filled.view(-1, call.block, x.shape[-1])


def _positions(blocks: Tensor, call: Call, like: Tensor, *, is_query: bool) -> Tensor:
    """The reverse of `_blocks`, in the shape and dtype of `like`, apart from the last dimension."""
    before = call.before if is_query else 0
    every = blocks.view(*like.shape[:-2], -1, blocks.shape[-1])
    return every[..., before : before + like.shape[-2], :].to(like.dtype)


class _Gathered(Function):
    """Queries (B, H, L, D), keys (B, key heads, S, D) and values (B, key heads, S, E)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Calculate one chunk of blocks of queries after the other."""
        scores = _SCORES * torch.get_num_threads()
        run = _Pass(call, q, k, scores)
        queries, keys, values = (_blocks(x, call, is_query=n == 0) for n, x in enumerate((q, k, v)))
        output = q.new_zeros(*queries.shape[:2], v.shape[-1])
        for chunk in run.chunks():
            count = chunk.queries.numel()
            p = run.probabilities(
                chunk,
                run.gathered(queries, chunk.queries, count).mul_(call.scale),
                run.gathered(keys, chunk.keys, count),
            )
            factors = run.dropped(p)
            p = p if factors is None else p.mul_(factors)
            attended = torch.bmm(p, run.gathered(values, chunk.keys, count))
            output.index_copy_(0, chunk.queries, attended.to(output.dtype))
        ctx.save_for_backward(q, k, v)
        ctx.how = call, scores  # the same chunks, for the same draws of dropout
        return _positions(output, call, q, is_query=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Calculate the scores of each chunk again, and add the gradients of its keys and values."""
        q, k, v = ctx.saved_tensors
        call, scores = ctx.how
        run = _Pass(call, q, k, scores)
        queries, keys, values = (_blocks(x, call, is_query=n == 0) for n, x in enumerate((q, k, v)))
        gradients = _blocks(gradient, call, is_query=True)
        of_queries = torch.zeros_like(queries)
        of_keys, of_values = (torch.zeros_like(x, dtype=run.wide) for x in (keys, values))
        for chunk in run.chunks():
            count = chunk.queries.numel()
            scaled = run.gathered(queries, chunk.queries, count).mul_(call.scale)
            key_blocks = run.gathered(keys, chunk.keys, count)
            p = run.probabilities(chunk, scaled, key_blocks)
            factors = run.dropped(p)
            of_output = run.gathered(gradients, chunk.queries, count)
            of_p = torch.bmm(of_output, run.gathered(values, chunk.keys, count).mT)
            kept = p
            if factors is not None:
                of_p.mul_(factors)
                kept = p * factors
            of_values.index_add_(0, chunk.keys, torch.bmm(kept.mT, of_output).view(-1, *values.shape[1:]))
            of_scores = torch.ops.aten._softmax_backward_data(of_p, p, -1, p.dtype)
            of_keys.index_add_(0, chunk.keys, torch.bmm(of_scores.mT, scaled).view(-1, *keys.shape[1:]))
            step = torch.bmm(of_scores, key_blocks).mul_(call.scale)
            of_queries.index_copy_(0, chunk.queries, step.to(of_queries.dtype))
        return (
            _positions(of_queries, call, q, is_query=True),
            _positions(of_keys, call, k, is_query=False),
            _positions(of_values, call, v, is_query=False),
            None,
        )


def gathered_attention(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """Return the attention (B, H, L, E) of queries (B, H, L, D) to keys (B, key heads, S, D) and values.

    Sums are formed in float32 at least. Memory beside the tensors and their gradients: a few MB for each thread. Cost:
    two products of blocks for each pair forward, and five backward.
    """
    attended: Tensor = _Gathered.apply(q, k, v, call)  # type: ignore[no-untyped-call]
    return attended
