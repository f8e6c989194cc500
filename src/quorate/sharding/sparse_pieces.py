"""Sparse attention to a sequence in pieces on several workers: each receives the blocks of keys that its queries need.

All workers know the pattern and the lengths of pieces, so that nothing is asked for. In one all-to-all each sends every
other worker the keys and values that it needs. Their gradients return by the reverse all-to-all.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from quorate.attention.gathered import Call, Hidden, gathered_attention
from quorate.attention.layout import Layout, layout_of, widths_of
from quorate.attention.pattern import Blocks, Pattern, block_mask, lengths_of
from quorate.attention.sparse import HEADS, NO_DOCUMENT, POSITIONS, document_numbers, seed_of_dropout
from quorate.core.errors import ConfigurationError
from quorate.sharding.tensor.activations import Together


@dataclass(frozen=True)
class _Plan:
    """The positions that workers exchange, and the attention of this one; a table has all blocks of keys it needs."""

    layout: Layout
    columns: Tensor
    """(M,) numbers of the blocks in the table."""
    first_row: int
    """Number of the block of the first query."""
    before: int
    """Positions in that block before the first query."""
    sends: tuple[Tensor, ...]
    """For each worker the positions of this one's piece that it needs."""
    places: tuple[Tensor, ...]
    """For each worker the places in the table of what it sends."""


