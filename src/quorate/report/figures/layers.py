"""The traffic of layers that several workers compute together."""

from __future__ import annotations

from quorate.report.reading.run import RunRecords
from quorate.report.schema_mesh import LayersSummary, LayerTraffic


def layers_of(run: RunRecords, seed: int) -> LayersSummary | None:
    """Return the traffic of the first rank that has recorded it, the busiest layer first; None without such a rank."""
    for rank in run.ranks:
        if rank.layers is not None:
            sent_bytes = rank.layers.sent.items()
            layers = [LayerTraffic(name=name, bytes_out=sent) for name, sent in sent_bytes]
            layers.sort(key=lambda layer: (-layer.bytes_out, layer.name))
            workers = rank.distributed.get("tensor") or 1
            return LayersSummary(seed=seed, rank=rank.rank, tensor=workers, layers=tuple(layers))
    return None
