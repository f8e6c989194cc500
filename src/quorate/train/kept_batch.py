"""A batch that stays as it was after a death: the gradients of one worker's micro-batches, until all are in a sum.

The gradient of a step is the sum of the gradients of all B micro-batches over B, whoever has computed them. Between two
micro-batches of a step a worker's sum is put aside, and `.grad` is None, so that whatever a script does there (clip,
clear, step) does nothing. With its last micro-batch a worker forms the sum of all workers. If that lacks a dead worker,
it is formed again: by workers that compute some of the missing micro-batches after these, by the others at once.

Cost: the sums of a death. Gradients are put aside by reference.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.data.step_division import StepDivision
from quorate.means.fault_tolerant_sum import FaultTolerantSum
from quorate.means.means import MeansOfAll
from quorate.replica.replica import Replica
from quorate.rounds.log import Round

NO_PASS = (
    'batch="kept" needs one backward pass for each batch of quorate.loader, over a dataset with a length: '
    "add up the losses of a batch, and iterate over the loader"
)


class MicroBatches(ABC):
    """The micro-batches of one worker in the current step. It takes the place of `train.step_weight.StepWeight`."""

    varies = True
    unit = 1.0
    """`.grad` is a sum, in units of the gradient of one micro-batch."""

    def __init__(
        self,
        division: StepDivision,
        replica: Replica,
        means: Callable[[], MeansOfAll],
        progress: Callable[[], float],
    ) -> None:
        """`progress` returns the synchronous steps of rounds, up to this worker's replica."""
        self.division, self._replica, self._means, self._progress = division, replica, means, progress
        self.is_complete = False
        """Whether all micro-batches of a step are in a sum."""
        self._has_updated = True
        self._aside: list[Tensor | None] | None = None
        self._seen = 0
        """How many micro-batches of this step have had their backward pass."""

    @property
    def is_inside(self) -> bool:
        """Whether this worker has begun a step that not all workers have computed."""
        return self.division.is_inside

    @property
    def has_updated(self) -> bool:
        """Whether the newest call of `step` has made an update, so that all workers may meet."""
        self.division.may_meet = self._has_updated and not self.is_inside
        return self._has_updated

    def of_step(self) -> float:
        """Return the weight of this worker's sum of gradients: the number of its micro-batches so far."""
        return float(self.division.taken)

    @property
    def full(self) -> float:
        """The weight of a step of a worker while all live."""
        return self.division.total / self.division.workers or float(self.division.each)

    def pass_begins(self) -> None:
        """Begin a backward pass: `.grad` is the sum of this step's micro-batches before it."""
        aside, self._aside = self._aside, None
        for p, before in zip(self._replica.all_trained, aside or (), strict=False):
            if before is not None:
                p.grad = before if p.grad is None else before + p.grad

    @abstractmethod
    def pass_ended(self) -> bool:
        """End a backward pass; return whether this worker has computed all of its micro-batches.

        Raises `ConfigurationError` where a batch has two backward passes, or none of the loader was taken before.
        """

    @abstractmethod
    def agree(self, agree: Callable[[], None]) -> None:
        """Form sums by `agree` until one has all micro-batches of the step, or this worker has to compute more."""

    @abstractmethod
    def steps(self, closure: object) -> bool:
        """Return whether `optimizer.step(closure)` makes an update now, or agrees on one.

        Raises `ConfigurationError` for a closure, and for scaled gradients.
        """

    def _check_call(self, closure: object) -> None:
        if closure is not None:
            raise ConfigurationError('batch="kept" agrees in backward passes; call step() without a closure')
        if self._replica.is_scaled:
            raise ConfigurationError(
                'batch="kept" cannot be combined with a GradScaler, whose scale changes with each batch of a worker; '
                "train in bfloat16, which needs none"
            )

    def _note_pass(self) -> None:
        if self.division.taken == self._seen:
            raise ConfigurationError(NO_PASS)
        self._seen = self.division.taken

    def _put_aside(self) -> None:
        if self.is_complete or not self.division.taken:
            return
        self._aside = [p.grad for p in self._replica.all_trained]
        self._drop()

    def _drop(self) -> None:
        for p in self._replica.all_trained:
            p.grad = None


