"""The schema of the `summary.json` of a training that was run with several numbers of workers.

A value that is not known is null, never 0. Times are seconds.
"""

from __future__ import annotations

from typing import Literal

from quorate.report.schema_parts import Part

FORMAT = 1
"""Rises when a field changes its meaning or goes away."""
Regime = Literal["weak", "strong"]
"""The constant as workers are added: `weak`, the batch of each worker; `strong`, the batch of all together."""
Limit = Literal["computing", "waiting", "wire", "batch"]
"""The causes that keep a number of workers from being as many times as fast."""


class ScalingRow(Part):
    """One number of workers. Comparisons are with the fewest workers of the same regime."""

    regime: Regime
    workers: int
    is_simulated: bool
    """Whether times are simulated, and passes foreseen from the noise of gradients."""
    seeds: int
    """Runs that ended well."""
    batch: float | None
    """Examples of a step, of all workers."""
    examples_per_second: float | None
    pass_seconds: float | None
    """Seconds of one pass."""
    passes: float | None
    """Passes to the target."""
    target_seconds: float | None
    """`pass_seconds` times `passes`."""
    time_speedup: float | None
    """Time per pass with the fewest workers over that with these."""
    pass_speedup: float | None
    """Passes to the target with the fewest over those with these: below 1 where a larger batch needs more."""
    speedup: float | None
    """The product of both."""
    efficiency: float | None
    """The speed-up over the factor of workers; of the time alone, if passes are not known."""
    step: dict[str, float]
    """Mean seconds of a step by part: `compute` (and all that a worker does by itself), `waiting` (for others),
    `communication` (bytes that move); empty if it is not known."""
    losses: dict[Limit, float]
    """The shares of its time that this number of workers loses against the fewest, by cause."""
    limit: Limit | None
    """The greatest of these; null if all are below a tenth."""
    worker_seconds: float | None
    """Workers times `target_seconds` (of one pass, if passes are not known)."""
    cost: float | None
    """The price of these."""


class ScalingSummary(Part):
    """The summary of all numbers of workers."""

    format: int = FORMAT
    title: str
    world: Literal["real", "virtual"]
    strategy: str
    verdict: str
    """One sentence."""
    warnings: tuple[str, ...]
    target: str | None
    """The target of passes, in words: `top1 0.93`."""
    pass_examples: float
    """Examples of a pass."""
    pass_words: str
    """The meaning of a pass."""
    price: float | None
    """The price of a worker and hour."""
    rows: tuple[ScalingRow, ...]
    """Regime by regime, in order of workers."""
    command: tuple[str, ...]
