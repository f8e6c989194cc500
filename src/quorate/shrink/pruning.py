"""Pruning while many workers train: masks that are equal on all workers, from the mean of their replicas.

At a pause of all workers the numbers with the lowest scores become zero and stay zero. From then on vectors have places
for the kept numbers only, under every strategy: the masks are a fixed linear code that all workers have in common. Sums
of kept numbers are exact, and a message is as long as the kept numbers and its header.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from quorate.checkpoint.participants import Distributed, Trained
from quorate.core.errors import ConfigurationError
from quorate.core.masks import Mask
from quorate.core.vectors import Flat, full_segments, pack
from quorate.data.context import DataContext
from quorate.replica.masks import Masks, masks_of
from quorate.replica.replica import sparse_tables_in, trained_in_order
from quorate.shrink.guard import Evaluate, Guard
from quorate.shrink.masks import Scope, kept_by, kept_filters
from quorate.shrink.scores import By, Unit, score
from quorate.shrink.size import Size, size_of, table
from quorate.train.combination import Combination
from quorate.train.compatibility import check
from quorate.train.loop import Loop, loops_of
from quorate.wire import current
from quorate.wire.current import Place


@dataclass(frozen=True, kw_only=True)
class Cubic:
    """A gradual schedule: the share of pruned numbers grows fast at first, while there are many to choose from.

    The share after the update t is s_f + (s_i - s_f) (1 - (t - begin) / steps)^3, and s_f is the `amount` of `prune`.

    Source: Zhu and Gupta, "To prune, or not to prune", 2017, equation 1.
    """

    steps: int
    """Updates from the first pruning to the last."""
    every: int
    """Updates between two prunings; `steps` is a multiple of it."""
    begin: int = 0
    """The update after which the first pruning takes place."""
    initial: float = 0.0
    """The share that is pruned at `begin`."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.steps < self.every or self.steps % self.every or self.begin < 0:
            raise ConfigurationError(
                f"steps={self.steps}, every={self.every}, begin={self.begin}: every must be at least 1, steps a "
                "multiple of it, and begin at least 0"
            )
        if not 0 <= self.initial < 1:
            raise ConfigurationError(f"initial is {self.initial}; it must be a share, at least 0 and below 1")

    def amount_at(self, update: int, final: float) -> float:
        """Return the share of pruned numbers after `update`."""
        left = min(1.0, max(0.0, 1 - (update - self.begin) / self.steps))
        return final + (self.initial - final) * left**3

    def due_after(self, update: int) -> int | None:
        """Return the first update after `update` at which a pruning is due; None after the last one."""
        turn = max(0, math.floor((update - self.begin) / self.every) + 1)
        return None if turn * self.every > self.steps else self.begin + turn * self.every


@dataclass(frozen=True)
class Report:
    """One pruning: the model before and after it."""

    amount: float
    """The share of pruned numbers that was asked for."""
    before: Size
    after: Size
    is_undone: bool = False
    """Whether the loss had left the band of `guard`, so that the earlier masks are in force again."""


