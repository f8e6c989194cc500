"""`sparse_attention`: attention that computes only the blocks of a pattern. Importing this module imports torch."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quorate.attention.flex import flex_attention_of, takes_flex
from quorate.attention.gathered import Call, Hidden, gathered_attention
from quorate.attention.layout import Layout, layout_of
from quorate.attention.names import RANK_OF_HEADS
from quorate.attention.pattern import AnyPattern, Blocks, Pattern, block_mask, lengths_of, pattern_of
from quorate.core.errors import ConfigurationError

HEADS, POSITIONS = -3, -2
NO_DOCUMENT = torch.iinfo(torch.int64).min


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: AnyPattern,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    documents: Tensor | Sequence[int] | None = None,
    layer: int = 0,
) -> Tensor:
    """Compute `torch.nn.functional.scaled_dot_product_attention` for the blocks of keys of a pattern only.

    The result and its gradients are those of dense attention with the mask `quorate.attention.pattern_mask(...)`. A
    query that sees no key gets zeros. Sums are formed in float32 at least. Where all blocks are in the pattern, torch's
    function is called.

    Args:
        query: A tensor of (..., heads, positions, head size), in any floating-point dtype.
        key, value: Tensors of (..., heads, positions, head size), of the same positions.
        pattern: An object of `quorate.attention`, or a name with settings, such as "window:width=5,block=32". A
            function is called with the number of a head, those of blocks of queries (n, 1) and those of blocks of keys
            (n), and returns booleans (n, n).
        attn_mask: A mask that broadcasts to (..., heads, positions, positions): booleans, False where hidden, or
            numbers that are added to scores. A mask of padding is (batch, 1, 1, positions). Together with `is_causal`
            both count.
        dropout_p: The probability of dropout.
        is_causal: Whether a position attends to itself and earlier positions only.
        scale: The factor of the scores; None: 1 / sqrt(head size).
        enable_gqa: Whether several heads of queries share one of keys and values.
        documents: For several documents in one sequence, which do not see each other: their lengths, or a tensor of
            (positions) or (..., positions) with the number of each position's document. With lengths, blocks that
            share no document are not computed.
        layer: The number of the layer, on which random patterns depend.

    Returns:
        The attention, a tensor of the shape of `query` with the head size of `value`.

    Raises:
        ConfigurationError: There is no such pattern, or shapes, dtypes or numbers of heads do not fit each other.

    Cost: for S positions and blocks of b positions, w in a row, S w b scores for each head. On CPUs they exist in parts
    of about 1 MB for each thread. GPUs compute them by torch's compiled `flex_attention` (Dong et al. 2024, arXiv
    2412.05496), or without it if there is dropout.

    Example:
        >>> q = k = v = torch.randn(1, 2, 1000, 8)
        >>> quorate.sparse_attention(q, k, v, "window", is_causal=True).shape
        torch.Size([1, 2, 1000, 8])
    """
    return attention_of_heads(
        query, key, value, pattern_of(pattern), attn_mask, dropout_p, is_causal,
        scale=scale, enable_gqa=enable_gqa, documents=documents, layer=layer,
    )  # fmt: skip


def attention_of_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None,
    enable_gqa: bool,
    documents: Tensor | Sequence[int] | None,
    layer: int,
    first_head: int | None = None,
) -> Tensor:
    """Compute `sparse_attention` for some heads of a layer, the first of which has the number `first_head`.

    None: the number is that of a worker with equally many heads as the others, in a layer that is cut by heads.
    """
    query, key, value = _in_autocast(query, key, value)
    check_tensors(query, key, value, enable_gqa=enable_gqa)
    if not 0.0 <= dropout_p <= 1.0:
        raise ConfigurationError(f"dropout_p is {dropout_p}; it must be a probability, from 0 to 1")
    length, heads = query.shape[POSITIONS], query.shape[HEADS]
    first_head = RANK_OF_HEADS.get() * heads if first_head is None else first_head
    check_mask(attn_mask, query)
    numbers = document_numbers(documents, query.shape[:HEADS], length, query.device)
    count = -(-length // pattern.block)
    blocks = Blocks(pattern, count, is_causal, layer, first_head, heads, lengths_of(documents))
    mask = block_mask(blocks)
    if _is_complete(blocks):
        whole = dense_mask(attn_mask, numbers, length, query.device, is_causal=is_causal)
        return F.scaled_dot_product_attention(
            query, key, value, whole, dropout_p, is_causal and whole is None, scale=scale, enable_gqa=enable_gqa
        )
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (x.reshape(-1, *x.shape[HEADS:]) for x in (query, key, value))
    hidden = _hidden(attn_mask, numbers, query, pattern.block, count, is_causal=is_causal, mask=mask)
    if takes_flex(query, pattern, dropout_p):
        attended = flex_attention_of(q, k, v, hidden, mask, pattern.block, is_causal=is_causal, scale=factor)
    else:
        layout = _layout(blocks, query.device)
        seed = seed_of_dropout(dropout_p)
        call = Call(layout=layout, block=pattern.block, scale=factor, hidden=hidden, dropout_p=dropout_p, seed=seed)
        attended = gathered_attention(q, k, v, call)
    return attended.view(*query.shape[:-1], value.shape[-1])


@functools.lru_cache(maxsize=64)
def _layout(blocks: Blocks, device: torch.device) -> Layout:
    diagonal = torch.arange(blocks.count) if blocks.is_causal else None
    return layout_of(block_mask(blocks), device=device, diagonal=diagonal)


@functools.lru_cache(maxsize=256)
def _is_complete(blocks: Blocks) -> bool:
    """Whether no block is left out but those after the diagonal under a causal mask."""
    mask = block_mask(blocks)
    every = torch.ones_like(mask)
    return torch.equal(mask, every.tril() if blocks.is_causal else every)


def _in_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors in the dtype of an active autocast, as torch's function takes them."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(kind)) if x.dtype == torch.float32 else x for x in tensors)


def check_tensors(query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool) -> None:
    """Raise `ConfigurationError` unless the tensors are of one sequence, dtype and device, and heads fit."""
    every = {"query": query, "key": key, "value": value}
    shapes = ", ".join(f"{name} {tuple(x.shape)} of {x.dtype} on {x.device}" for name, x in every.items())
    if min(x.dim() for x in every.values()) < 3 or not query.is_floating_point():
        raise ConfigurationError(
            f"attention takes floating-point tensors of (..., heads, positions, head size), not {shapes}"
        )
    if len({(x.shape[:HEADS], x.shape[POSITIONS], x.dtype, x.device) for x in every.values()}) > 1:
        raise ConfigurationError(
            f"sparse attention takes query, key and value of the same positions, in one dtype, not {shapes}"
        )
    if query.shape[-1] != key.shape[-1]:
        raise ConfigurationError(f"heads of query and key have the same size, not {query.shape[-1]}, {key.shape[-1]}")
    of_query, of_key, of_value = (x.shape[HEADS] for x in every.values())
    if of_key != of_value or of_query % of_key or (of_query != of_key and not enable_gqa):
        raise ConfigurationError(
            f"query has {of_query} heads, key {of_key} and value {of_value}; they are as many, or with "
            "enable_gqa=True those of query a multiple"
        )
    if not query.numel():
        raise ConfigurationError(f"attention takes tensors with at least one number, not {shapes}")


def check_mask(attn_mask: Tensor | None, query: Tensor) -> None:
    """Raise `ConfigurationError` unless a mask broadcasts to the scores, and needs no gradient."""
    if attn_mask is None:
        return
    scores = (*query.shape[:-1], query.shape[POSITIONS])
    sizes = list(zip(reversed(attn_mask.shape), reversed(scores), strict=False))
    if attn_mask.dim() > len(scores) or any(size not in (1, whole) for size, whole in sizes):
        raise ConfigurationError(f"attn_mask is of the shape {tuple(attn_mask.shape)}, which does not fit {scores}")
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise ConfigurationError(f"attn_mask is of {attn_mask.dtype}; it must have booleans or floating-point numbers")
    if attn_mask.requires_grad:
        raise ConfigurationError("attn_mask requires a gradient, which sparse attention does not compute")


def document_numbers(
    documents: Tensor | Sequence[int] | None, lead: torch.Size, length: int, device: torch.device
) -> Tensor | None:
    """Return the number of each position's document, (B, length), where B is 1 if sequences are alike.

    Raises `ConfigurationError` if `documents` have other positions, or other dimensions before them than `lead`.
    """
    if documents is None:
        return None
    if not isinstance(documents, Tensor):
        lengths = torch.tensor(list(documents), dtype=torch.int64)
        if int(lengths.sum()) != length or bool((lengths < 0).any()):
            raise ConfigurationError(
                f"documents have {int(lengths.sum())} positions by their lengths, and the sequence has {length}"
            )
        return torch.arange(len(lengths)).repeat_interleave(lengths).unsqueeze(0).to(device)
    if documents.shape == (length,):
        return documents.unsqueeze(0).long()
    if documents.shape == (*lead, length):
        return documents.reshape(-1, length).long()
    raise ConfigurationError(
        f"documents are of the shape {tuple(documents.shape)}; they must be lengths, or numbers of the shape "
        f"({length},) or {(*lead, length)}"
    )


def seed_of_dropout(dropout_p: float) -> int:
    """Return a number from torch's generator; 0 without dropout, which draws none."""
    return int(torch.empty((), dtype=torch.int64).random_()) if dropout_p else 0