@functools.lru_cache(maxsize=64)
def _plan_of(
    pattern: Pattern,
    lengths: tuple[int, ...],
    rank: int,
    is_causal: bool,
    layer: int,
    heads: int,
    documents: tuple[int, ...],
    device: torch.device,
) -> _Plan:
    size, starts = pattern.block, list(itertools.accumulate(lengths, initial=0))
    mask = block_mask(Blocks(pattern, -(-starts[-1] // size), is_causal, layer, heads=heads, documents=documents))
    first, last = starts[rank] // size, -(-starts[rank + 1] // size)
    own = _needed(mask, starts, rank, size, is_causal=is_causal)
    columns = mask[:, first:last].any(0).any(0).nonzero().squeeze(1)
    places = torch.full((mask.shape[-1],), -1)
    places[columns] = torch.arange(len(columns))
    positions = own.nonzero().squeeze(1)
    in_table = places[positions // size] * size + positions % size
    sends = (
        _needed(mask, starts, peer, size, is_causal=is_causal)[starts[rank] : starts[rank + 1]].nonzero().squeeze(1)
        for peer in range(len(lengths))
    )
    return _Plan(
        layout=layout_of(
            mask[:, first:last][:, :, columns],
            device=device,
            diagonal=places[first:last] if is_causal else None,
            widths=widths_of(mask),
        ),
        columns=columns.to(device),
        first_row=first,
        before=starts[rank] - first * size,
        sends=tuple(positions.to(device) for positions in sends),
        places=tuple(
            in_table[(positions >= begin) & (positions < end)].to(device) for begin, end in itertools.pairwise(starts)
        ),
    )


def _needed(mask: Tensor, starts: Sequence[int], rank: int, size: int, *, is_causal: bool) -> Tensor:
    """Return whether the queries of worker `rank` need each position of the sequence."""
    rows = mask[:, starts[rank] // size : -(-starts[rank + 1] // size)]
    needed = rows.any(0).any(0).repeat_interleave(size)[: starts[-1]]
    if is_causal:
        needed[starts[rank + 1] :] = False
    return needed


class _Fetched(Function):
    """The table (..., M * block, size) of a worker, from the pieces (..., positions, size) of all."""

    @staticmethod
    def forward(ctx: Any, piece: Tensor, plan: _Plan, together: Together, block: int) -> Tensor:
        """Send each worker the positions that it needs."""
        ctx.how, ctx.shape = (plan, together), piece.shape
        received = _exchanged(piece, plan.sends, plan.places, together)
        table = piece.new_zeros(*piece.shape[:-2], plan.layout.columns * block, piece.shape[-1])
        for places, numbers in zip(plan.places, received, strict=True):
            table.index_copy_(-2, places, numbers)
        return table

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return gradients to the workers whose positions they are of, which add them by rank."""
        plan, together = ctx.how
        received = _exchanged(gradient, plan.places, plan.sends, together)
        total = gradient.new_zeros(ctx.shape, dtype=torch.promote_types(gradient.dtype, torch.float32))
        for positions, numbers in zip(plan.sends, received, strict=True):
            total.index_add_(-2, positions, numbers.to(total.dtype))
        return total.to(gradient.dtype), None, None, None


def _exchanged(x: Tensor, sends: Sequence[Tensor], receives: Sequence[Tensor], together: Together) -> list[Tensor]:
    pieces = [x.detach().index_select(-2, positions) for positions in sends]
    shapes = [(*x.shape[:-2], positions.numel(), x.shape[-1]) for positions in receives]
    return together.traffic.wait(together.wire.all_to_all(pieces, shapes=shapes), together.wire.clock)


def attention_of_pieces(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    together: Together,
    pattern: Pattern,
    attn_mask: Tensor | None,
    dropout_p: float,
    *,
    is_causal: bool,
    scale: float,
    documents: Tensor | Sequence[int] | None,
    layer: int,
) -> Tensor:
    """Return the attention of the queries here; `attn_mask` (of padding) and `documents` are of the full sequence.

    Raises `ConfigurationError` for a mask that is not of padding.

    Cost: each worker sends the keys and values that others need, once forward, and as many gradients backward. It holds
    those that its own queries need from the forward to the backward pass.
    """
    lengths = tuple(together.values_of_all("attention to blocks of other workers", query.shape[POSITIONS]))
    heads, size, length = query.shape[HEADS], pattern.block, sum(lengths)
    count, lead = -(-length // size), query.shape[:HEADS]
    numbers = document_numbers(documents, lead, length, query.device)
    plan = _plan_of(pattern, lengths, together.rank, is_causal, layer, heads, lengths_of(documents), query.device)
    table: Tensor = _Fetched.apply(torch.cat([key, value], -1), plan, together, size)  # type: ignore[no-untyped-call]
    q, keys_and_values = (x.reshape(-1, *x.shape[HEADS:]) for x in (query, table))
    k, v = keys_and_values.split([key.shape[-1], value.shape[-1]], -1)
    keys = _hidden_keys(attn_mask, lead, length, count * size, query.device, is_causal=is_causal)
    pairs = None
    if numbers is not None:
        blocks = (
            F.pad(numbers, (0, count * size - length), value=NO_DOCUMENT).expand(len(q), -1).unflatten(-1, (-1, size))
        )
        pairs = blocks[:, plan.first_row : plan.first_row + plan.layout.rows], blocks[:, plan.columns]
    call = Call(
        layout=plan.layout,
        block=size,
        before=plan.before,
        scale=scale,
        hidden=Hidden(
            keys=None if keys is None else keys.unflatten(-1, (-1, size))[:, plan.columns],
            documents=pairs,
            leaves_some=attn_mask is None and documents is None,
        ),
        dropout_p=dropout_p,
        seed=seed_of_dropout(dropout_p),
    )
    return gathered_attention(q, k, v, call).view(*query.shape[:-1], value.shape[-1])


def _hidden_keys(
    attn_mask: Tensor | None, lead: torch.Size, length: int, whole: int, device: torch.device, *, is_causal: bool
) -> Tensor | None:
    """Return (B, whole) whether a key is hidden from all queries; None where no key is."""
    if attn_mask is None:
        hidden = torch.arange(whole, device=device) >= length
        return None if is_causal or whole == length else hidden.expand(lead.numel(), -1)
    shape = (*[1] * (len(lead) + 3 - attn_mask.dim()), *attn_mask.shape)
    if attn_mask.dtype != torch.bool or len(shape) != len(lead) + 3 or shape[HEADS:] != (1, 1, length):
        raise ConfigurationError(
            f'by="ring" supports masks of padding with a pattern, booleans of (batch, 1, 1, {length}), not '
            f'{attn_mask.dtype} of {tuple(attn_mask.shape)}; by="heads" supports others'
        )
    seen = attn_mask.view(shape).expand(*lead, 1, 1, length).reshape(-1, length)
    return F.pad(~seen, (0, whole - length), value=True)
