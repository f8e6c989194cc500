"""Sparse attention in models of `transformers`, by their registry of attention functions."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from quorate.attention.pattern import AnyPattern, pattern_of
from quorate.attention.sparse import sparse_attention
from quorate.core.errors import ConfigurationError, MissingExtra


def register(pattern: AnyPattern, name: str = "quorate") -> None:
    """Register sparse attention as an attention function of `transformers`, under `name`.

    A model takes it by `from_pretrained(..., attn_implementation=name)` or `model.set_attn_implementation(name)`. It
    need not be edited. Masks of padding count; the direction is the model's. The layer's number is the model's.

    Args:
        pattern: A pattern, its name, or a function of block indices.
        name: The name of the implementation.

    Raises:
        ConfigurationError: There is no such pattern.
        MissingExtra: `transformers` is not installed.

    Example:
        >>> quorate.attention.register("longformer:width=5")  # doctest: +SKIP
        >>> model.set_attn_implementation("quorate")  # doctest: +SKIP
    """
    pattern_of(pattern)  # raises for an unknown one
    try:
        functions = importlib.import_module("transformers").AttentionInterface
        masks = importlib.import_module("transformers.masking_utils")
    except (ImportError, AttributeError) as error:
        raise MissingExtra(
            "quorate.attention.register needs transformers 4.53 or later: pip install transformers"
        ) from error

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        return attention_of_model(module, query, key, value, attention_mask, pattern, dropout, scaling, options), None

    functions.register(name, attention)
    masks.AttentionMaskInterface.register(name, masks.flash_attention_mask)  # padding alone, (batch, positions)


def attention_of_model(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding: Tensor | None,
    pattern: AnyPattern,
    dropout: float,
    scaling: float | None,
    options: dict[str, Any],
) -> Tensor:
    """Return the attention (batch, positions, heads, size) of a layer of `transformers`.

    Fewer queries than keys are the last positions, as in generation. Raises `ConfigurationError` for attention to
    another sequence, and for options that change scores.
    """
    for option in ("softcap", "s_aux", "sliding_window"):
        if options.get(option) is not None:
            raise ConfigurationError(
                f"the model passes {option}={options[option]!r} to its attention, which sparse attention does not take"
            )
    is_causal = options.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    count, length = query.shape[-2], key.shape[-2]
    if count > length or (count < length and not is_causal):
        raise ConfigurationError(
            f"{count} queries attend to {length} keys of another sequence; sparse attention is of one sequence"
        )
    if count < length:
        query = torch.nn.functional.pad(query, (0, 0, length - count, 0))
    mask = None
    if padding is not None:
        mask = padding[:, None, None, -length:].bool()
    attended = sparse_attention(
        query,
        key,
        value,
        pattern,
        mask,
        dropout if module.training else 0.0,
        is_causal,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
        layer=getattr(module, "layer_idx", None) or 0,
    )
    return attended[:, :, length - count :].transpose(1, 2).contiguous()