class Pruning:
    """The pruning of one optimizer's parameters: see `prune`."""

    def __init__(
        self,
        entry: Distributed,
        place: Place,
        amount: float,
        scope: Scope,
        by: By,
        unit: Unit,
        schedule: Cubic | None,
        evaluate: Evaluate | None,
        guard: float | None,
        sample: Tensor | None,
    ) -> None:
        self._entry, self._place, self._schedule = entry, place, schedule
        self._amount, self._scope, self._by, self._unit = amount, scope, by, unit
        self._guard, self._sample = Guard(evaluate, guard), sample
        self._begin: dict[Tensor, Tensor] = {}
        """The parameters at the beginning of the movement."""
        self._seed: int | None = None
        self.reports: list[Report] = []
        """The prunings so far, the newest last."""
        self.has_stopped = False
        """Whether a pruning was undone, after which the schedule prunes no more."""

    @property
    def model(self) -> Module:
        """The model of the optimizer."""
        return self._entry.model

    @property
    def masks(self) -> dict[str, Tensor]:
        """By the names of parameters of which some numbers are pruned, true where a number is kept."""
        names = {p: name for name, p in self._named()}
        return {names[p]: mask.kept for p, mask in self._masks.by_tensor.items() if p in names}

    @property
    def density(self) -> float:
        """The share of numbers that are kept, of the parameters that can be pruned."""
        pruned = [(p.numel(), self._masks.by_tensor.get(p)) for _, p in self._prunable()]
        return sum(n if mask is None else mask.count for n, mask in pruned) / max(1, sum(n for n, _ in pruned))

    def step(self) -> None:
        """Prune if the schedule says so: called after each `optimizer.step()`, as a scheduler is.

        Raises as `prune`.
        """
        if self._schedule is None or self.has_stopped:
            return
        if self._by == "movement" and not self._begin:
            self._note_begin()
        due = self._schedule.due_after(self._masks.pruned_at)
        while due is not None and self._updates >= due and not self.has_stopped:
            self._prune(self._schedule.amount_at(due, self._amount), due)
            due = self._schedule.due_after(due)

    def again(self, amount: float, *, by: By | None = None, seed: int | None = None) -> Report:
        """Prune now until the share `amount` is pruned, earlier prunings included, and return the report.

        Args:
            amount: The share of numbers, at least the present one, below 1.
            by: Another score for this pruning.
            seed: The seed of random scores; None: one of the run.
        """
        before, self._by, self._seed = self._by, by or self._by, seed
        try:
            self._prune(_checked_share(amount), None)
        finally:
            self._by, self._seed = before, None
        return self.reports[-1]

    def table(self) -> str:
        """Return parameters, bytes, operations and loss before the first pruning and after the newest, as text."""
        if not self.reports:
            return "not pruned yet"
        return table({"before": self.reports[0].before, "after": self.reports[-1].after})

    # -- inside

    @property
    def _masks(self) -> Masks:
        return masks_of(self._entry.optimizer)

    @property
    def _updates(self) -> int:
        """The updates of the replica, newcomers included.

        Where learners apply them at steps of their own, these are the updates of the newest pause, which all share.
        """
        worker = self._entry.worker
        if worker is None:
            return self._entry.step
        return worker.updates_at_pause if worker.has_rounds and worker.differs else worker.updates

    def _named(self) -> list[tuple[str, Tensor]]:
        return list(trained_in_order(self._entry.parameters, self.model))

    def _prunable(self) -> list[tuple[str, Tensor]]:
        """Return the trained parameters of two dimensions or more; others, such as biases, are few."""
        named = trained_in_order(self._entry.parameters, self.model)
        tables = sparse_tables_in(self.model, named)
        return [(name, p) for name, p in named if p.dim() > 1 and name not in tables]

    def _note_begin(self) -> None:
        self._begin = {p: p.detach().clone() for _, p in self._named()}

    def paused(self, change: Callable[[Loop | None], None]) -> None:
        """Let `change` replace masks and numbers, equally on all workers, in a pause of all of them."""
        loop = next((loop for loop in loops_of(self._place) if loop.worker is self._entry.worker), None)
        if loop is None:
            change(None)
        elif loop.worker.finished:
            raise ConfigurationError("the training has ended (optimizer.finish()); prune before its end")
        else:
            with loop.replica.in_training():
                loop.relayout.prune(partial(change, loop))

    def _prune(self, amount: float, due: int | None) -> None:
        self.paused(partial(self._choose, amount, due))
        if self._by == "movement":
            self._note_begin()

    def _choose(self, amount: float, due: int | None, loop: Loop | None) -> None:
        """Replace the masks; the replica is the consensus."""
        masks = self._masks
        before, masks_before = self._size(loop), dict(masks.by_tensor)
        is_guarded = self._guard.rise is not None
        copies = [(p, p.detach().clone()) for _, p in self._named()] if is_guarded else []
        states = _copies_of_state(self._entry.optimizer) if is_guarded else []
        masks.replace({**masks_before, **self._new_masks(amount, loop)})
        if due is not None:
            masks.pruned_at = due
        after = self._size(loop)
        is_undone = not self._guard.allows(before.loss, after.loss)
        if is_undone:
            masks.replace(masks_before)
            with torch.no_grad():
                for x, numbers in [*copies, *states]:
                    x.copy_(numbers)
            self.has_stopped = self._schedule is not None
        self.reports.append(Report(amount, before, before if is_undone else after, is_undone=is_undone))

    def _new_masks(self, amount: float, loop: Loop | None) -> dict[Tensor, Mask]:
        named = self._prunable()
        if not named:
            raise ConfigurationError("the optimizer trains no parameter of two dimensions or more; nothing is pruned")
        if not all(bool(p.isfinite().all()) for _, p in named):
            raise ConfigurationError("a parameter is not finite; pruning needs numbers that can be compared")
        begins = self._begins(loop) if self._by == "movement" else {}
        run_seed = self._place.context(DataContext).seed if self._seed is None else self._seed
        generator = torch.Generator().manual_seed(run_seed * 1_000_003 + self._updates % 1_000_003)
        scores = {name: score(p, self._by, self._unit, before=begins.get(p), generator=generator) for name, p in named}
        kept_before = {name: self._masks.by_tensor[p].kept for name, p in named if p in self._masks.by_tensor}
        kept = kept_by(scores, amount, self._scope, kept_before)
        if self._unit == "filter":
            kept = kept_filters(scores, kept)
        masks = {p: Mask(kept[name].to(p.device)) for name, p in named if not kept[name].all()}
        if self._unit == "filter":
            masks |= self._bias_masks({name: kept[name] for name, _ in named})
        return masks

    def _bias_masks(self, kept: Mapping[str, Tensor]) -> dict[Tensor, Mask]:
        """Return masks of the biases of layers whose filters are pruned."""
        by_name, masks = dict(self._named()), dict[Tensor, Mask]()
        for name, flags in kept.items():
            bias = by_name.get(name.removesuffix("weight") + "bias")
            if name.endswith("weight") and bias is not None and bias.shape == flags.shape[:1]:
                masks[bias] = Mask(flags.flatten(1).any(1).to(bias.device))
        return masks

    def _begins(self, loop: Loop | None) -> Mapping[Tensor, Tensor]:
        """Return the mean, over the workers that know it, of the parameters at the beginning of the movement."""
        if loop is None:
            return self._begin
        means, replica = loop.worker.means, loop.replica
        is_known = float(bool(self._begin) and not loop.worker.wire.is_newcomer)
        if not float(means.of_number(torch.tensor([is_known], dtype=torch.float64))):
            raise ConfigurationError(_NO_BEGIN)
        pack([self._begin.get(p) for p in replica.trained], own := Flat.zeros(replica.layout))
        mean = means.of(own, weight=is_known).wait()
        return dict(zip(replica.trained, full_segments(mean), strict=False))

    def _size(self, loop: Loop | None) -> Size:
        """Return parameters, bytes and operations of the model now, and the mean of the losses of all workers."""
        loss = self._guard.loss(self._place, loop)
        return size_of(self.model, self._named(), self._masks.by_tensor, sample=self._sample, loss=loss)


