"""Error feedback: what a codec leaves out is remembered, and encoded with the next vector.

u = g + e is encoded in place of g, and e = u - decoded is remembered. So the sum of all decoded vectors plus e is the
sum of all vectors to be sent. If errors should fade, u = g + decay e. Stich, Cordonnier and Jaggi, "Sparsified SGD with
memory", NeurIPS 2018. Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019, Algorithm 1, in units of the
gradient and not of the update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from quorate.core.codec import Codec, Draw, Memory, Shapes
from quorate.core.errors import ConfigurationError

ERROR = "error"
"""The memory of the part left out: to be added to the next vector."""


@dataclass(frozen=True)
class ErrorFeedback(Codec):
    """The codec `of` with a memory of the part that it leaves out. Codecs with memories need none."""

    of: Codec
    decay: float = 1.0
    """Factor of the error when it is added to the next vector. Below 1 it fades, like a momentum, and the decoded
    vectors and the memory no longer add up to the sum of all vectors."""

    def __post_init__(self) -> None:
        if self.of.memories:
            raise ConfigurationError(
                f"{type(self.of).__name__} remembers by itself what it leaves out; error feedback is for others"
            )

    @property
    def bare(self) -> Codec:
        """The codec without error feedback."""
        return self.of

    def rescaled(self, factor: float) -> Codec:
        return replace(self, of=self.of.rescaled(factor))

    @property
    def votes(self) -> bool:
        return self.of.votes

    @property
    def is_linear(self) -> bool:  # type: ignore[override]
        """Whether the codec is linear."""
        return self.of.is_linear

    @property
    def memories(self) -> tuple[str, ...]:  # type: ignore[override]
        """The memory of the error."""
        return (ERROR,)

    def encode(self, x: Tensor, shapes: Shapes, memory: Memory, draw: Draw) -> tuple[Tensor, Memory]:
        error = memory[ERROR] if self.decay == 1.0 else memory[ERROR] * self.decay
        wanted = (error + x).to(error.dtype)
        code, _ = self.of.encode(wanted, shapes, {}, draw)
        return code, {ERROR: wanted.sub_(self.of.decode(code, shapes, draw))}

    def decode(self, code: Tensor, shapes: Shapes, draw: Draw) -> Tensor:
        return self.of.decode(code, shapes, draw)

    def add_decoded(self, into: Tensor, code: Tensor, shapes: Shapes, draw: Draw) -> None:
        self.of.add_decoded(into, code, shapes, draw)

    def wire_bytes(self, shapes: Shapes) -> int | None:
        return self.of.wire_bytes(shapes)

    def contraction(self, shapes: Shapes) -> float | None:
        return self.of.contraction(shapes)
