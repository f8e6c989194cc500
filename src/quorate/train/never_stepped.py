"""Optimizers that nobody expects: one that steps before any is distributed, and a distributed one that never steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.data.context import DataContext
from quorate.observe.signatures import Sample
from quorate.observe.step_observer import NEVER, Phase, StepObserver
from quorate.replica.plain_step import has_gradient
from quorate.train.loop import Loop
from quorate.train.worker import StrategyWorker
from quorate.wire import current
from quorate.wire.current import Place


class Undistributed:
    """The optimizers of one worker that step before any is distributed, in a run that was asked for a strategy.

    Cost: a call before each step of an optimizer until one is distributed.
    """

    def __init__(self) -> None:
        self._hook: Any = None

    def watch(self, place: Place, asked: str) -> None:
        """Say it once where an optimizer steps, and what was `asked` for is not used."""
        has_said = False

        def look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            nonlocal has_said
            if has_said or self._hook is None or current.place() is not place:
                return
            has_said = True
            tell(
                f"quorate: rank {place.wire.rank}: {type(optimizer).__name__} steps, and no optimizer was distributed; "
                f"{asked} has no effect, and workers train apart: call quorate.distribute(optimizer, model) first\n"
            )

        self._hook = register_optimizer_step_pre_hook(look)
        place.hooks.append(self._hook)

    def close(self) -> None:
        """An optimizer was distributed."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


_TOLD_AFTER = 10
_RAISED_AFTER = 5
_REFUSED_AFTER = 2
"""Updates by other code; a first one may be a checkpoint that is loaded."""
_COMPARED_AFTER = 6
"""Batches, or calls such as `world.mean`, before replicas are first compared, without a backward pass."""
_MEETINGS = "calls of world.mean() or the like"


