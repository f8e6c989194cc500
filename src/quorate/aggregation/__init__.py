"""Rules that combine several vectors, some of them wrong, into one: one file per rule, each under one name; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from quorate.aggregation.rule import Rule

rules: Registry[type[Rule]] = Registry(
    "aggregation rule",
    {
        "bucketing": "quorate.aggregation.bucketing:Bucketing",
        "bulyan": "quorate.aggregation.bulyan:Bulyan",
        "centered-clipping": "quorate.aggregation.centered_clipping:CenteredClipping",
        "geometric-median": "quorate.aggregation.geometric_median:GeometricMedian",
        "krum": "quorate.aggregation.krum:Krum",
        "majority": "quorate.aggregation.majority:Majority",
        "mean": "quorate.aggregation.mean:Mean",
        "median": "quorate.aggregation.median:Median",
        "monna": "quorate.aggregation.monna:MoNNA",
        "multi-krum": "quorate.aggregation.multi_krum:MultiKrum",
        "nearest-neighbors": "quorate.aggregation.nearest_neighbors:NearestNeighbors",
        "trimmed-mean": "quorate.aggregation.trimmed_mean:TrimmedMean",
    },
)
register = rules.register
