"""A worker that runs a script with its model in pieces for some steps, and keeps how long their parts took.

What `quorate plan` starts on two workers, by `python -m quorate.planning.timing_in_pieces TOLD SCRIPT [ARGUMENT
...]`. TOLD is as of `stepping`; the answer, one JSON object, has median seconds of `outside`, `model` (forward),
`backward` and `update`, the same of the `processor`, and `fixed`, the shares of passes that one example takes as well.

The clock stops while a worker waits for an exchange: exchanges, and slower workers, are predicted separately.
"""

from __future__ import annotations

import gc
import time
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from quorate.core.errors import ConfigurationError
from quorate.launch.warm.measuring import blocks_by_name, model_of
from quorate.planning.stepping import Divisions, Task, leave, serve_tasks
from quorate.planning.timing import Timers, fixed_shares
from quorate.sharding.traffic import Traffic


class Working:
    """The seconds in which a worker does not wait for an exchange between the workers of its replica."""

    def __init__(self) -> None:
        self._waited = 0.0
        wait = Traffic.wait

        def counted(traffic: Traffic, work: Any, clock: Any) -> Any:
            begin = time.perf_counter()
            try:
                return wait(traffic, work, clock)
            finally:
                self._waited += time.perf_counter() - begin

        Traffic.wait = counted  # type: ignore[method-assign, assignment]

    def __call__(self) -> float:
        return time.perf_counter() - self._waited


class _Parts:
    def __init__(self, task: Task, rank: int) -> None:
        self._task, self._rank = task, rank
        self._divisions, self._working = Divisions(task.settings), Working()
        self._timer: Timers | None = None
        self._optimizer: Optimizer | None = None
        self._blocks: dict[str, Module] = {}

    def begins(self, optimizer: Optimizer, *_: object) -> None:
        if self._timer is not None and optimizer is self._optimizer:
            self._timer.steps_now()

    def ended(self, optimizer: Optimizer, *_: object) -> None:
        """A step has ended; the first optimizer that steps is the one that is looked at."""
        if self._timer is None:
            self._divisions.check()
            self._optimizer, self._timer = optimizer, self._timer_of(optimizer)
            return
        if optimizer is not self._optimizer:
            return
        self._timer.stepped()
        if len(self._timer.steps) == self._task.steps:
            of = self._timer
            fixed = fixed_shares(self._blocks, of.inputs, round(of.median("examples")))
            leave(self._task, self._rank, {**of.parts, "fixed": fixed, "processor": of.processor.parts})

    def _timer_of(self, optimizer: Optimizer) -> Timers:
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        model = model_of(trained, [x for x in gc.get_objects() if issubclass(type(x), Module)])
        if model is None:
            raise ConfigurationError("no module has all parameters of the optimizer, so its passes cannot be timed")
        if self._task.looks_at_blocks:
            self._blocks = blocks_by_name(model)
        return Timers(model, self._blocks, self._working)


def _begin(task: Task, rank: int) -> None:
    parts = _Parts(task, rank)
    register_optimizer_step_pre_hook(parts.begins)
    register_optimizer_step_post_hook(parts.ended)


if __name__ == "__main__":
    serve_tasks(_begin)
