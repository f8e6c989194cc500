"""What a script gives to `distribute`: refused in one sentence where it cannot be, also in a world of one."""

from __future__ import annotations

from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from quorate.checkpoint.participants import trained
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import is_sharded
from quorate.core.strategy import Strategy
from quorate.strategies import strategies
from quorate.wire.current import Place

_LIBRARIES = {"accelerate": "Accelerate", "lightning": "Lightning", "lightning_fabric": "Lightning"}
_LIBRARIES |= {"pytorch_lightning": "Lightning", "keras": "Keras"}
"""Those that have optimizers of their own, by the name of their package."""


def check_optimizer(optimizer: object) -> None:
    """Raise `ConfigurationError` for what is none of torch's, or was put around one by another library."""
    kind = type(optimizer)
    library = next((name for each in kind.__mro__ if (name := _LIBRARIES.get(each.__module__.partition(".")[0]))), None)
    if library is not None and isinstance(optimizer, Optimizer):
        raise ConfigurationError(
            f"{kind.__name__} is what {library} puts around an optimizer; give quorate.distribute the "
            f"torch.optim.Optimizer that is inside, before {library} has it"
        )
    if library == "Keras":
        raise ConfigurationError(
            f"{kind.__name__} is an optimizer of Keras, and quorate.distribute takes a torch.optim.Optimizer: make one "
            "of model.parameters(), and let train_step of the model step it"
        )
    if not isinstance(optimizer, Optimizer):
        raise ConfigurationError(f"distribute takes a torch.optim.Optimizer, not {kind.__name__}")


def check_call(optimizer: Optimizer, model: object, strategy: object, name: object) -> None:
    """Raise `ConfigurationError` for a model, a strategy or a name that is none."""
    if not isinstance(model, Module):
        kind = f"the class {model.__name__}" if isinstance(model, type) else _kind_of(model)
        raise ConfigurationError(f"distribute takes the torch.nn.Module whose parameters the optimizer has, not {kind}")
    known = set(map(id, model.parameters()))
    mine = [p for group in optimizer.param_groups for p in group["params"]]
    if mine and not any(id(p) in known for p in mine):
        if any(map(is_sharded, model.parameters())):
            raise ConfigurationError(
                "the optimizer was made before quorate.parallelize, and has parameters that the model no longer has; "
                "make it from model.parameters() afterwards"
            )
        raise ConfigurationError(
            f"the optimizer has no parameters of the model ({type(model).__name__}); give distribute the "
            "model that the "
            "optimizer was made for"
        )
    if not isinstance(strategy, str | Strategy):
        known_names = ", ".join(sorted(strategies.names()))
        kind = f"the class {strategy.__name__}" if isinstance(strategy, type) else _kind_of(strategy)
        raise ConfigurationError(
            f"strategy must be a name or a Strategy object, not {kind}; known names: {known_names}"
        )
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigurationError(f"the name of an optimizer must be text, not {name!r}")


def check_channel(channel: str, place: Place) -> None:
    """Raise `ConfigurationError` for the name of another optimizer that is being trained."""
    before = trained(place).optimizers.get(channel)
    if before is not None and before.worker is not None and not before.worker.finished:
        raise ConfigurationError(f'another distributed optimizer already has the name "{channel}"; each needs its own')


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
