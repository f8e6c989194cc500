"""Rounds with a quorum: a step is taken when enough workers have a gradient; nobody waits for the slowest.

Idea: A worker that has a gradient calls for a round. As soon as `wait_for` workers have called, all pending gradients
are summed, and all workers apply the sum, in the same order and with the same bits. A late worker misses the round: its
gradient is not lost but added to the next round, one or more rounds stale. If the optimizer has momentum or moments,
each worker keeps those of its own gradients (`momentum`). `wait_for` 1 is eager-SGD's solo, "majority" any majority,
and "all" plain synchronous SGD. "designated" is eager-SGD's published majority: an initiator drawn for each round.
`late="drop"` drops late gradients, as with backup workers; `max_staleness` bounds how far the others may run ahead of a
worker that is alive.

Cost: Per round with P workers, k of which contribute, and d parameters: k d numbers to the leading worker and (P - 1) d
from it, after the backward pass. Each worker also sends three small messages. Memory: one flat copy of the gradient for
each pending version, and the results that a slow worker has not applied yet. Large gradients of SGD without momentum
are such a copy themselves, if the number of workers is a power of two.

When it loses: Where all workers are equally fast: late gradients are more stale than necessary, and the exchange does
not overlap with the backward pass. Under severe imbalance with a small quorum, fresh gradients are few and stale ones
many: accuracy suffers (60.6 % against 69.7 % for solo and majority on UCF101 in the paper). At learning rates where
synchronous SGD is only just stable. If a worker must see its own newest gradient in the parameters ("read my writes",
which parameter servers with bounded staleness promise). A worker that was too late for a round continues immediately,
on parameters without its gradient. With `wait_for="all"` that does not happen.

Honesty:
- worker death: goes on; within a second the others form rounds without it; what it had not sent is lost, or computed by
  them (`batch="kept"`); with `on_death="stop"` all stop
- pause: goes on; after `grace` the others go on without it, and it catches up from the log or from a copy of a replica
- slow worker: goes on; its gradients come late and count, within `max_staleness`
- corrupt gradient: goes on; a gradient with NaN or infinity is reported with its worker, or ends the training
  (`on_nonfinite`); any other one is added like a correct one
- resize: goes on; pending gradients of the old workers are distributed over the new ones, and so is the rest of the
  epoch
- resume: goes on; pending gradients stay pending, and every gradient counts once

Paper: Li, Ben-Nun, Di Girolamo, Alistarh, Hoefler, "Taming unbalanced training workloads in deep learning with partial
collective operations", PPoPP 2020 (eager-SGD: solo and majority); Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting
distributed synchronous SGD", 2016 (backup workers); Ho et al., "More effective distributed ML via a stale synchronous
parallel parameter server", NIPS 2013 (bounded staleness); Hakimi, Barkai, Gabel, Schuster, "Taming momentum in a
distributed asynchronous environment", 2019 (momentum of workers, with SGD); arXiv 2606.30634, 2026 (`correct`).
Ordered rounds in place of an overwritten receive buffer, and calls in place of step numbers, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Worker
from quorate.strategies import register
from quorate.strategies.parts.micro_batches import MicroBatches
from quorate.strategies.parts.round_settings import RoundSettings


@register("quorum")
@dataclass(frozen=True, kw_only=True)
class Quorum(RoundSettings, MicroBatches):
    """A step is taken when enough workers have a gradient; late gradients are added to a later step."""

    meets = "rounds"
    compresses = "gradients"
    _sparse_gradients = "rows"

    wait_for: int | float | Literal["all", "majority", "designated"] = "majority"
    """How many workers must have a gradient before a round starts: a number, a share of the workers, "majority", "all",
    or "designated", which is one worker drawn for each round."""
    late: Literal["carry", "drop", "replace"] = "carry"
    """Treatment of a gradient that misses its round: it is added to the next round, dropped, or replaced by the
    worker's newest gradient."""
    late_weight: Literal["full", "falling"] = "full"
    """Weight of a late gradient: 1, or 1 / (1 + staleness)."""
    max_staleness: int = 16
    """Maximum number of rounds by which the others may be ahead of a live worker."""
    divide_by: Literal["world", "arrived"] = "world"
    """Divisor of the sum of a round: the number of live workers, or the total weight that has arrived."""
    clip_norm: float | None = None
    """Maximum norm of the mean of a round; larger means are clipped. By default means are not clipped."""
    momentum: Literal["auto", "worker", "common"] = "auto"
    """Place of the momentum: on each worker, or in the shared optimizer; "auto": on each worker if gradients may be
    late."""
    overlap: bool = False
    """Whether a step returns immediately, so that a later step applies its round."""
    correct: Literal["delay"] | None = None
    """With `overlap`, "delay" repeats each step of the optimizer as far as it differs from the last one, since its
    gradients are a round old. The shared optimizer keeps the momentum then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap and self.max_staleness < 1:
            raise ConfigurationError(
                "overlap makes every gradient at least one round stale; max_staleness is at least 1"
            )
        if self.overlap and self.late == "drop":
            raise ConfigurationError(
                'overlap makes every gradient at least one round stale, and late="drop" drops it; choose one of them'
            )
        if self.correct not in (None, "delay"):
            raise ConfigurationError(f'correct={self.correct!r} is unknown; it must be "delay" or None')
        if self.correct and not self.overlap:
            raise ConfigurationError('correct="delay" is for gradients that are a round old; set overlap=True as well')
        if self.correct and self.momentum == "worker":
            raise ConfigurationError(
                'correct="delay" and momentum="worker" both correct the delay of gradients; leave one of them out'
            )

    @property
    def _keeps_batch(self) -> bool:
        return self.wait_for == "all" and not self.overlap and self.momentum != "worker"

    @property
    def acts_on_pieces(self) -> bool:
        return True

    def start(self, worker: Worker) -> None:
        worker.agree_on_rounds(
            wait_for=self.wait_for,
            late=self.late,
            late_weight=self.late_weight,
            max_staleness=self.max_staleness,
            divide_by=self.divide_by,
            clip_norm=self.clip_norm,
            momentum="common" if self.correct else self.momentum,
            correct=self.correct,
            **self.bounds,
        )

    def step(self, worker: Worker) -> None:
        version = worker.rounds.standing.version
        if self.overlap:
            self._update(worker)  # first, so that this step calls for the next round
        contribution = worker.rounds.contribute(waits=not self.overlap, version=version)
        if not self.overlap:
            contribution.wait()
            self._update(worker)

    def _update(self, worker: Worker) -> None:
        for result in worker.rounds.completed():
            worker.update(result.mean, options=result.options)
