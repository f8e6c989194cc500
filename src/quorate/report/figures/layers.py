"""What layers that several workers compute together send for it."""

from __future__ import annotations

from quorate.report.reading.run import RunRecords
from quorate.report.schema_mesh import LayersSummary, LayerTraffic


def layers_of(run: RunRecords, seed: int) -> LayersSummary | None:
    """Of the first rank that has said something of it, the busiest first; None where none has."""
    for one in run.ranks:
        if one.layers is not None:
            told = one.layers.sent.items()
            found = [LayerTraffic(name=name, bytes_out=sent) for name, sent in told]
            found.sort(key=lambda layer: (-layer.bytes_out, layer.name))
            workers = one.distributed.get("tensor") or 1
            return LayersSummary(seed=seed, rank=one.rank, tensor=workers, layers=tuple(found))
    return None