class KeptBatch(MicroBatches):
    """The micro-batches of steps that are means of all workers, which backward passes form.

    `is_complete` means that `.grad` is the mean of all micro-batches of a step, which is not made yet.
    """

    _holds_back = False

    def pass_begins(self) -> None:
        super().pass_begins()
        self._holds_back = self.is_complete or self.division.next is not None
        self._means().ready.paused += self._holds_back

    def pass_ended(self) -> bool:
        ready = self._means().ready
        ready.paused -= self._holds_back
        if not ready.fired:
            self._put_aside()
            return False
        self._note_pass()
        if self.division.next is None:
            return True
        ready.put_off()
        self._put_aside()
        return False

    def agree(self, agree: Callable[[], None]) -> None:
        while True:
            self._means().ready.touched = [p.grad is not None for p in self._replica.trained]
            agree()
            if self.is_complete:
                self._seen = 0
                return
            if self.division.next is not None:
                self._put_aside()
                return
            self._means().gradient_begins(self.of_step(), self.unit)

    def take_sum(self) -> bool:
        """Note the newest sum, on all workers; return whether it has all micro-batches of the step.

        Raises `ConfigurationError` where a worker took part without having computed its micro-batches.
        """
        means = self._means()
        assert isinstance(means.reducer, FaultTolerantSum), "a batch is kept where sums outlive deaths"
        ranks = means.reducer.ranks
        expected = self.division.count(ranks)
        if means.total != expected:
            raise ConfigurationError(
                f"a step has gradients of {means.total:g} micro-batches, where {expected} were assigned: all workers "
                "train on quorate.loader to the end, with one backward pass and optimizer.step() for each batch"
            )
        self.is_complete = self.division.summed(ranks)
        return self.is_complete

    def steps(self, closure: object) -> bool:
        self._check_call(closure)
        self._has_updated, self.is_complete = self.is_complete, False
        return self._has_updated


class KeptInRounds(MicroBatches):
    """Implements `quorums.kept_rounds.KeptStep` for one worker, in rounds of all, with whole models and in shards.

    A worker contributes the gradients of its micro-batches of a step together. A round without a dead worker lacks that
    worker's: then those that live compute them, and only them, and contribute to the next round. A worker that was
    silent for longer than `grace` loses its share of the step as well, and gets one in the next.

    `is_complete` means that the newest round was the last one of a step.
    """

    partial: Round | None = None
    place = math.inf
    _is_asked = True
    """Whether the script makes the steps, and steps its schedulers after them."""
    most = 0
    """The most workers there may ever be."""

    def pass_ended(self) -> bool:
        ready = self._means().ready
        has_fired = ready.fired
        ready.put_off()
        self.is_complete = False
        if has_fired:
            self._note_pass()
        if not has_fired or self.division.next is not None:
            self._put_aside()
            return False
        grads = [local(p.grad) for p in self._replica.all_trained if p.grad is not None]
        torch._foreach_mul_(grads, 1.0 / self.division.taken)
        return True

    def steps(self, closure: object) -> bool:
        self._check_call(closure)
        if not self.division.held or self.division.taken != self._seen:
            raise ConfigurationError(NO_PASS)
        self._has_updated = False
        return self.division.next is None

    def agree(self, agree: Callable[[], None]) -> None:
        if not self.division.taken:
            self._drop()
        self.is_complete = False
        agree()
        while self.division.held and self.division.next is None and not self.is_complete:
            self._drop()
            agree()
        self._has_updated = self.is_complete
        if self.is_step:
            self.place = self._progress()
        if not self.is_complete:
            self._drop()

    @property
    def is_inside(self) -> bool:
        return self.division.is_inside or not self._has_updated

    @property
    def is_step(self) -> bool:
        """Whether the newest call of `agree` has ended a step of the script."""
        return self.is_complete and self._is_asked

    def takes_part_by(self, step: Callable[[None], object]) -> None:
        """Let this worker make the steps in which it has no micro-batch by `step`, before its next batch."""

        def take_part() -> None:
            self._is_asked = False
            try:
                while self.division.held and self.division.next is None:
                    step(None)
            finally:
                self._is_asked = True

        self.division.idle.append(take_part)

    def summed(self, round: Round) -> bool:
        members = [rank for rank in range(self.most) if rank not in round.missing]
        if round.is_pause and not round.contributors and members == list(self.division.members):
            return False  # nobody has computed anything that misses it
        self._seen = 0
        self.is_complete = self.division.added(round.contributors, members)
        return self.is_complete

    def captured(self) -> dict[str, Any]:
        return self.division.captured()

    def adopt(self, place: dict[str, Any]) -> None:
        self._seen, self._aside = 0, None
        self.division.adopt(place)
        self.place = 0.0
        self.is_complete = not self.division.is_partial
