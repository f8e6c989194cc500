"""A sparse `torch.nn.MultiheadAttention`, and its use in a model that has dense ones."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module, MultiheadAttention

from quorate.attention.pattern import AnyPattern, pattern_of
from quorate.attention.sparse import sparse_attention
from quorate.core.errors import ConfigurationError

M = TypeVar("M", bound=Module)


class SparseMultiheadAttention(MultiheadAttention):
    """`torch.nn.MultiheadAttention` for the blocks of a pattern; parameters and their names are the same.

    Args:
        embed_dim, num_heads, dropout, bias, batch_first, device, dtype: As in torch.
        pattern: A pattern, its name, or a function of block indices.
        layer: The number of the layer, on which random patterns depend.

    The forward pass takes the arguments of torch's module. It is self-attention: query, key and value have the same
    positions. Weights are not returned, since they never exist.

    Raises:
        ConfigurationError: There is no such pattern.

    Example:
        >>> attention = quorate.attention.SparseMultiheadAttention(8, 2, pattern="window", batch_first=True)
        >>> x = torch.randn(1, 300, 8)
        >>> attention(x, x, x, need_weights=False)[0].shape
        torch.Size([1, 300, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        pattern: AnyPattern,
        layer: int = 0,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(embed_dim, num_heads, dropout, bias, batch_first=batch_first, device=device, dtype=dtype)
        pattern_of(pattern)  # raises for an unknown one
        self.pattern, self.layer, self._has_bias = pattern, layer, bias
        self._qkv_same_embed_dim = False  # else an encoder in eval() computes dense attention without this module

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention, and None. Masks are as in torch's module: True hides.

        Raises `ConfigurationError` if weights are wanted. With `is_causal` a mask of positions is not read: it is a
        hint there that the mask is causal.
        """
        if need_weights:
            raise ConfigurationError("sparse attention has no weights to return; call it with need_weights=False")
        is_batched = query.dim() == 3
        tensors = (query, key, value) if is_batched else tuple(x.unsqueeze(0) for x in (query, key, value))
        if is_batched and not self.batch_first:
            tensors = tuple(x.transpose(0, 1) for x in tensors)
        biases = self.in_proj_bias.chunk(3) if self._has_bias else (None, None, None)
        q, k, v = (
            F.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for x, weight, bias in zip(tensors, self.in_proj_weight.chunk(3), biases, strict=True)
        )
        seen = self._seen(key_padding_mask, None if is_causal else attn_mask, q)
        attended = sparse_attention(
            q, k, v, self.pattern, seen, self.dropout if self.training else 0.0, is_causal, layer=self.layer
        )
        output = F.linear(attended.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)
        if not is_batched:
            return output.squeeze(0), None
        return (output if self.batch_first else output.transpose(0, 1)), None

    def _seen(self, padding: Tensor | None, mask: Tensor | None, q: Tensor) -> Tensor | None:
        """Return both masks of torch's module, in which True hides, as one in which False does."""
        batch, heads, length, _ = q.shape
        masks = []
        if padding is not None:
            masks.append(padding.view(batch, 1, 1, length))
        if mask is not None:
            masks.append(mask.view(batch, heads, length, length) if mask.dim() == 3 else mask)
        seen = [~mask if mask.dtype == torch.bool else mask for mask in masks]
        if len(seen) < 2:
            return seen[0] if seen else None
        if all(mask.dtype == torch.bool for mask in seen):
            return seen[0] & seen[1]
        numbers = [q.new_zeros(x.shape).masked_fill(~x, -torch.inf) if x.dtype == torch.bool else x for x in seen]
        return numbers[0] + numbers[1]


def sparsify(model: M, pattern: AnyPattern) -> M:
    """Replace every `torch.nn.MultiheadAttention` in `model` by a sparse one with the same parameters, in place.

    Call it before making the optimizer. Layers are numbered in the order of `model.modules()`.

    Args:
        model: A model; an attention in it must attend to its own positions, with queries, keys and values of one width.
        pattern: A pattern, its name, or a function of block indices.

    Returns:
        `model`.

    Raises:
        ConfigurationError: There is no such pattern, there is no attention in `model`, or one that adds keys or has
            keys of another width.

    Example:
        >>> encoder = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> encoder = quorate.attention.sparsify(encoder, "longformer")
        >>> encoder(torch.randn(1, 300, 8)).shape
        torch.Size([1, 300, 8])
    """
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, MultiheadAttention) and not isinstance(child, SparseMultiheadAttention)
    ]
    if not places:
        raise ConfigurationError(f"{type(model).__name__} has no torch.nn.MultiheadAttention to replace")
    for _, name, dense in places:
        if not dense._qkv_same_embed_dim or dense.bias_k is not None or dense.add_zero_attn:
            raise ConfigurationError(
                f"{name} has keys of another width, or adds keys of its own; sparse attention supports neither"
            )
    for layer, (parent, name, dense) in enumerate(places):
        sparse = SparseMultiheadAttention(
            dense.embed_dim,
            dense.num_heads,
            dense.dropout,
            dense.in_proj_bias is not None,
            pattern=pattern,
            layer=layer,
            batch_first=dense.batch_first,
            device="meta",
        )
        sparse.in_proj_weight, sparse.in_proj_bias = dense.in_proj_weight, dense.in_proj_bias
        sparse.out_proj = dense.out_proj
        setattr(parent, name, sparse.train(dense.training))
    return model