class NeverStepped(StepObserver):
    """Counts how often the parameters of `worker` change after a backward pass without a step.

    Loops without backward passes (zeroth-order updates) are compared among workers after 6, 12, 24 batches and so on,
    and after as many calls such as `world.mean`: equal replicas are correct. Different ones end the training at the
    next batch, and are reported at such a call, as a script may have replaced parameters for a moment there.

    Where gradients are agreed on in the backward pass, updates by other code may be the same on all workers: they are
    reported. Elsewhere they are each worker's own, and end the training after a few, also where another optimizer took
    the place of the distributed one after some steps. Cost: with every backward pass before the first step, and with
    each further one between two steps, a pass over the parameters' version counters. Before the first step a sample of
    their numbers is read too, if gradients are not agreed on in it. Each comparison is a pass over the parameters, and
    a message to the board.
    """

    phase = Phase.CHECK

    def __init__(self, worker: StrategyWorker, context: DataContext, loops: Callable[[], Sequence[Loop]]) -> None:
        """`loops` returns those of all optimizers of the worker."""
        self._worker, self._context, self._loops, self._updates = worker, context, loops, 0
        self._step = self._passes = self._most = 0
        """The newest step, the backward passes behind it (without the first), and the most of these in a step."""
        self._versions: list[int] | None = None
        """Versions of the parameters after the newest backward pass with gradients, and perhaps a checksum."""
        self._counts = Counter[str]()
        """Batches, and calls that bring workers together, without a backward pass or a step."""
        has_replicas = worker.wire.size > 1 and worker.digests.compares and worker.strategy.replicas != "shared"
        units = {"batches": context.boundaries, _MEETINGS: context.meetings} if has_replicas else {}
        self._looks = [(callbacks, partial(self._look, unit)) for unit, callbacks in units.items()]
        """Lists of callbacks, each with the callback of this object that it holds until the first backward pass."""
        for callbacks, look in self._looks:
            callbacks.append(look)

    def _look(self, unit: str) -> None:
        """Count a batch or a call. Raises `Diverged` if replicas are compared now, and differ."""
        worker = self._worker
        if worker.step or worker.finished or self._context.is_evaluating:
            return
        count = self._counts[unit] = self._counts[unit] + 1
        times, rest = divmod(count, _COMPARED_AFTER)
        if rest or times & (times - 1) or any(loop.step for loop in self._loops()):
            return
        worker.digests.look_unstepped(
            f"{count} {unit}",
            f"step() of the distributed {worker.replica.plain.__name__} was never called in {count} {unit}, and the "
            "script updates parameters by itself. Make every update of numbers averaged by world.mean(), the same on "
            "all workers, or call step()",
            tells=unit == _MEETINGS,
        )

    def backward_begins(self) -> None:
        """Report updates by other code once there are enough of them, or raise `ConfigurationError`."""
        while self._looks:
            callbacks, look = self._looks.pop()
            callbacks.remove(look)
        if self._worker.step:
            self._look_behind_steps()
            return
        self._passes += 1
        self._count()
        if self._updates >= _RAISED_AFTER and not self._worker.agrees_in_backward:
            raise ConfigurationError(self._sentence())
        if self._updates == _TOLD_AFTER and self._versions is not None:
            tell(f"quorate: rank {self._worker.rank}: {self._sentence()}\n")
        self._versions = None

    def backward_ended(self) -> None:
        if self._worker.step and self._passes:
            self._versions = [p._version for p in self._worker.replica.all_trained]
        if self._worker.step == 0 and has_gradient(self._worker.replica.all_trained):
            self._versions = self._now()

    def _look_behind_steps(self) -> None:
        """Count updates by other code since the newest step, as by an optimizer that took the place of this one.

        Raises `ConfigurationError` if there are many more than backward passes from step to step until now.
        """
        worker, before, self._versions = self._worker, self._versions, None
        if worker.agrees_in_backward or worker.finished or worker.strategy.replicas == "shared":
            self.due = NEVER
            return
        if worker.step != self._step:
            self._step, self._most, self._passes, self._updates = worker.step, max(self._most, self._passes), 0, 0
            return
        self._passes += 1
        is_updated = before is not None and before != [p._version for p in worker.replica.all_trained]
        if is_updated and not self._is_of_another_loop():
            self._updates += 1
        if self._updates > 2 * self._most + _RAISED_AFTER:
            raise ConfigurationError(self._sentence())

    def check(self) -> None:
        """Raise `ConfigurationError` for updates by other code at the end of the training, `Diverged` for different
        replicas."""
        worker = self._worker
        if worker.finished or worker.step:
            return
        self._count()
        if self._updates >= _REFUSED_AFTER:
            raise ConfigurationError(self._sentence())
        if worker.strategy.replicas != "shared" and worker.updates == 0 and worker.wire.size > 1:
            worker.digests.look_unstepped()

    def _now(self) -> list[int]:
        trained = self._worker.replica.all_trained
        checksums = [] if self._worker.agrees_in_backward else [Sample(trained).checksum]
        return [p._version for p in trained] + checksums

    def _count(self) -> None:
        worker = self._worker
        if worker.step or self._versions is None or self._versions == self._now():
            return
        if not self._is_of_another_loop():
            self._updates += 1

    def _is_of_another_loop(self) -> bool:
        """Return whether another distributed optimizer steps some of the parameters."""
        own_ids = set(map(id, self._worker.replica.every))
        others = (loop for loop in self._loops() if loop.worker is not self._worker and loop.step)
        return any(id(p) in own_ids for loop in others for p in loop.replica.every)

    def _sentence(self) -> str:
        kind, step = self._worker.replica.plain.__name__, self._worker.step
        since = f"not called after step {step}" if step else "never called"
        return (
            f"parameters of the distributed {kind} were updated after {self._updates} backward passes, and its step() "
            f"was {since}, so workers train apart. Give quorate.distribute the optimizer that your loop steps, or "
            "let the one that wraps it call its step(), or call step() in place of an update by hand"
        )
