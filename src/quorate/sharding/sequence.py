"""Attention over a sequence in pieces on several workers, by exchanges of heads for positions.

Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv 2309.14509, section 3): each of T workers has a piece of the sequence, and
calculates alone what treats positions one by one. Before attention an all-to-all gives it all positions of 1/T of the
heads; after it another one returns its positions of all heads. Importing this module imports torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from quorate.attention.pattern import AnyPattern, pattern_of
from quorate.attention.sparse import attention_of_heads
from quorate.core.errors import ConfigurationError, Mismatch, unknown
from quorate.sharding.bits import digest_of_inputs
from quorate.sharding.sparse_pieces import attention_of_pieces
from quorate.sharding.tensor.activations import Together, summed
from quorate.wire import current

HEADS, POSITIONS = -3, -2
_TAG = "ring"


@dataclass
class InPieces:
    """The sequences of one worker: shared with others, or full."""

    together: Together | None = None
    """None where each worker has full sequences."""
    cuts: int = 0
    has_attended: bool = False
    """Whether the model has called `sequence_attention` in this call."""


def _here() -> InPieces:
    place = current.place()
    return InPieces() if place is None else place.context(InPieces)


class _Turned(Function):
    """An all-to-all that cuts along one dimension and joins along another."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, together: Together, cut: int, sizes: Sequence[int], join: int, joined: list[int]
    ) -> Tensor:
        """Send pieces of `x` of `sizes` along `cut`, piece r to worker r; join the pieces received along `join`. Their
        sizes are in `joined`, or are written there."""
        pieces = [piece.contiguous() for piece in x.detach().split(list(sizes), cut)]
        shapes = None
        if joined:  # the sizes are known
            shapes = [[*piece.shape] for piece in [pieces[together.rank]] * together.size]
            for shape, size in zip(shapes, joined, strict=True):
                shape[join] = size
        received = _exchanged(pieces, together, shapes)
        joined[:] = [piece.shape[join] for piece in received]
        ctx.how = together, join, joined, [piece.shape for piece in pieces], cut
        return torch.cat(received, join)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Send gradients back, by the reverse all-to-all."""
        together, cut, sizes, shapes, join = ctx.how
        pieces = [piece.contiguous() for piece in gradient.split(sizes, cut)]
        return torch.cat(_exchanged(pieces, together, shapes), join), None, None, None, None, None


def _exchanged(pieces: list[Tensor], together: Together, shapes: Sequence[Sequence[int]] | None) -> list[Tensor]:
    return together.traffic.wait(together.wire.all_to_all(pieces, shapes=shapes), together.wire.clock)


def _turned(
    x: Tensor, together: Together, cut: int, sizes: Sequence[int], join: int, known: Sequence[int] = ()
) -> tuple[Tensor, list[int]]:
    """Return the result of `_Turned`, and the sizes of the pieces of which it is made: the `known` ones."""
    sizes_joined = list(known)
    result: Tensor = _Turned.apply(x, together, cut, sizes, join, sizes_joined)  # type: ignore[no-untyped-call]
    return result, sizes_joined


def sequence_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    by: Literal["heads", "ring"] = "heads",
    pattern: AnyPattern | None = None,
    documents: Tensor | Sequence[int] | None = None,
    layer: int = 0,
) -> Tensor:
    """Compute `torch.nn.functional.scaled_dot_product_attention` of sequences that workers hold in pieces.

    In a model divided by `quorate.parallelize(model, mesh, tensor="sequence")` the tensors and the result have the
    positions of this worker; lengths of pieces may differ, in order of rank. Elsewhere this is torch's function.
    Dropout masks differ between workers, as do their heads.

    Args:
        query, key, value: Tensors of (..., heads, positions, head size).
        attn_mask: A mask of the full sequence, (..., S, S), and with a dimension of heads, of all heads.
        dropout_p: The probability of dropout.
        is_causal: Whether a position attends to earlier ones only.
        scale: The factor of the scores; None: 1 / sqrt(head size).
        enable_gqa: Whether several heads of queries share one of keys and values.
        by: "heads" redistributes heads among the workers; with "ring" keys and values circulate instead (Liu et al.
            2023, arXiv 2310.01889), for any number of heads, without masks and dropout.
        pattern: The blocks of keys that count, as in `quorate.sparse_attention`; None: all. With "ring" each worker
            sends others only the blocks that their queries need. Masks of padding and dropout count there, too.
        documents: Lengths or numbers of documents in the full sequence, as in `quorate.sparse_attention`.
        layer: The number of the layer, on which random patterns depend.

    Returns:
        The attention, a tensor of the shape of `query` with the head size of `value`.

    Raises:
        ConfigurationError: The number of heads is no multiple of the workers (except with "ring"), or that of queries
            no multiple of that of keys. Also if key and value are of another sequence, or if there is a mask or dropout
            with "ring", and for an unknown pattern, or documents without a pattern.

    Cost: query, key, value and result have B bytes each and all heads. On T workers each worker sends 4 (T - 1) / T^2 B
    forward, in two all-to-alls, and as much backward. With "ring", for keys and values of B bytes each, 2 (T - 1) / T B
    forward and 2 (2 T - 1) / T B backward, in T steps each. With a pattern, the keys and values that others need
    forward, and as many numbers backward, in one all-to-all each.

    Example:
        >>> q = k = v = torch.randn(1, 2, 5, 4)
        >>> quorate.sequence_attention(q, k, v, is_causal=True).shape
        torch.Size([1, 2, 5, 4])
    """
    here = _here()
    together, here.has_attended = here.together, True
    usual: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    if pattern is None and documents is not None:
        raise ConfigurationError('documents need a pattern; pass pattern="dense" for dense attention inside each')
    blocks = None if pattern is None else pattern_of(pattern)
    sparse: dict[str, Any] = {"documents": documents, "layer": layer}
    if together is None:
        if blocks is None:
            return F.scaled_dot_product_attention(query, key, value, attn_mask, **usual)
        return attention_of_heads(query, key, value, blocks, attn_mask, **usual, **sparse)
    every = {"query": query, "key": key, "value": value}
    _check(every, together.size if by == "heads" else 1, enable_gqa=enable_gqa)
    if by not in ("heads", "ring"):
        raise unknown("way of attention to pieces", str(by), ("heads", "ring"))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    if by == "ring" and blocks is not None:
        return attention_of_pieces(
            query, key, value, together, blocks, attn_mask, dropout_p, is_causal=is_causal, scale=factor, **sparse
        )
    if by == "ring":
        if attn_mask is not None or dropout_p:
            raise ConfigurationError('by="ring" does not support attn_mask and dropout_p; by="heads" supports both')
        return ring_attention(query, key, value, together, is_causal=is_causal, scale=factor)
    mixed = torch.cat([x.unflatten(HEADS, (together.size, -1)) for x in every.values()], HEADS)
    heads = mixed.shape[HEADS]
    whole, lengths = _turned(mixed.flatten(HEADS - 1, HEADS), together, HEADS, [heads] * together.size, POSITIONS)
    q, k, v = whole.split([x.shape[HEADS] // together.size for x in every.values()], HEADS)
    length = whole.shape[POSITIONS]
    mask = _own_mask(attn_mask, length, query.shape[HEADS], together)
    if blocks is None:
        attended = F.scaled_dot_product_attention(q, k, v, mask, **usual)
    else:
        first = together.rank * q.shape[HEADS]
        attended = attention_of_heads(q, k, v, blocks, mask, **usual, **sparse, first_head=first)
    of_each = [attended.shape[HEADS]] * together.size
    return _turned(attended, together, POSITIONS, lengths, HEADS, of_each)[0]


def _check(every: dict[str, Tensor], workers: int, *, enable_gqa: bool) -> None:
    for name, x in every.items():
        if x.dim() < 3:
            raise ConfigurationError(f"{name} has {x.dim()} dimensions; it must be (..., heads, positions, head size)")
        if x.shape[HEADS] % workers:
            raise ConfigurationError(
                f"{name} has {x.shape[HEADS]} heads, which {workers} workers cannot share evenly: "
                f"{x.shape[HEADS]} is not a multiple of {workers}"
            )
    of_query, *others = (x.shape[HEADS] for x in every.values())
    if others[0] != others[1] or of_query % others[0] or (of_query != others[0] and not enable_gqa):
        raise ConfigurationError(
            f"query has {of_query} heads, key {others[0]} and value {others[1]}; they are as many, or with "
            "enable_gqa=True those of query a multiple"
        )
    if len({(*x.shape[:HEADS], *x.shape[POSITIONS:], x.dtype) for x in every.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(x.shape)} of {x.dtype}" for name, x in every.items())
        raise ConfigurationError(
            f"sequence_attention is of one sequence, and heads of one size, in one dtype; given are {shapes}"
        )


def _own_mask(mask: Tensor | None, length: int, heads: int, together: Together) -> Tensor | None:
    if mask is None:
        return None
    if mask.dim() < 2 or any(n not in (1, length) for n in mask.shape[-2:]):
        raise ConfigurationError(
            f"attn_mask is of the shape {tuple(mask.shape)}; it is of the whole sequence, (..., {length}, {length})"
        )
    if mask.dim() > 2 and mask.shape[HEADS] == heads > 1:
        return mask.chunk(together.size, HEADS)[together.rank]
    return mask


def sequence_piece(x: Tensor, dim: int = 1) -> Tensor:
    """Return the positions of `x`, along `dim`, that lie on this worker; lengths of the T pieces differ by one at most.

    Use it for everything indexed by position: tokens, targets, and position numbers.

    Args:
        x: A tensor that is the same on the T workers, which is checked in calls 1, 2, 4, 8 and so on.
        dim: The dimension of positions.

    Returns:
        The piece; `x` itself where sequences are full.

    Raises:
        ConfigurationError: There are fewer positions than workers, or `x` requires a gradient (cut the model's inputs,
            not intermediate results).
        Mismatch: Workers have different tensors.

    Example:
        >>> quorate.sequence_piece(torch.arange(6).view(1, 6)).shape
        torch.Size([1, 6])
    """
    here = _here()
    together = here.together
    if together is None:
        return x
    if x.requires_grad:
        raise ConfigurationError(
            "sequence_piece divides the model's inputs, but this tensor has a gradient; divide it before"
        )
    if not -x.dim() <= dim < x.dim():
        raise ConfigurationError(f"a tensor of the shape {tuple(x.shape)} has no dimension {dim} to divide")
    if x.shape[dim] < together.size:
        raise ConfigurationError(
            f"a sequence of {x.shape[dim]} positions cannot be divided among {together.size} workers; each "
            "needs at least one"
        )
    here.cuts += 1
    if not here.cuts & (here.cuts - 1):
        digests = together.values_of_all(f"call {here.cuts} of sequence_piece", [digest_of_inputs([x]), *x.shape])
        if any(digest != digests[0] for digest in digests):
            raise Mismatch(
                f"workers that share sequences were given different ones (call {here.cuts} of sequence_piece); load "
                "data with quorate.loader"
            )
    return x.tensor_split(together.size, dim)[together.rank]


def sequence_mean(losses: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean of `losses` over all positions of the sequence, the same on all T workers.

    The result is the mean that one process computes. Its backward pass is that of the full loss, provided that it is
    the only path from pieces to a loss.

    Args:
        losses: The losses of this worker's positions.
        weights: The weights of the positions, of the shape of `losses` (0 for padding); None: all equal.

    Returns:
        The mean, a tensor of one number.

    Raises:
        ConfigurationError: `weights` have another shape.

    Example:
        >>> quorate.sequence_mean(torch.tensor([1.0, 3.0]))
        tensor(2.)
    """
    if weights is not None and weights.shape != losses.shape:
        raise ConfigurationError(f"weights are of the shape {tuple(weights.shape)}, and losses {tuple(losses.shape)}")
    total = losses.sum() if weights is None else (losses * weights).sum()
    count = torch.ones_like(losses).sum() if weights is None else weights.sum().to(losses.dtype)
    together = _here().together
    if together is not None:
        total, count = summed(total, together), together.sum(count)
    return total / count


