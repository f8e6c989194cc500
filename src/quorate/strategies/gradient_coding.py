"""Gradient coding: several workers compute each batch, so the exact mean is available without the stragglers.

Idea: Every batch is computed by s + 1 workers. As soon as all but s have sent their result the mean of all batches is
decoded from it: no part of the step is lost, stale, or approximated. With the repetition code groups of s + 1 workers
compute one batch each, and one worker of each group is enough. With the cyclic code each of P workers computes s + 1
batches, its own and those of the ranks behind it, and any P - s combinations are enough. A late worker continues with
the batch that the others are working on. A round with a quorum of P - s forms each step.

Cost: Each batch is computed s + 1 times. Per step and worker with d parameters: d numbers to the leading
worker and d from it, after the backward pass; the leading worker holds up to P vectors. With the cyclic code one step
of the optimizer takes s + 1 calls of `step`, and the last one updates; a vector is kept between them.

When it loses: Where no worker is late: it takes s + 1 times as long. Where more than s are late, all wait for them.
`quorum` with `late="drop"` computes each batch once and skips late gradients, which is often as good. With the cyclic
code the mean is exact up to rounding times the code's weights, which grow with P and s (1e-6 for 12 workers and s = 2).

Honesty:
- worker death: goes on; the mean stays exact with up to `s` dead in a group (with the cyclic code: among all); with
  more all stop, with an error
- pause: goes on; the others do not wait for it, unless `s` are late already
- slow worker: goes on; other workers compute its batches
- corrupt gradient: goes on; `on_nonfinite` reports one with NaN or infinity, with its worker, or ends the training. Any
  other one is decoded like the rest, and spreads to every worker
- resize: restarts; from a checkpoint at the end of an epoch, because the code depends on the number of workers
- resume: restarts; from a checkpoint at the end of an epoch, because batches follow from rounds within an epoch

Paper: Tandon, Lei, Dimakis and Karampatziakis, "Gradient coding: avoiding stragglers in distributed learning", ICML
2017: fractional repetition (section 3.1) and cyclic codes (3.2; ours is `aggregation.cyclic_code`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from quorate.core.redundancy import Redundancy
from quorate.core.strategy import Worker
from quorate.rounds.combining import ByCode
from quorate.strategies import register
from quorate.strategies.parts.coded_steps import CodedSteps, check_redundancy, cyclic_among, in_groups
from quorate.strategies.parts.round_settings import RoundSettings


@register("gradient-coding")
@dataclass(frozen=True, kw_only=True)
class GradientCoding(RoundSettings):
    """Several workers compute each batch, so that the exact mean does not need the late workers."""

    meets = "rounds"

    s: int | None = None
    """Number of late workers that a step does not wait for. By default 1 if there are enough workers."""
    code: Literal["repetition", "cyclic"] = "repetition"
    """Whether the workers of a group compute the same batch, or every worker computes several batches."""
    max_staleness: int = 64
    """Maximum number of rounds by which the others may be ahead of a live worker."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_redundancy(self.s)

    @property
    def lets_join(self) -> bool:
        return False

    @property
    def redundancy(self) -> Callable[[int], Redundancy]:
        make = in_groups if self.code == "repetition" else cyclic_among
        return partial(make, "gradient-coding", self.s, 1, by_round=True)

    def start(self, worker: Worker) -> CodedSteps:
        known = self.redundancy(worker.size)
        worker.agree_on_rounds(
            wait_for=worker.size - known.wrong,
            late="drop",
            max_staleness=self.max_staleness,
            divide_by="arrived",
            momentum="common",
            **self.bounds,
            combine=ByCode(known, worker.size),
        )
        return CodedSteps()

    def step(self, worker: Worker) -> None:
        state: CodedSteps = worker.state
        known = self.redundancy(worker.size)
        code = worker.gradient if known.groups else state.added(worker, known)
        if code is None:
            return
        updates = 0
        worker.rounds.contribute(code, weight=1.0).wait()
        for result in worker.rounds.completed():
            worker.update(result.mean, options=result.options)
            updates += 1
        state.saw(updates)
