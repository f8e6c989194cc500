"""A model that becomes smaller as the command line says: `quorate compare --shrink`, with any script.

`quorate.distribute` begins it. Steps that are due after a number of steps are made by an observer of steps. A script
that knows how long it trains calls `quorate.shrink.chosen(optimizer).reached(share)` for those at shares of the work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from quorate.checkpoint.participants import Distributed
from quorate.core.errors import CheckpointError, ConfigurationError
from quorate.core.telling import tell
from quorate.observe.seen_losses import SeenLosses
from quorate.observe.step_observer import NEVER, Observers, Phase, StepObserver
from quorate.observe.step_times import Timing
from quorate.records.choice_rows import Shrunk
from quorate.records.records import LateNumber
from quorate.replica.masks import masks_of
from quorate.replica.replica import trained_in_order
from quorate.shrink.choices import Choice, ClusterChoice, Event, LowRankChoice, PruneChoice, choices_from, events_of
from quorate.shrink.cluster import cluster
from quorate.shrink.low_rank import low_rank
from quorate.shrink.packed import pack
from quorate.shrink.pruning import Pruning, prune
from quorate.shrink.size import Inputs, Size, size_of, table
from quorate.shrink.snapshot import Snapshot
from quorate.shrink.weights import distributed_entry, loop_of
from quorate.train.pauses import at_the_mean, pause
from quorate.wire import current
from quorate.wire.current import Place

LOSSES = 20
"""Steps whose mean loss a guard compares."""
_NO_LOSSES = (
    "the guard of {kind} compares training losses, and {when} it no worker has called backward() on a number; leave "
    "guard out, or let some steps lie between"
)


class Shrinking(StepObserver):
    """The steps that make the model of one optimizer smaller, in their order; see `chosen`."""

    phase = Phase.RECORD

    def __init__(self, place: Place, entry: Distributed, text: str) -> None:
        self.optimizer, self._place, self._entry, self.text = entry.name, place, entry, text
        choices = choices_from(text)
        self._left: list[Event] = events_of(choices)
        self._in_steps = any(not choice.is_share for choice in choices)
        self._is_guarded = any(choice.guard is not None for choice in choices)
        self._prunings: dict[Choice, Pruning] = {}
        self._before: dict[Choice, Snapshot] = {}
        """By choice, what is put back if the loss has risen too much since its newest turn."""
        self._lowest: dict[Choice, float] = {}
        """By choice, the lowest loss before its turns, from which the guard counts."""
        self._losses: deque[float | LateNumber] = deque(maxlen=LOSSES)
        self._seen = SeenLosses()
        self._inputs: Inputs | None = None
        self.undone: list[str] = []
        """The steps that a guard has undone."""
        self.sizes: dict[str, Size] = {}
        """The size "before" and at the "end", on the first living worker."""
        self._look()

    def begin(self) -> None:
        """Watch the training from now on."""
        hook = self._entry.model.register_forward_pre_hook(self._has_inputs, with_kwargs=True)
        loop, leaving = loop_of(self._place, self._entry), self._place.leaving
        after = next((place for place, call in enumerate(leaving) if loop is not None and call == loop.finish), None)
        leaving.insert(len(leaving) if after is None else after, self._end)
        leaving.append(hook.remove)
        if loop is None and self._entry.worker is None:
            self._entry.optimizer.register_step_post_hook(lambda *_: self._stepped_alone())
        self._place.context(Observers).add(self)

    @property
    def shares(self) -> list[float]:
        """The shares of the training after which something is still to be done, in ascending order."""
        return [] if self._in_steps else sorted({event.at for event in self._left})

    def reached(self, share: float) -> None:
        """Do what is due once this share of the training is done: all workers call it at the same place.

        Args:
            share: The share, from 0 to 1, as (epoch + 1) / epochs at the end of an epoch.

        Raises as `prune`, `low_rank` and `cluster`.
        """
        if not self._in_steps and self._left and self._left[0].at <= share + 1e-9:
            self._do(share + 1e-9)

    def table(self) -> str:
        """Return parameters, bytes, operations and times before the first step and at the end, as text."""
        return table(self.sizes) if self.sizes else "nothing was made smaller, or another worker has measured it"

    # -- events

    def forward_ended(self, losses: Any) -> None:
        self._seen.add(losses)

    def step_ended(self) -> None:
        if self._is_guarded:
            known = (self._seen.of_script(is_scaled=is_scaled) for is_scaled in (True, False))
            self._losses += [x for pair in known for x in pair if x is not None][:1]
            self._seen = SeenLosses()
        if self._in_steps and self._left and self._left[0].at <= self._entry.step:
            self._do(self._entry.step)
        self._look()

    def _stepped_alone(self) -> None:
        if self.due <= self._entry.step:
            self.step_ended()

    def _look(self) -> None:
        """Set the next step that is watched."""
        if self._is_guarded and self._left:
            self.due = 0
        else:
            self.due = self._left[0].at if self._in_steps and self._left else NEVER

    def _has_inputs(self, module: Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._inputs is None and module.training and torch.is_grad_enabled():
            self._inputs = Inputs(positional, named)

    # -- what is due

    def _do(self, until: float) -> None:
        self._measure_before()
        while self._left and self._left[0].at <= until:
            event = self._left.pop(0)
            self._check(event.choice) if event.checks else self._shrink(event)

    def _shrink(self, event: Event) -> None:
        choice, optimizer = event.choice, self._entry.optimizer
        if choice.guard is not None and choice not in self._before:
            self._before[choice] = self._noted(choice)
        if isinstance(choice, PruneChoice):
            if choice not in self._prunings:
                chosen: dict[str, Any] = {"scope": choice.scope, "by": choice.by, "unit": choice.unit}
                self._prunings[choice] = prune(optimizer, amount=0.0, **chosen)
            self._prunings[choice].again(choice.amount * event.share)
        elif isinstance(choice, LowRankChoice):
            low_rank(optimizer, rank=choice.rank, share=choice.share, layers=choice.patterns)
        elif isinstance(choice, ClusterChoice):
            cluster(optimizer, choice.groups, layers=choice.patterns)
        self._losses.clear()
        self._measure("smaller", choice.kind)

    def _noted(self, choice: Choice) -> Snapshot:
        loss = self._mean_loss()
        if loss is None:
            raise ConfigurationError(_NO_LOSSES.format(kind=choice.kind, when="before"))
        self._lowest[choice] = min(loss, self._lowest.get(choice, loss))
        with at_the_mean(self._place):
            loop = loop_of(self._place, self._entry)
            momentum = None if loop is None else loop.replica.momentum
            return Snapshot(self._entry.model, self._entry.optimizer, momentum)

    def _check(self, choice: Choice) -> None:
        """Put the model back if the loss has risen by more than the guard of `choice`.

        Without a step since, as between two calls of `reached`, the next check looks at both turns.
        """
        if choice not in self._before:
            raise ConfigurationError(
                f"the guard of {choice.kind} is compared, and this worker joined after the step that it looks at; "
                "leave guard out where workers join"
            )
        loop, after = loop_of(self._place, self._entry), self._mean_loss()
        if after is None:
            if not any(event.choice == choice for event in self._left):
                raise ConfigurationError(_NO_LOSSES.format(kind=choice.kind, when="after"))
            return
        before, snapshot = self._lowest[choice], self._before.pop(choice)
        limit = before + (choice.guard or 0.0) * abs(before)
        if after <= limit:
            return

        def undo() -> bool:
            snapshot.restore()
            return True

        if loop is None:
            undo()
        else:
            loop.relayout.replace(undo, f"{choice.kind} is undone")
        self._left = [event for event in self._left if event.choice != choice]
        self.undone.append(choice.kind)
        if self._place.wire.rank == self._place.wire.alive[0]:
            words = f"from {before:.4g} to {after:.4g}, by more than guard={choice.guard:g}"
            tell(f"quorate: {choice.kind} is undone after step {self._entry.step}: the loss has risen {words}\n")
        self._measure("undone", choice.kind, loss=after)

    def _mean_loss(self) -> float | None:
        """Return the mean of the newest losses of all workers; None without any. Cost: a message of two numbers."""
        own = [x if isinstance(x, float) else x.value() for x in self._losses]
        sums = torch.tensor([sum(own), float(len(own))], dtype=torch.float64)
        loop = loop_of(self._place, self._entry)
        pause(self._place)
        total, count = map(float, sums if loop is None else loop.worker.means.of_number(sums))
        return total / count if count else None

    # -- what is measured

    def _end(self) -> None:
        event = next((event for event in self._left if not event.checks), None)
        if event is not None:
            how = (
                f"the training ended after {self._entry.step} steps"
                if self._in_steps
                else "the script never called quorate.shrink.chosen(optimizer).reached(share) with such a share"
            )
            raise ConfigurationError(f"{event.choice.kind} was asked for at {event.at:g}, and {how}")
        self._measure_before()
        self._measure("end", self.text)

    def _measure_before(self) -> None:
        if "before" not in self.sizes:
            self._measure("before", self.text)

    def _measure(self, moment: str, change: str, *, loss: float | None = None) -> None:
        """Measure the model on the first living worker, while the others wait at a pause, and record it."""
        wire, recorder = self._place.wire, self._place.context(Timing).recorder
        has_finished = self._entry.worker is not None and self._entry.worker.finished
        if wire.rank == wire.alive[0]:
            model, size = self._entry.model, self._size(loss)
            if moment in ("before", "end"):
                size = self.sizes[moment] = replace(size, file_bytes=_file_bytes(model))
            if recorder is not None:
                recorder.write(
                    Shrunk(
                        step=self._entry.step,
                        time=wire.clock.now(),
                        optimizer=self._entry.name,
                        moment=moment,
                        change=change,
                        parameters=size.parameters,
                        vector_bytes=size.vector_bytes,
                        file_bytes=size.file_bytes,
                        operations=size.operations,
                        forward=size.forward,
                        backward=size.backward,
                        loss=size.loss,
                    )
                )
        else:
            self.sizes.setdefault(moment, Size(0, 0))
        if not has_finished and moment != "end":
            pause(self._place)

    def _size(self, loss: float | None) -> Size:
        model, masks = self._entry.model, masks_of(self._entry.optimizer).by_tensor
        named: Sequence[tuple[str, Tensor]] = list(trained_in_order(self._entry.parameters, model))
        return size_of(model, named, masks, sample=self._inputs, loss=loss, is_timed=True)


def _file_bytes(model: Module) -> int | None:
    try:
        return len(pack({name: x.cpu() for name, x in model.state_dict().items() if isinstance(x, Tensor)}).data)
    except CheckpointError:  # a dtype that files cannot have
        return None


class _Shrinkings:
    """The steps of one worker, by optimizer."""

    def __init__(self) -> None:
        self.by_optimizer: dict[int, Shrinking] = {}


def begin(place: Place, text: str, entry: Distributed) -> None:
    """Make the model of a distributed optimizer smaller as `text` says, from now on."""
    shrinking = Shrinking(place, entry, text)
    place.context(_Shrinkings).by_optimizer[id(entry.optimizer)] = shrinking
    shrinking.begin()


def chosen(optimizer: Optimizer) -> Shrinking:
    """Return the steps that the command line has chosen to make the model of `optimizer` smaller.

    Without `--shrink` there are none, and its methods do nothing.

    Args:
        optimizer: The result of `quorate.distribute`.

    Raises:
        ConfigurationError: The optimizer is not distributed.

    Example:
        >>> optimizer = quorate.distribute(optimizer, model)
        >>> quorate.shrink.chosen(optimizer).reached(0.5)
    """
    place = current.here()
    known = place.context(_Shrinkings).by_optimizer.get(id(optimizer))
    return known or Shrinking(place, distributed_entry(place, optimizer, "chosen()"), "none")