def dense_mask(
    attn_mask: Tensor | None, numbers: Tensor | None, length: int, device: torch.device, *, is_causal: bool
) -> Tensor | None:
    """Return one mask for torch's function; None where `is_causal` says it all."""
    if attn_mask is None and numbers is None:
        return None
    seen: Tensor | None = None
    if is_causal:
        seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    if numbers is not None:
        same = (numbers.unsqueeze(-1) == numbers.unsqueeze(-2)).unsqueeze(1)
        seen = same if seen is None else same & seen
    if attn_mask is None or seen is None:
        return attn_mask if seen is None else seen
    return attn_mask & seen if attn_mask.dtype == torch.bool else attn_mask.masked_fill(~seen, -torch.inf)


def _hidden(
    attn_mask: Tensor | None,
    numbers: Tensor | None,
    query: Tensor,
    block: int,
    count: int,
    *,
    is_causal: bool,
    mask: Tensor,
) -> Hidden:
    length, batch = query.shape[POSITIONS], query.shape[:HEADS].numel()
    after = count * block - length
    keys, documents, pairs = None, None, None
    if after and not is_causal:
        keys = (torch.arange(count * block, device=query.device) >= length).expand(batch, -1)
    if attn_mask is not None:
        shape = (*[1] * (query.dim() - attn_mask.dim()), *attn_mask.shape)
        if attn_mask.dtype == torch.bool and shape[HEADS] == shape[POSITIONS] == 1:
            seen = attn_mask.view(shape).expand(*query.shape[:HEADS], 1, 1, length).reshape(batch, length)
            hidden = F.pad(~seen, (0, after), value=True)
            keys = hidden
        else:
            pairs = _pairs(attn_mask.view(shape), query, block, count)
    if numbers is not None:
        filled = F.pad(numbers, (0, after), value=NO_DOCUMENT).expand(batch, -1).unflatten(-1, (count, block))
        documents = filled, filled
    has_diagonal = bool(mask.diagonal(dim1=-2, dim2=-1).all())
    return Hidden(
        keys=None if keys is None else keys.unflatten(-1, (count, block)),
        documents=documents,
        mask=pairs,
        leaves_some=attn_mask is None and (numbers is None or has_diagonal),
    )


def _pairs(attn_mask: Tensor, query: Tensor, block: int, count: int) -> Tensor:
    """Return a mask of the dimensions of the scores as (B, H, rows, block, columns, block)."""
    whole, length = count * block, query.shape[POSITIONS]
    after = [whole - length if size == length else 0 for size in attn_mask.shape[-2:]]
    hides = False if attn_mask.dtype == torch.bool else -torch.inf
    filled = F.pad(attn_mask, (0, after[1], 0, after[0]), value=hides)
    every = filled.expand(*query.shape[:POSITIONS], whole, whole).reshape(-1, query.shape[HEADS], whole, whole)
    pairs: Tensor = every.unflatten(-1, (count, block)).unflatten(-3, (count, block))
    return pairs
