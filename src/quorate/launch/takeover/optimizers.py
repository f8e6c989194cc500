"""The optimizers of a script that trains models in DistributedDataParallel: found by their parameters, and distributed.

They are found in the memory of the process at the first forward pass with gradients, and again after another optimizer
or wrapper was made. It does not matter which was made first, nor which library holds them.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.nn import Module, ModuleList
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from quorate.core.errors import ConfigurationError
from quorate.train.check_call import check_optimizer, library_of
from quorate.train.distribute import distribute
from quorate.train.distributed_optimizer import DistributedOptimizer
from quorate.wire import current
from quorate.wire.current import Place


class _Made:
    """How many optimizers this process has made, where that is counted."""

    count = 0


def count_optimizers() -> None:
    """Count the optimizers that are made from now on, once per process."""
    plain: Any = Optimizer.__init__
    if hasattr(plain, "_quorate_counts"):
        return

    def counted(self: Optimizer, *arguments: Any, **named: Any) -> None:
        _Made.count += 1
        plain(self, *arguments, **named)

    counted._quorate_counts = True  # type: ignore[attr-defined]
    Optimizer.__init__ = counted  # type: ignore[method-assign]


@dataclass
class FoundOptimizers:
    """The optimizers of one worker, with the models in wrappers whose parameters they have."""

    modules: list[weakref.ref[Module]] = field(default_factory=list)
    """The models in wrappers, in the order in which these were made."""
    optimizers: list[tuple[weakref.ref[Optimizer], frozenset[int]]] = field(default_factory=list)
    """Each distributed optimizer, with the ids of the models that it trains."""
    _seen: tuple[int, int] = (-1, 0)

    @property
    def are_there(self) -> bool:
        """Whether an optimizer was distributed."""
        return bool(self.optimizers)

    def watch(self, place: Place, distribute_new: Callable[[], bool]) -> None:
        """Refuse steps of optimizers that have parameters of these models and were not found before a gradient.

        `distribute_new` is called before the first step with a closure, and returns whether it has distributed any.
        """

        def look(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
            if isinstance(optimizer, DistributedOptimizer) or current.place() is not place:
                return None
            if library_of(optimizer) is None and self._models_of(optimizer):
                closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
                if callable(closure) and distribute_new():
                    return (args[0], partial(_step_inside, optimizer, closure)), {}
                if self._seen[0] < 0:
                    raise ConfigurationError(
                        f"{type(optimizer).__name__} steps on gradients of a model in DistributedDataParallel, whose "
                        "own forward was never called, so that workers would not agree; call the wrapper, "
                        "model(...), not model.module(...)"
                    )
                raise ConfigurationError(
                    f"{type(optimizer).__name__} was made between a forward pass and its step, so that workers have "
                    "not agreed on its gradient; make it before the forward pass"
                )
            return None

        place.hooks.append(register_optimizer_step_pre_hook(look))

    def distribute(self) -> bool:
        """Distribute optimizers that are new since the last call; return whether there are any.

        Cost: where an optimizer or a wrapper was made since, a pass over the objects of the process.
        """
        seen = _Made.count, len(self.modules)
        if seen == self._seen:
            return False
        self._seen, before = seen, len(self.optimizers)
        gc.collect()  # a scheduler keeps its optimizer in a circle
        new = [x for x in gc.get_objects() if issubclass(type(x), Optimizer) and not self._is_known(x)]
        order = self._order()
        for optimizer in filter(self._models_of, new):
            check_optimizer(optimizer)  # before others, as it may have made one for this worker's part of the model
        for optimizer in sorted(filter(self._models_of, new), key=lambda x: (_first(x, order), type(x).__name__)):
            models = self._models_of(optimizer)
            distribute(optimizer, models[0] if len(models) == 1 else ModuleList(models))
            self.optimizers.append((weakref.ref(optimizer), frozenset(map(id, models))))
        return len(self.optimizers) > before

    def of(self, module: Module) -> list[Any]:
        """Return the distributed optimizers that train `module`."""
        alive = [(reference(), ids) for reference, ids in self.optimizers]
        return [optimizer for optimizer, ids in alive if optimizer is not None and id(module) in ids]

    @property
    def all(self) -> list[Any]:
        """The distributed optimizers."""
        return [optimizer for reference, _ in self.optimizers if (optimizer := reference()) is not None]

    def alive(self) -> list[Module]:
        """Return the models in wrappers."""
        return [module for reference in self.modules if (module := reference()) is not None]

    def _is_known(self, optimizer: Optimizer) -> bool:
        is_made = "param_groups" in optimizer.__dict__
        return not is_made or isinstance(optimizer, DistributedOptimizer) or library_of(optimizer) is not None

    def _models_of(self, optimizer: Optimizer) -> list[Module]:
        ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [module for module in self.alive() if not ids.isdisjoint(map(id, module.parameters()))]

    def _order(self) -> dict[int, int]:
        parameters = (p for module in self.alive() for p in module.parameters())
        return {id(p): number for number, p in enumerate(parameters)}


def _step_inside(optimizer: Optimizer, closure: Callable[[], Any]) -> Any:
    """Make the step of the strategy in a plain step that has begun, which finds no gradient and updates nothing then.

    For loops whose first forward pass is in the closure of a step, as in Lightning.
    """
    loss = optimizer.step(closure)
    optimizer.zero_grad(set_to_none=True)
    return loss


def _first(optimizer: Optimizer, order: dict[int, int]) -> int:
    """Return the place of its first parameter among those of all models: the same on all workers."""
    return min(order[id(p)] for group in optimizer.param_groups for p in group["params"] if id(p) in order)
