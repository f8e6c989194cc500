"""The topics of the report, in order: the page, the summary, the Markdown and the data are built from this list."""

from __future__ import annotations

from typing import Any

from quorate.report.topic import Topic
from quorate.report.topics import (
    arrival,
    attention,
    exclusions,
    fairness,
    faults,
    joined,
    layers,
    memory,
    merges,
    noise,
    outer,
    quality,
    replicas,
    reproduce,
    rounds,
    scale,
    servers,
    shrink,
    stages,
    steps,
    table,
    timeline,
    tuning,
    verdict,
)

_MODULES = (
    verdict, scale, shrink, timeline, quality, table, fairness, noise, attention, exclusions, steps, tuning, arrival,
    rounds, servers, merges, outer, replicas, stages, layers, memory, faults, joined, reproduce,
)  # fmt: skip
TOPICS: tuple[Topic[Any, Any], ...] = tuple(module.TOPIC for module in _MODULES)
