"""A batch that stays as it was after a death, in rounds of all workers, with whole models and with replicas in shards.

A worker contributes the gradients of its micro-batches of a step together. A round without a dead worker lacks that
worker's: then those that live compute them, and only them, and contribute to the next round (`quorums.kept_step`).
A worker that was silent for longer than `grace` loses its share of the step as well, and gets one in the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import local
from quorate.rounds.log import Round
from quorate.train.kept_batch import NO_PASS, MicroBatches


class KeptInRounds(MicroBatches):
    """Implements `quorums.kept_step.KeptStep` for one worker.

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
