"""The row of the bytes that each layer sends along the tensor axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quorate.records.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers(Row):
    """The bytes that this worker sent for each layer in the second forward and backward pass of the run; written once,
    where several workers compute layers together."""

    kind = "layers"
    step: int
    time: float
    optimizer: str
    sent: Mapping[str, int]
    """Bytes by the layer's name in the model; layers that send nothing are left out."""
