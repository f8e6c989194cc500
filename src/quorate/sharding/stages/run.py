"""Tensors that are kept for one step, or one call, of a model in stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from quorate.core.contracts import Work
from quorate.sharding.stages.batches import MicroBatch
from quorate.sharding.stages.route import Route


@dataclass
class Kept:
    """Tensors of one micro-batch in one stage, from its forward pass until its backward pass."""

    inputs: dict[int, Tensor] = field(default_factory=dict)
    """Inputs by transfer."""
    sent: dict[int, Tensor] = field(default_factory=dict)
    ends: list[Tensor] = field(default_factory=list)
    """In the last stage: tensors from which the backward pass begins."""
    groups: Any = None
    """Between the two halves of a backward pass: the parameter groups of the second half."""


@dataclass
class Run:
    """One step, or one call, of the model."""

    batches: list[MicroBatch]
    routes: list[Route]
    learns: bool
    kept: dict[tuple[int, int], Kept] = field(default_factory=dict)
    handed: dict[tuple[str, int, int], Tensor | None] = field(default_factory=dict)
    """Tensors from one stage of this worker to its next."""
    sends: list[Work[None]] = field(default_factory=list)
    outputs: dict[int, Any] = field(default_factory=dict)
    """Outputs of the last stage, by micro-batch."""
