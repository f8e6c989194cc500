"""Models that other code keeps equal, or in pieces: torch's DDP and FSDP, over whose parts a strategy has no control.

Wrappers may be applied after `distribute`, and implicitly (`Accelerator.prepare`, `transformers.Trainer`). A hook of
torch is called for every module that gets another one as its part, and wrappers are remembered here as long as they
live.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.modules.module import register_module_module_registration_hook

from quorate.core.errors import ConfigurationError
from quorate.observe.step_observer import NEVER, Phase, StepObserver
from quorate.replica.replica import Replica

_AVERAGING, _SHARDING = ("DistributedDataParallel",), ("FullyShardedDataParallel", "FSDPModule")
_alive: weakref.WeakSet[Module] = weakref.WeakSet()
_checks: weakref.WeakSet[StillPlain] = weakref.WeakSet()
_hooks: list[object] = []


def remember_wrappers() -> None:
    """Register the hook, once per process."""
    if not _hooks:
        _hooks.append(register_module_module_registration_hook(_registered))


def _registered(module: Module, name: str, part: Module | None) -> None:
    if _wraps(module) is not None:
        _alive.add(module)
        for check in list(_checks):
            check.due = 0


def _wraps(thing: object) -> str | None:
    """Return the name of torch's class if `thing` is such a wrapper; by name, as classes may not be imported.

    None for the wrappers of this library in its place.
    """
    if any(kind.__module__.startswith("quorate.") for kind in type(thing).__mro__):
        return None
    for kind in type(thing).__mro__:
        if kind.__module__.startswith("torch.") and kind.__name__ in _AVERAGING + _SHARDING:
            return kind.__name__
    return None


def check_plain(model: Module, parameters: Iterable[Tensor]) -> None:
    """Raise `ConfigurationError` for a model that is wrapped or sharded, or whose parameters are."""
    parameters = list(parameters)
    wrapper = next((name for module in model.modules() if (name := _wraps(module)) is not None), None)
    if wrapper is None:
        wrapper = _around(model, parameters)
    if wrapper is not None:
        raise ConfigurationError(f"{_sentence(wrapper)}; give quorate.distribute the plain model, without the wrapper")
    if any(kind.__name__ == "DTensor" for p in parameters for kind in type(p).__mro__):
        raise ConfigurationError(
            "the optimizer has DTensor parameters, of which each worker holds a piece, and strategies act on whole "
            "replicas; give quorate.distribute a model that is not sharded"
        )


def _around(model: Module, parameters: Sequence[Tensor]) -> str | None:
    """Return the class of a living wrapper that has these parameters, or a part of the model."""
    if not _alive:
        return None
    own_ids = {*map(id, parameters), *map(id, model.modules())}
    for wrapper in list(_alive):
        theirs: list[Parameter | Module] = [*wrapper.parameters(), *wrapper.modules()]
        if any(id(x) in own_ids for x in theirs):
            return _wraps(wrapper)
    return None


def _sentence(name: str) -> str:
    does = "averages gradients itself" if name in _AVERAGING else "keeps a piece of the model on each worker"
    return f"the model is in torch's {name}, which {does}"


class StillPlain(StepObserver):
    """Checks at the first backward pass, and later while wrappers are alive, that a model has no wrapper."""

    phase = Phase.CHECK

    def __init__(self, replica: Replica) -> None:
        self._replica, self._model, self._is_first = replica, replica.model, True
        _checks.add(self)

    def backward_begins(self) -> None:
        """Raise `ConfigurationError` for a wrapper. Cost: a pass over the modules."""
        self.due = 0 if _alive else NEVER
        wrapper = _around(self._model, self._replica.every)
        if wrapper is None and self._is_first:
            wrapper = next((name for module in self._model.modules() if (name := _wraps(module)) is not None), None)
        self._is_first = False
        if wrapper is not None:
            raise ConfigurationError(
                f"{_sentence(wrapper)}, and was put around it after quorate.distribute(); leave it out: devices=1 in "
                "Lightning, and num_processes=1 in Accelerate's PartialState, which transformers.Trainer goes by too"
            )
