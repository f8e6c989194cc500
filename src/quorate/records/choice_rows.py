"""Rows about choices that a training makes for itself: settings, parts of gradients, smaller models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorate.records.rows import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(Row):
    """A setting that the training has chosen for itself, or proposes; the lowest living rank writes it."""

    kind = "choice"
    step: int
    """The first step with it."""
    time: float
    optimizer: str
    setting: str
    """`compress`, `strategy`, or `proposed strategy`, which is not used."""
    value: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned(Row):
    """A choice of how the gradient is exchanged, from measured times; rank 0 writes it."""

    kind = "tuned"
    step: int
    time: float
    optimizer: str
    steps: int
    """Number of steps that it took."""
    latency: float
    """Seconds of a sum of few numbers; `gap` those for which it keeps the wire from the next one."""
    gap: float
    bandwidth: float | None
    """Bytes per second of large sums; null where size does not matter."""
    skew: float
    """Seconds between the middle and the slowest worker at the end of the backward pass."""
    ready: float
    """Seconds from the beginning of the step until the last gradient is ready on the slowest worker."""
    predicted: float
    """Predicted seconds from there to the end of the exchange, with the default."""
    measured: float | None
    parts: int
    """Number of parts of the default."""
    refused: int
    """Number of proposals that were not tried, as the model predicts that they are slower."""
    tried: Sequence[Mapping[str, Any]]
    """The candidates, as in `tuning.account.candidates`."""
    settings: Mapping[str, Any]
    """The settings that were taken and differ from the default."""
    why: Sequence[str]
    """Three sentences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shrunk(Row):
    """The size of a model that is made smaller (`quorate compare --shrink`); the first living worker writes it."""

    kind = "shrunk"
    step: int
    time: float
    optimizer: str
    moment: str
    """"before" the first step that makes it smaller, "smaller" after each, "undone" after a guard, or the "end"."""
    change: str
    """The step that makes it smaller, in the words of the command line."""
    parameters: int
    """Trained numbers that are kept."""
    vector_bytes: int
    """Bytes of these in a vector, without a header."""
    file_bytes: int | None = None
    """Bytes of the packed file; before the first step and at the end only."""
    operations: float | None = None
    """Multiplications and additions of a forward pass that involve kept weights, for the first batch."""
    forward: float | None = None
    """Seconds of a forward pass on that batch, by the wall clock: the fastest of several."""
    backward: float | None = None
    """Seconds of a backward pass."""
    loss: float | None = None
    """Mean training loss of all workers, where a guard compares it."""
