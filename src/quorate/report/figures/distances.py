"""How far the replicas of a run were from their mean, at every evaluation, where they differ."""

from __future__ import annotations

import math

from quorate.report.reading.run import RunRecords


def distances_of(run: RunRecords) -> list[tuple[float, float, float]]:
    """Points (time, seconds of training, distance), one for each evaluation of the first optimizer.

    The distance is the root mean square over the replicas, as a share of the norm of their mean (consensus distance).
    Evaluations of which not all ranks have left a row are left out.
    """
    ranks = [one for one in run.ranks if one.steps]
    first = ranks[0].distributed.get("optimizer") if ranks else None
    columns = [[row for row in one.distances if first is None or row.optimizer == first] for one in ranks]
    points = []
    for rows in zip(*columns, strict=False) if len(ranks) == run.size else ():
        norm = rows[0].norm
        if norm > 0.0:
            far = math.sqrt(sum(row.distance**2 for row in rows) / len(rows)) / norm
            points.append((rows[0].time, ranks[0].training_seconds(rows[0].time, run.begin), far))
    return points