_NO_BEGIN = 'by="movement" compares with the parameters of an earlier call of Pruning.step(); give it a schedule'


def prune(
    optimizer: Optimizer,
    *,
    amount: float,
    scope: Scope = "layer",
    by: By = "magnitude",
    unit: Unit = "number",
    schedule: Cubic | None = None,
    evaluate: Evaluate | None = None,
    guard: float | None = None,
    sample: Tensor | None = None,
) -> Pruning:
    """Prune the parameters of a distributed optimizer, on all workers alike; return the pruning.

    All workers call it after the same step, and are paused meanwhile. Names and classes of parameters stay. Pruned
    numbers, their gradients and their moments are zero from now on, and vectors that are sent have no place for them.
    Biases, and other parameters of one dimension, are kept.

    Args:
        optimizer: An optimizer of `quorate.distribute`.
        amount: The share of the numbers that is pruned in the end, at least 0 and below 1.
        scope: "layer": this share of each parameter; "global": of all together.
        by: "magnitude"; "movement", which needs a schedule; or "random". See `quorate.shrink.scores.score`.
        unit: "number", or "filter" for rows of matrices and filters of convolutions (`harden` makes real smaller
            layers of these).
        schedule: When to prune how much, with calls of `Pruning.step()`; None: everything now. Where learners apply
            updates at steps of their own (async-local-sgd, decoupled-diloco), a pruning that is due waits for a pause.
        evaluate: Returns a loss of the model, which is the same on all workers: it is averaged over them.
        guard: The largest relative rise of that loss. A pruning that exceeds it is undone, and the schedule stops.
        sample: A batch of inputs, for which operations are counted.

    Returns:
        The pruning: `step()`, `masks`, `density`, `reports` and `table()`.

    Raises:
        ConfigurationError: The optimizer is not distributed, an argument is not as above, or the strategy keeps
            parameters elsewhere than on its workers. Also if some workers do not prune, or if masks differ.

    Cost: a pause of all workers; a sort of all scores on each worker. Vectors of a strategy, such as the momentum of
    outer steps, start at zero again.

    Example:
        >>> optimizer = quorate.distribute(optimizer, model, "diloco")
        >>> pruning = quorate.shrink.prune(optimizer, amount=0.5)
        >>> print(pruning.table())
                           before  after
        parameters             15      9
        bytes of a vector      60     36
    """
    place = current.here()
    entry = next((entry for entry in place.context(Trained).ordered if entry.optimizer is optimizer), None)
    if entry is None:
        raise ConfigurationError(
            "this optimizer is not distributed; call quorate.distribute before quorate.shrink.prune"
        )
    _check_arguments(amount, scope, by, unit, schedule)
    _check_combination(entry)
    pruning = Pruning(entry, place, amount, scope, by, unit, schedule, evaluate, guard, sample)
    if schedule is None:
        pruning.again(amount)
    return pruning


