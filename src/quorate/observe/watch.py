"""Optimizers that are not distributed: records and injected lateness for a baseline, and for a single worker."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from quorate.observe.backward import observe_backward
from quorate.observe.pacing import Injected
from quorate.observe.step_observer import Phase, StepObserver
from quorate.observe.step_times import StepTimer
from quorate.wire.current import Place
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.metered import Meter


class Watch(StepObserver):
    """Measures the time of a plain optimizer's steps by hooks around `backward` and `step`.

    With `model`, other code (torch DDP) sums gradients during the backward pass. The worker is at the meeting point
    when its own last gradient is ready, and the remaining time of the pass is waiting. The bytes are those of one
    all-reduce of every gradient. Cost then: one call of a Python function per parameter.
    """

    phase = Phase.TRAIN

    def __init__(self, optimizer: Optimizer, place: Place, name: str, model: Module | None = None) -> None:
        self._meter = Meter()
        self.timer = StepTimer(place, name, self._meter)
        self._pacing = place.context(Injected).pacing
        self._optimizer, self._size = optimizer, place.wire.size
        self._begun = self._ready = 0.0
        self._nbytes = 0
        if model is not None:
            for p in model.parameters():
                if p.requires_grad:
                    self._nbytes += p.numel() * p.element_size()
                    p.register_post_accumulate_grad_hook(self._note)
        self._is_exchanged = model is not None
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)
        observe_backward(place).add(self)

    def _note(self, parameter: Tensor) -> None:
        self._ready = self.timer.clock.now()

    def forward_ended(self, losses: Any) -> None:
        """Note the losses, and hold the worker back if it is to be late."""
        self.timer.saw(losses)
        if self._pacing is not None:
            self._pacing.hold(self.timer)

    def backward_ended(self) -> None:
        """Note the end of the exchange, if gradients are summed by other code."""
        if self._is_exchanged:
            self.timer.arrived(self._ready)
            self.timer.spent("wait", self.timer.clock.now() - self._ready)
            both = all_reduce_bytes(self._nbytes, self._size)
            self._meter.sent("all_reduce", both, 2 * (self._size - 1))
            self._meter.received("all_reduce", both, 2 * (self._size - 1))
            self.timer.contributors = self._size

    def _before(self, *_: Any) -> None:
        self.timer.arrived()
        self._begun = self.timer.clock.now()

    def _after(self, *_: Any) -> None:
        self.timer.spent("update", self.timer.clock.now() - self._begun)
        self.timer.rounds += 1
        self.timer.ended(is_scaled="found_inf" in self._optimizer.__dict__)
