"""A transformer that reads bytes and says which comes next."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

BYTES = 256


class Block(nn.Module):
    """Attention to what came before, then a layer four times as wide; each after a norm, each added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_wide = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attended = nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, width) to the same."""
        n, length, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).view(n, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(mixed.transpose(1, 2).reshape(n, length, width))
        added: Tensor = self.narrow(gelu(self.wide(self.before_wide(x))))
        return x + added


class ByteModel(nn.Module):
    """Embedding of bytes and places, `layers` blocks, a linear layer."""

    def __init__(self, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, BYTES, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """Scores (n, length, 256) of what comes after each byte of `text` (n, length), int64."""
        places = torch.arange(text.shape[1], device=text.device)
        scores: Tensor = self.output(self.norm(self.blocks(self.byte(text) + self.place(places))))
        return scores