class _Round:
    """Tensors that go from each worker to the next, one step at a time."""

    def __init__(self, together: Together, lengths: Sequence[int]) -> None:
        """`lengths`: the positions of each worker's piece."""
        self._together, self._wire, self._lengths = together, together.wire, lengths
        self._after, self._before = (together.rank + 1) % together.size, (together.rank - 1) % together.size

    def start(self, tensors: Sequence[Tensor], owner: int) -> Any:
        """Send `tensors`, the piece of worker `owner`, to the next worker; return the handle that `end` takes."""
        length = self._lengths[(owner - 1) % self._together.size]
        sends = [(self._after, x.contiguous()) for x in tensors]
        shapes = [(*x.shape[:POSITIONS], length, x.shape[-1]) for x in tensors]
        receives = [(self._before, x.new_empty(shape)) for x, shape in zip(tensors, shapes, strict=True)]
        return self._wire.exchange(sends, receives, _TAG)

    def end(self, under_way: Any) -> tuple[Tensor, ...]:
        """Return the tensors that the preceding worker has sent."""
        return tuple(self._together.traffic.wait(under_way, self._wire.clock))


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
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, together: Together, scale: float, lengths: list[int], is_causal: bool
    ) -> Tensor:
        """Start with the local piece, so that every query has seen a key; then take those of the preceding workers."""
        rank, size, turn = together.rank, together.size, _Round(together, lengths)
        starts = list(itertools.accumulate(lengths, initial=0)) if is_causal else None
        most: Any = None
        total: Any = None
        output: Any = None
        block: tuple[Tensor, ...] = (k.detach(), v.detach())
        for step in range(size):
            owner = (rank - step) % size
            under_way = turn.start(block, owner) if step < size - 1 else None
            keys, values = block
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
        ctx.how = together, scale, starts, lengths
        result: Tensor = output
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Sum the gradients of keys and values as they circulate; the last step brings them back to their worker."""
        q, k, v, output, log_total = ctx.saved_tensors
        together, scale, starts, lengths = ctx.how
        rank, size, turn = together.rank, together.size, _Round(together, lengths)
        of_q, both = torch.zeros_like(q), (gradient * output).sum(-1, keepdim=True)
        block: tuple[Tensor, ...] = (k, v)
        sums: tuple[Tensor, ...] = (torch.zeros_like(k), torch.zeros_like(v))
        for step in range(size):
            owner = (rank - step) % size
            under_way = turn.start(block, owner) if step < size - 1 else None
            keys, values = block
            scores = _scores(q, keys, scale, None if starts is None else (starts[rank], starts[owner]))
            if scores is not None:
                p = (scores - log_total).exp()
                of_scores = p * (gradient @ values.mT - both) * scale
                of_q += of_scores @ keys
                of_keys = (of_scores.mT @ q).sum(-3, keepdim=True)
                sums = sums[0] + of_keys, sums[1] + (p.mT @ gradient).sum(-3, keepdim=True)
            if under_way is not None:
                block = turn.end(under_way)
            sums = turn.end(turn.start(sums, owner))
        return of_q, *sums, None, None, None, None


def ring_attention(q: Tensor, k: Tensor, v: Tensor, together: Together, *, is_causal: bool, scale: float) -> Tensor:
    """Attention of the queries here to all keys; sums are formed in float32 at least. Without masks and dropout.

    Liu et al. 2023, arXiv 2310.01889, section 3: keys and values circulate, queries stay on their worker. The worker
    calculates with the keys and values of one piece while those of the next are being received. The softmax is formed
    piece by piece (Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 3). The backward pass recalculates it from
    its logarithm, and the gradients of keys and values circulate with them.
    """
    lengths = together.values_of_all("attention by a ring", k.shape[POSITIONS])
    wide = torch.promote_types(q.dtype, torch.float32)
    groups = q.unflatten(-3, (k.shape[-3], -1)).to(wide)
    keys, values = (x.unsqueeze(-3).to(wide) for x in (k, v))
    output: Tensor = _Ring.apply(  # type: ignore[no-untyped-call]
        groups, keys, values, together, scale, lengths, is_causal
    )
    return output.flatten(-4, -3).to(q.dtype)
