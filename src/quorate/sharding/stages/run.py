"""What is kept of one step, or one call, of a model in stages while its passes are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from quorate.core.contracts import Work
from quorate.sharding.stages.batches import MicroBatch
from quorate.sharding.stages.route import Route


@dataclass
class Kept:
    """Of one micro-batch in one stage, from its forward pass until its backward pass."""

    inputs: dict[int, Tensor] = field(default_factory=dict)
    """By transfer."""
    sent: dict[int, Tensor] = field(default_factory=dict)
    ends: list[Tensor] = field(default_factory=list)
    """In the last stage: what backward begins with."""
    groups: Any = None
    """Between the two halves of a backward pass: what the second one begins with."""


@dataclass
class Run:
    """One step, or one call, of the model."""

    batches: list[MicroBatch]
    routes: list[Route]
    learns: bool
    kept: dict[tuple[int, int], Kept] = field(default_factory=dict)
    handed: dict[tuple[str, int, int], Tensor | None] = field(default_factory=dict)
    """From one stage of this worker to the next."""
    sends: list[Work[None]] = field(default_factory=list)
    outputs: dict[int, Any] = field(default_factory=dict)
    """Of the last stage, by micro-batch."""
