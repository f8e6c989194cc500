"""The schema of the `summary.json` of a training that was run with several numbers of workers.

A value that is not known is null, never 0. Times are seconds.
"""

from __future__ import annotations

from typing import Literal

from quorate.report.schema_parts import Part

FORMAT = 1
"""Rises when a field changes its meaning or goes away."""
Regime = Literal["weak", "strong"]
"""What stays as workers are added: `weak`, the batch of each worker; `strong`, the batch of all together."""
Limit = Literal["computing", "waiting", "wire", "batch"]
"""What keeps a number of workers from being as many times as fast."""


class ScalingRow(Part):
    """One number of workers. What is compared is compared with the fewest workers of the same regime."""

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
    """Of one pass."""
    passes: float | None
    """To the target."""
    target_seconds: float | None
    """`pass_seconds` times `passes`."""
    time_speedup: float | None
    """Time per pass with the fewest workers over that with these."""
    pass_speedup: float | None
    """Passes to the target with the fewest over those with these: below 1 where a larger batch needs more."""
    speedup: float | None
    """The product of both."""
    efficiency: float | None
    """The speed-up, over how many times as many workers there are; of the time alone, where passes are not known."""
    step: dict[str, float]
    """Mean seconds of a step by what they went into: `compute` (and all that a worker does by itself), `waiting` (for
    others), `communication` (bytes that move); empty where it is not known."""
    losses: dict[Limit, float]
    """Which share of its time this number of workers loses to what, against the fewest."""
    limit: Limit | None
    """The greatest of these; null where all are below a tenth."""
    worker_seconds: float | None
    """Workers times `target_seconds` (of one pass, where passes are not known)."""
    cost: float | None
    """Of these, by the price."""


class ScalingSummary(Part):
    """All of it."""

    format: int = FORMAT
    title: str
    world: Literal["real", "virtual"]
    strategy: str
    verdict: str
    """One sentence."""
    warnings: tuple[str, ...]
    target: str | None
    """What passes are counted to, in words: `top1 0.93`."""
    pass_examples: float
    """Examples of a pass."""
    pass_words: str
    """What a pass is."""
    price: float | None
    """Of a worker and hour."""
    rows: tuple[ScalingRow, ...]
    """Regime by regime, in order of workers."""
    command: tuple[str, ...]