def _check_arguments(amount: float, scope: str, by: str, unit: str, schedule: Cubic | None) -> None:
    _checked_share(amount)
    for name, value, known in (
        ("scope", scope, ("global", "layer")),
        ("by", by, ("magnitude", "movement", "random")),
        ("unit", unit, ("filter", "number")),
    ):
        if value not in known:
            raise ConfigurationError(f"{name}={value!r} is unknown; known: {', '.join(known)}")
    if by == "movement" and schedule is None:
        raise ConfigurationError(_NO_BEGIN)
    if schedule is not None and schedule.initial > amount:
        raise ConfigurationError(f"the schedule begins with {schedule.initial}, and amount is only {amount}")


def _checked_share(amount: float) -> float:
    if type(amount) not in (int, float) or not 0 <= amount < 1:
        raise ConfigurationError(f"amount is {amount!r}; it must be a share of the numbers, at least 0 and below 1")
    return float(amount)


def _check_combination(entry: Distributed) -> None:
    worker = entry.worker
    axes = None if entry.coordinates is None else entry.coordinates.axes
    chosen: dict[str, Any] = {} if worker is None else {"strategy": worker.strategy}
    offloads = worker is not None and worker.replica.host is not None
    is_baseline = worker is None and current.here().wire.max_size > 1
    about: dict[str, Any] = {"axes": axes, "offloads": offloads, "is_baseline": is_baseline, "prunes": True}
    combination = Combination(label=entry.strategy or "a baseline", shrinks="quorate.shrink.prune", **chosen, **about)
    check(combination, "pruning", "shrink")


def _copies_of_state(optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    return [(x, x.clone()) for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
