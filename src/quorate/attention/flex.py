"""Sparse attention on GPUs, by torch's compiled `flex_attention` (Dong et al. 2024, arXiv 2412.05496)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from quorate.attention.gathered import Hidden
from quorate.attention.pattern import Pattern

_LEAST, _USUAL = 16, 128
"""Positions in the smallest block of flex_attention, and in its tiles."""
_TILES = ("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")

Mod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def takes_flex(query: Tensor, pattern: Pattern, dropout_p: float) -> bool:
    """Whether flex_attention computes this: on a GPU, without dropout, for blocks that tiles fill."""
    block = pattern.block
    fits = block % _USUAL == 0 or (block >= _LEAST and block & (block - 1) == 0)
    return query.device.type == "cuda" and not dropout_p and fits and query.dtype != torch.float64


def flex_attention_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Hidden,
    mask: Tensor,
    block: int,
    *,
    is_causal: bool,
    scale: float,
    compiled: bool = True,
) -> Tensor:
    """Return the attention (B, H, S, E) of queries (B, H, S, D) to the blocks of `mask`, (heads, rows, columns)."""
    blocks = block_mask_of(mask, hidden, block, q, is_causal=is_causal)
    function: Any = _compiled() if compiled else flex_attention
    tiles = {} if block % _USUAL == 0 else {"kernel_options": dict.fromkeys(_TILES, min(block, 64))}
    attended: Tensor = function(
        q,
        k,
        v,
        block_mask=blocks,
        score_mod=bias_of(hidden),
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        **(tiles if compiled else {}),
    )
    return attended


@functools.cache
def _compiled() -> Any:
    return torch.compile(flex_attention)


def block_mask_of(mask: Tensor, hidden: Hidden, block: int, q: Tensor, *, is_causal: bool) -> BlockMask:
    """Return the blocks of `mask` in the form of flex_attention; without hidden keys it is made once per length."""
    if hidden.keys is None and hidden.documents is None and hidden.mask is None:
        return _kept(_Same(mask), block, q.shape[-2], q.device, is_causal)
    return _made(mask, block, q.shape[-2], q.device, _sees(hidden, is_causal=is_causal), is_partial=mask)


class _Same:
    """A tensor that is equal to itself only."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.tensor is other.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


@functools.lru_cache(maxsize=64)
def _kept(mask: _Same, block: int, length: int, device: torch.device, is_causal: bool) -> BlockMask:
    count = mask.tensor.shape[-1]
    on_diagonal = torch.eye(count, dtype=torch.bool) if is_causal else torch.zeros(count, count, dtype=torch.bool)
    sees = _sees(Hidden(), is_causal=is_causal)
    return _made(mask.tensor, block, length, device, sees, is_partial=on_diagonal & mask.tensor)


def _made(mask: Tensor, block: int, length: int, device: torch.device, sees: Mod, *, is_partial: Tensor) -> BlockMask:
    (some, partial), (every, full) = (_table(part, device) for part in (is_partial, mask & ~is_partial))
    return BlockMask.from_kv_blocks(
        some, partial, every, full, BLOCK_SIZE=block, mask_mod=sees, seq_lengths=(length, length)
    )


def _table(mask: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the number of blocks of keys for each block of queries, and a permutation that begins with them."""
    blocks = mask.unsqueeze(0).to(device)
    indices = blocks.to(torch.int8).sort(dim=-1, descending=True, stable=True).indices
    return blocks.sum(-1, dtype=torch.int32), indices.to(torch.int32)


def _sees(hidden: Hidden, *, is_causal: bool) -> Mod:
    """Return whether a query sees a key, for numbers of the batch, the head, the query and the key."""
    keys = None if hidden.keys is None else ~hidden.keys.flatten(1)
    numbers = None if hidden.documents is None else hidden.documents[0].flatten(1)
    pairs = hidden.mask if hidden.mask is not None and hidden.mask.dtype == torch.bool else None
    size = 1 if pairs is None else pairs.shape[-1]

    def sees(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = query >= key if is_causal else query >= 0
        if keys is not None:
            seen = seen & keys[b, key]
        if numbers is not None:
            seen = seen & (numbers[b, query] == numbers[b, key])
        if pairs is not None:
            seen = seen & pairs[b, h, query // size, query % size, key // size, key % size]
        return seen

    return sees


def bias_of(hidden: Hidden) -> Callable[..., Tensor] | None:
    """Return the function that adds a mask of numbers to scores."""
    mask = hidden.mask
    if mask is None or mask.dtype == torch.bool:
        return None
    size = mask.shape[-1]

    def biased(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + mask[b, h, query // size, query % size, key // size, key % size]

    return biased
