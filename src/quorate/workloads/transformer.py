"""The Transformer that translates: encoder, decoder, and decoding with one or several beams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, log_softmax, scaled_dot_product_attention

PADDING, BEGIN, END = range(3)
"""The first tokens of every vocabulary."""

LENGTH_EXPONENT = 0.6
"""Exponent of the length by which scores of beams are divided (Vaswani et al. 2017, section 6.1)."""

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one attention: (n, heads, positions, width / heads)."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a Transformer."""

    layers: int
    """Layers of the encoder, and of the decoder."""
    width: int
    heads: int
    inner: int
    """Width between the two matrices of a layer."""


SIZES = {
    "tiny": Sizes(layers=1, width=64, heads=4, inner=128),
    "small": Sizes(layers=3, width=256, heads=8, inner=1024),
    "base": Sizes(layers=6, width=512, heads=8, inner=2048),
}
"""Sizes by name; "base" is the published one."""


class Attention(nn.Module):
    """Scaled dot-product attention of several heads; four matrices with biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)

    def _by_head(self, x: Tensor) -> Tensor:
        split: Tensor = x.unflatten(2, (self.heads, -1))
        return split.transpose(1, 2)

    def keys_values(self, x: Tensor) -> KeysValues:
        """Return keys and values of `x` (n, positions, width)."""
        return self._by_head(self.key(x)), self._by_head(self.value(x))

    def forward(self, x: Tensor, seen: KeysValues, mask: Tensor | None = None, *, is_causal: bool = False) -> Tensor:
        """Return (n, positions, width): for each position of `x` the mean of `seen` that its query weighs."""
        query = self._by_head(self.query(x))
        mixed = scaled_dot_product_attention(query, *seen, attn_mask=mask, is_causal=is_causal)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output


class EncoderLayer(nn.Module):
    """Attention to the sentence itself, then two matrices; a norm follows each sum (post-norm, as published)."""

    def __init__(self, sizes: Sizes, dropped: float) -> None:
        super().__init__()
        self.dropped = dropped
        self.attention = Attention(sizes.width, sizes.heads)
        self.attention_norm = nn.LayerNorm(sizes.width)
        self.wide, self.narrow = nn.Linear(sizes.width, sizes.inner), nn.Linear(sizes.inner, sizes.width)
        self.norm = nn.LayerNorm(sizes.width)

    def added(self, x: Tensor, change: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return the norm of the sum of both, after dropout."""
        normed: Tensor = norm(x + dropout(change, self.dropped, self.training))
        return normed

    def fed_forward(self, x: Tensor) -> Tensor:
        """Return `x` after the two matrices."""
        return self.added(x, self.narrow(torch.relu(self.wide(x))), self.norm)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the states of the sentences `x` (n, length, width); `mask` (n, 1, 1, length) is False at padding."""
        attended = self.attention(x, self.attention.keys_values(x), mask)
        return self.fed_forward(self.added(x, attended, self.attention_norm))


class DecoderLayer(EncoderLayer):
    """An encoder's layer with an attention to the encoder's states in the middle."""

    def __init__(self, sizes: Sizes, dropped: float) -> None:
        super().__init__(sizes, dropped)
        self.cross = Attention(sizes.width, sizes.heads)
        self.cross_norm = nn.LayerNorm(sizes.width)

    def decoded(self, x: Tensor, own: KeysValues, encoded: KeysValues, mask: Tensor, *, is_causal: bool) -> Tensor:
        """Return the states of `x`, which looks at `own` and at `encoded`, the keys and values of the source."""
        x = self.added(x, self.attention(x, own, is_causal=is_causal), self.attention_norm)
        return self.fed_forward(self.added(x, self.cross(x, encoded, mask), self.cross_norm))


class Transformer(nn.Module):
    """The published encoder and decoder (Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3).

    One matrix embeds the tokens of both languages and scores the output (section 3.4), positions are sines, and norms
    follow sums. The base has 63,082,496 parameters with 37,000 tokens, published as 65 million. Cost of a step:
    some 6 operations per parameter and token, and attention that grows with the square of the length.
    """

    def __init__(self, vocabulary: int, sizes: Sizes, dropped: float = 0.0) -> None:
        super().__init__()
        self.width, self.dropped = sizes.width, dropped
        self.embedding = nn.Embedding(vocabulary, sizes.width)
        self.encoder = nn.ModuleList(EncoderLayer(sizes, dropped) for _ in range(sizes.layers))
        self.decoder = nn.ModuleList(DecoderLayer(sizes, dropped) for _ in range(sizes.layers))
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        nn.init.normal_(self.embedding.weight, std=sizes.width**-0.5)

    @property
    def _decoder_layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.decoder))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores (n, positions, vocabulary) of the token after each of `target` (n, positions), which begins with
        `BEGIN`; `source` is (n, length). Both are int64, `PADDING` after their ends."""
        mask, encoded = self.encode(source)
        x = self._embedded(target, 0)
        for layer, keys_values in zip(self._decoder_layers, encoded, strict=True):
            x = layer.decoded(x, layer.attention.keys_values(x), keys_values, mask, is_causal=True)
        return linear(x, self.embedding.weight)

    def encode(self, source: Tensor) -> tuple[Tensor, list[KeysValues]]:
        """Return the mask of `source`, and keys and values of its states for each layer of the decoder."""
        mask = (source != PADDING)[:, None, None]
        x = self._embedded(source, 0)
        for layer in self.encoder:
            x = layer(x, mask)
        return mask, [layer.cross.keys_values(x) for layer in self._decoder_layers]

    def next_scores(
        self, tokens: Tensor, place: int, seen: list[KeysValues], mask: Tensor, encoded: list[KeysValues]
    ) -> tuple[Tensor, list[KeysValues]]:
        """Return scores (n, vocabulary) of what follows `tokens` (n,) at `place`, and all keys and values up to it."""
        x = self._embedded(tokens[:, None], place)
        extended = []
        for number, (layer, keys_values) in enumerate(zip(self._decoder_layers, encoded, strict=True)):
            own = layer.attention.keys_values(x)
            if seen:
                own = torch.cat([seen[number][0], own[0]], dim=2), torch.cat([seen[number][1], own[1]], dim=2)
            extended.append(own)
            x = layer.decoded(x, own, keys_values, mask, is_causal=False)
        return linear(x[:, 0], self.embedding.weight), extended

    def _embedded(self, tokens: Tensor, begin: int) -> Tensor:
        """Return embeddings plus positions from `begin` on: (n, length, width)."""
        x = self.embedding(tokens) * self.width**0.5
        x = x + positions(begin, tokens.shape[1], self.width).to(x)
        return dropout(x, self.dropped, self.training)


