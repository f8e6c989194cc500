"""DETOX: groups compute the same batches and vote; a robust rule combines the gradients that the groups elect.

Idea: Each group of 2 s + 1 workers computes the same batch, and elects the gradient that more than half of the group
have sent. So a wrong gradient passes only if s + 1 workers of one group agree on it. A rule that tolerates `f` wrong
vectors (`reduce`, by default the median) forms one gradient from the elected ones. These are few, so the rule is cheap,
and few of them are wrong. With `reduce="bucketing"` it is a median of means, as in the paper.

Cost: Each batch is computed 2 s + 1 times. The bytes are those of an all-reduce, and parts overlap with
the backward pass; two vectors of memory.

When it loses: Where at most s workers of each group are wrong: `draco` gives the mean itself. Where a computation is
not bitwise equal on all workers of a group: there is no majority, and the group is left out. Where q workers may be
wrong at any ranks: up to q / (s + 1) groups are wrong, and `f` has to be as large.

Honesty:
- worker death: stops cleanly; the others leave within a second, with an error that names it; or goes on, with
  `on_death="continue"`: the remaining workers of its group vote
- pause: goes on; all wait until the worker wakes up, or stop when the time limit of waits (600 seconds) is over
- slow worker: goes on; everyone waits for it in every step
- corrupt gradient: goes on; up to `s` wrong workers of a group have no effect, and `f` groups with more do little harm
- resize: goes on; groups are formed again for the new number of workers
- resume: goes on; with the same bits as an uninterrupted run, at the same number of workers

Paper: Rajput, Wang, Charles and Papailiopoulos, "DETOX: a redundancy-based framework for faster and more robust
gradient aggregation", NeurIPS 2019. Groups here are of neighbouring ranks; in the paper they are drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from quorate.core.redundancy import Redundancy
from quorate.core.strategy import Strategy, Worker
from quorate.strategies import register
from quorate.strategies.parts.coded_steps import check_redundancy, in_groups


@register("detox")
@dataclass(frozen=True, kw_only=True)
class DETOX(Strategy):
    """Groups compute the same batch and vote; a robust rule combines the winners of the votes."""

    compresses = "gradients"
    reduction: ClassVar[Mapping[str, object]] = {"reduce": "median"}

    s: int | None = None
    """Number of faulty workers in each group that its vote tolerates. By default 1 if there are enough workers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_redundancy(self.s)

    @property
    def lets_join(self) -> bool:
        return False

    @property
    def redundancy(self) -> Callable[[int], Redundancy]:
        return partial(in_groups, "detox", self.s, 2, decides="those that can")

    def backward(self, worker: Worker) -> None:
        worker.gradient = worker.means.of_gradient().wait()  # begun during backward

    def step(self, worker: Worker) -> None:
        worker.update()
