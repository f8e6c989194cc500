"""A transformer by its sizes, for a planner: operations and memory of its blocks.

Let h be the hidden size, l the layers, a the heads, s the tokens of a sequence and V the vocabulary. A layer has 12 h²
+ 13 h numbers, and computes 24 s h² + 4 s² h operations forward; the logits take 2 s h V. Backward takes twice as many
(Narayanan et al. 2021, arXiv 2104.04473, section 5.1 and appendix). Half of those are for gradients of weights, except
for scores of attention. It keeps s h (34 + 5 a s / h) bytes of 16-bit activations. Of these, each worker of a tensor
axis holds s h 10 in full (Korthikanti et al. 2022, arXiv 2205.05198, section 4). With sparse attention the computed
scores take the place of s², and none is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quorate.core.errors import ConfigurationError
from quorate.core.quantities import number_from
from quorate.planning.model import Block, Model

PREFIX = "gpt:"
_SIZES = ("hidden", "layers", "heads", "sequence", "vocabulary")
_SWITCHES = ("recompute", "fused")
FORM = "gpt:hidden=H,layers=L,heads=A,sequence=S,vocabulary=V, and after it recompute=1 or fused=1 or both"
_MOST = 10**7
_WHOLE = 10.0
"""Bytes for each token and hidden number that a layer keeps in full on each worker of a tensor axis."""
_CUT = 24.0
_SCORES = 5.0
"""Bytes of each score of attention."""
_PASSES = 2.0
"""Transfers of a layer's activations in a pass: one write, and one read by the next layer."""


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """Sizes of a decoder.

    `recompute`: layers are computed again in the backward pass, and keep their input only. `fused`: scores of attention
    are neither kept nor moved. `scores`: those that each head computes of a sequence with sparse attention, which keeps
    none; 0: all s².
    """

    hidden: int
    layers: int
    heads: int
    sequence: int
    vocabulary: int
    recompute: bool = False
    fused: bool = False
    scores: float = 0.0

    @property
    def numbers(self) -> int:
        """All parameters; the embedding is that of the logits as well."""
        h = self.hidden
        return self.layers * (12 * h * h + 13 * h) + (self.vocabulary + self.sequence) * h

    @property
    def flops(self) -> float:
        """Operations of one sequence, forward and backward, including recomputation."""
        layers = self.layers * self._layer * (4 if self.recompute else 3)
        return layers + 3 * self._logits

    @property
    def _layer(self) -> float:
        s, h = self.sequence, self.hidden
        return 24.0 * s * h * h + 4.0 * (self.scores or s * s) * h

    @property
    def _logits(self) -> float:
        return 2.0 * self.sequence * self.hidden * self.vocabulary


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The speed of a worker."""

    flops: float
    """Operations per second, at most."""
    efficiency: float = 0.5
    """The share of it that matrix products reach: measured, or assumed."""
    memory_bandwidth: float = 0.0
    """Bytes per second, for operations other than matrix products, and for updates; 0: they take no time."""


def transformer_from(text: str, attention: str | None = None) -> Transformer:
    """Return the transformer that `gpt:hidden=…` describes, with a pattern of sparse `attention`.

    Raises `ConfigurationError`. A pattern imports torch.
    """
    values: dict[str, int] = {}
    for item in text.removeprefix(PREFIX).split(","):
        name, _, number = item.strip().partition("=")
        is_size = name in (*_SIZES, *_SWITCHES) and name not in values
        value = number_from(number, text) if is_size and number[:1].isdecimal() else -1.0
        if not (1 <= value <= _MOST and value == int(value)) and not (name in _SWITCHES and value == 0):
            raise ConfigurationError(f'"{item.strip()}" in "{text}": write {FORM}, in whole numbers')
        values[name] = int(value)
    missing = [name for name in _SIZES if name not in values]
    if missing:
        raise ConfigurationError(f'"{text}" does not say {", ".join(missing)}; write {FORM}')
    recompute, fused = (bool(values.pop(name, 0)) for name in _SWITCHES)
    hidden, layers, heads, sequence, vocabulary = (values[name] for name in _SIZES)
    transformer = Transformer(
        hidden=hidden, layers=layers, heads=heads, sequence=sequence, vocabulary=vocabulary,
        recompute=recompute, fused=fused,
    )  # fmt: skip
    if transformer.hidden % transformer.heads:
        raise ConfigurationError(
            f'"{text}": {transformer.heads} heads do not divide a hidden size of {transformer.hidden}'
        )
    if attention is not None:
        from quorate.attention.costs import cost_of

        transformer = replace(transformer, scores=cost_of(attention, sequence, heads=heads, is_causal=True).scores)
    return transformer


def model_of(sizes: Transformer, batch: int, speed: Speed, most_tensor: int) -> Model:
    """Return the model whose step has `batch` sequences, in 16-bit activations with Adam in 32 bits."""
    h, s, again = sizes.hidden, sizes.sequence, sizes.recompute
    rate = speed.flops * speed.efficiency
    scores = 0.0 if sizes.fused or sizes.scores else _SCORES * sizes.heads * s * s
    whole, cut = _WHOLE * s * h, _CUT * s * h + scores
    moved = _PASSES * (whole + cut) / speed.memory_bandwidth if speed.memory_bandwidth else 0.0
    weights = 24.0 * s * h * h / rate
    forward = sizes._layer / rate + moved
    backward = sizes._layer / rate + (sizes._layer / rate - weights) + moved
    kept = 2.0 * s * h if again else whole + cut
    share = cut / (whole + cut)
    logits = sizes._logits / rate
    blocks = []
    for layer in range(sizes.layers):
        first, last = layer == 0, layer == sizes.layers - 1
        more = logits if last else 0.0
        blocks.append(
            Block(
                name=f"layer {layer}",
                forward=forward + more,
                backward=backward + more + (forward if again else 0.0),
                weight=weights + more,
                numbers=12 * h * h + 13 * h + ((sizes.vocabulary + s) * h if first else 0)
                + (sizes.vocabulary * h if last else 0),
                saved=kept,
                output=2.0 * s * h,
                sums=2 * 2.0 * s * h,
                cut=1.0,
                saved_cut=0.0 if again else share,
                again=whole + cut if again else 0.0,
                again_cut=share,
            )
        )  # fmt: skip
    return Model(
        name=f"a transformer of {sizes.numbers / 1e9:,.3g} billion parameters",
        blocks=blocks,
        batch=batch,
        gathered_each=2,
        update=28.0 / speed.memory_bandwidth if speed.memory_bandwidth else 0.0,
        flops=sizes.flops,
        tied=sizes.vocabulary * h,
        refused={
            number: f"{sizes.heads} heads cannot be shared evenly"
            for number in range(2, most_tensor + 1)
            if sizes.heads % number
        },
    )
