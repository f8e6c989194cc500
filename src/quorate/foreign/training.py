"""`ForeignTraining`: a mirror of another framework's parameters under a strategy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy
from quorate.foreign.gradients import backward
from quorate.foreign.optimizer import Stamp, foreign_class, stamp_of
from quorate.foreign.rule import Rule
from quorate.train.alone import WORKER
from quorate.train.chosen import Chosen
from quorate.train.distribute import distribute
from quorate.wire import current

_STAMPS = itertools.count(1)


class ForeignTraining:
    """A mirror of parameters in memory of torch, and the distributed optimizer that updates it.

    `named` are the initial numbers of the parameters by name: tensors, which are copied, or parameters of torch, which
    are trained themselves. `statistics` are buffers: they become equal at pauses, as the strategy says. `rule_of` makes
    the update for the parameters.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        statistics: Iterable[tuple[str, Tensor]],
        rule_of: Callable[[Sequence[Tensor]], Rule],
        *,
        kind: str,
        strategy: Strategy | str,
        settings: dict[str, Any],
    ) -> None:
        """`kind` is the name of the framework's optimizer; `settings` are those of `quorate.distribute`."""
        parameters = [(name, x if isinstance(x, Parameter) else Parameter(x.clone())) for name, x in named]
        buffers = list(statistics)
        self.parameters = [p for _, p in parameters]
        self.statistics = [x for _, x in buffers]
        self.module = module_of(parameters, buffers)
        self.rule = rule_of(self.parameters)
        plain: Any = foreign_class(kind, self.rule)
        own: Any = plain(self.parameters, rule=self.rule)
        override = current.here().context(Chosen)
        if override.strategy_name in override.baselines:
            raise ConfigurationError(
                f"the baseline {override.strategy_name} wraps a model of torch, and this one is computed by another "
                "framework; compare with a strategy, such as --baseline all-reduce"
            )
        self.own, self.is_shared = own, False
        self.optimizer: Any = distribute(own, self.module, strategy, **settings)  # type: ignore[arg-type]
        worker = self.optimizer.__dict__.get(WORKER)
        self.is_shared = worker is not None and (
            worker.strategy.replicas != "equal" or worker.has_rounds or worker.is_served
        )
        """Whether others than the update may write the memory of the parameters."""

    def step(self, gradients: Sequence[Tensor | None], loss: Tensor | None = None) -> None:
        """Make a step of the strategy with this worker's gradients; `loss` is for records."""
        self.optimizer.zero_grad()
        known = torch.zeros(()) if loss is None else loss
        with torch.enable_grad():
            backward(known, gradients, self.parameters)
        self.optimizer.step()

    @property
    def stamp(self) -> Stamp:
        """The stamp of the parameters as they are now."""
        if self.is_shared:  # writes to the vector of which parameters are views count in no version
            return ((next(_STAMPS), 0),)
        return stamp_of(self.parameters)

    @property
    def updated(self) -> Stamp | None:
        """The stamp of the parameters as the newest update has left them; None: there was no update."""
        stamp: Stamp | None = self.own.updated
        return stamp


def module_of(named: Iterable[tuple[str, Parameter]], buffers: Iterable[tuple[str, Tensor]] = ()) -> Module:
    """Return a module with these parameters and buffers, by their dotted names; it computes nothing."""
    whole = Module()
    for name, p in named:
        holder, leaf = _holder(whole, name)
        holder.register_parameter(leaf, p)
    for name, x in buffers:
        holder, leaf = _holder(whole, name)
        holder.register_buffer(leaf, x)
    return whole


def _holder(whole: Module, name: str) -> tuple[Module, str]:
    *path, leaf = name.split(".")
    holder = whole
    for step in path:
        if step not in holder._modules:
            holder.add_module(step, Module())
        holder = holder.get_submodule(step)
    return holder, leaf
