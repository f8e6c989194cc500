"""The parts of the schema of `summary.json` about models in pieces: stages, and layers computed together."""

from __future__ import annotations

from quorate.report.schema_parts import Part


class RankStages(Part):
    """One worker of a pipeline, in the mean over steps."""

    rank: int
    worker: int
    """Its place in the pipeline."""
    bubble: float
    """The share of a step in which it waited for other stages."""
    bytes_out: float
    """Bytes to other stages in a step."""
    bytes_in: float


class LayerTraffic(Part):
    """One layer that several workers compute together."""

    name: str
    bytes_out: int
    """Bytes that a worker sends for it in one forward and backward pass."""


class LayersSummary(Part):
    """The traffic of layers along the tensor axis, in the first run of an arm that ended well."""

    seed: int
    rank: int
    """The rank whose bytes these are."""
    tensor: int
    """Workers that compute layers together."""
    layers: tuple[LayerTraffic, ...]
    """The busiest first."""


class StagesSummary(Part):
    """The waiting of the workers of a pipeline for each other, in the first run of an arm that ended well."""

    seed: int
    schedule: str
    workers: int
    """Workers of a pipeline."""
    stages: int
    microbatches: int
    formula: float | None
    """The bubble of equal stages, by the published formula, if messages take no time."""
    ranks: tuple[RankStages, ...]