def positions(begin: int, length: int, width: int) -> Tensor:
    """Return sines, then cosines, of wavelengths from 2π to 10,000·2π: (length, width) in float32."""
    rates = 1e4 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(begin, begin + length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


@torch.no_grad()
def decode(model: Transformer, source: Tensor, longest: int, beams: int = 1) -> list[list[int]]:
    """Return a translation for each sentence of `source` (n, length): its tokens, without `BEGIN` and `END`.

    With one beam the most probable token follows. With several, the translation has the greatest log-probability
    divided by ((5 + tokens) / 6)^0.6. No translation has more than `longest` tokens.

    Cost: one decoder step of n·beams tokens for each token, as keys and values of earlier ones are kept.
    """
    n = len(source)
    mask, encoded = model.encode(source)
    mask = mask.repeat_interleave(beams, 0)
    encoded = [(keys.repeat_interleave(beams, 0), values.repeat_interleave(beams, 0)) for keys, values in encoded]
    written = torch.full((n * beams, 1), BEGIN, device=source.device)
    totals = torch.full((n, beams), float("-inf"), device=source.device)
    totals[:, 0] = 0.0  # all beams are equal at first
    first = torch.arange(n, device=source.device)[:, None] * beams
    seen: list[KeysValues] = []
    for place in range(longest):
        scores, seen = model.next_scores(written[:, -1], place, seen, mask, encoded)
        log_probabilities = log_softmax(scores.float(), dim=1)
        log_probabilities[:, [PADDING, BEGIN]] = float("-inf")
        has_ended = (written[:, -1] == END) | (written[:, -1] == PADDING)
        log_probabilities[has_ended] = float("-inf")
        log_probabilities[has_ended, PADDING] = 0.0
        reached = (totals.view(-1, 1) + log_probabilities).view(n, -1)
        totals, chosen = reached.topk(beams, dim=1)
        origins = (first + chosen // scores.shape[1]).view(-1)
        written = torch.cat([written[origins], (chosen % scores.shape[1]).view(-1, 1)], dim=1)
        seen = [(keys[origins], values[origins]) for keys, values in seen]
        if bool(((written[:, -1] == END) | (written[:, -1] == PADDING)).all()):
            break
    lengths = (written[:, 1:] != PADDING).sum(1).view(n, beams)
    best = (totals / ((5 + lengths) / 6) ** LENGTH_EXPONENT).argmax(dim=1)
    chosen_rows = written.view(n, beams, -1)[torch.arange(n), best].tolist()
    return [[token for token in row if token > END] for row in chosen_rows]
