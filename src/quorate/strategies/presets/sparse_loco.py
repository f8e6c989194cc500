"""SparseLoCo: local steps; only the largest numbers of an update are sent, in two bits each.

Idea: The strategy `diloco` with plain SGD in place of Nesterov momentum as the outer optimizer. A worker's update since
the last outer step is added to its error memory, times `error_decay` (0.95). The 64 largest numbers of each tile of 64
x 64 are sent, in 2 bits and an index of 12 (`compress="tiled-top-k"`); the rest stays in the memory. Every worker
decodes all updates, and shortens tensors that are longer than the median of the workers' (`clip_codes`). The common
point moves by `outer_rate` times their mean. The decaying memory acts as a momentum of the numbers that were not sent,
on each worker separately, and replaces the outer momentum. `compress` chooses another codec; with `compress="none"` and
`outer_rate=1` it is `local-sgd`.

Cost: As `diloco`, but for large matrices 0.219 bits a number, from every worker to every other. This is (P - 1) / 146
of a dense update every H steps, where a dense mean sends nearly 2. Vectors and small tensors are sent dense
(`dense_below`). No outer momentum; one vector for the error memory, and P decoded vectors of a part while it is summed.

When it loses: With many workers, because every code goes to all: from about 290 on, a dense mean sends less. With few
outer steps, because numbers that are not sent arrive late. For a number that is never among the largest and changes by
d in each period, the memory holds at most 20 d. In small models, where 64 of 4096 numbers are few. After 20 outer steps
of four workers the loss was 8 and 12 % above that of `diloco`. Few workers rarely send the same numbers and may need a
greater outer rate, there 6.4 and 1 (docs/benchmarks/late-workers.md). With workers of unequal speed and a period in
seconds, because longer updates are shortened.

Honesty:
- worker death: goes on; the next mean is over the remaining workers; the dead worker's steps since the last mean and
  its error memory are lost; with `on_death="stop"` all stop
- resize: goes on; from the mean of the old replicas; error memories are divided among the new workers, and their sum is
  preserved
- resume: goes on; every worker with its own replica and error memory

Paper: Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", 2025 (arXiv 2508.15706), after its
abstract and public code: tiles, bins, the decay of 0.95, the clip to the median norm, H = 30, and an outer rate of 0.6.
The rate is applied once, in the outer step; in that code it also scales the memory. The mean is over all workers, as in
the formula; in that code it is over those that have sent the number. Smaller tiles, and what stays dense, are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from quorate.strategies import register
from quorate.strategies.diloco import DiLoCo


@register("sparse-loco")
@dataclass(frozen=True, kw_only=True)
class SparseLoCo(DiLoCo):
    """Local steps that send only the largest changes, in two bits each."""

    reduction: ClassVar[Mapping[str, object]] = {"compress": "tiled-top-k", "error_decay": 0.95, "clip_codes": True}

    sync_every: int | str = 30
    """H, as in `local-sgd`, for each fragment."""
    outer_rate: float = 0.6
    outer_momentum: float = 0.0
