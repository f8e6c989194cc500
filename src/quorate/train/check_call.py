"""Checks of the arguments of `distribute`: errors of one sentence, also in a world of one worker.

Models whose forward passes write weights are refused where replicas have to stay equal. An embedding with `max_norm`
renormalizes, in place, the rows that a worker's batch has, so that each worker writes other rows. Modules are refused
when they are distributed; a call of `torch.nn.functional.embedding` or `embedding_bag` with `max_norm` before it
writes.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.jit._builtins import _register_builtin
from torch.nn import Embedding, EmbeddingBag, Module, functional
from torch.optim import Optimizer

from quorate.checkpoint.participants import Trained
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import is_sharded
from quorate.core.strategy import Strategy
from quorate.strategies import strategies
from quorate.wire import current

_LIBRARIES = {"accelerate": "Accelerate", "lightning": "Lightning", "lightning_fabric": "Lightning"}
_LIBRARIES |= {"pytorch_lightning": "Lightning", "keras": "Keras"}
"""Libraries that have optimizers of their own, by the name of their package."""


def library_of(optimizer: object) -> str | None:
    """Return the library whose own optimizer this is; None for one of torch, or of the script."""
    modules = (kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__)
    return next((name for module in modules if (name := _LIBRARIES.get(module))), None)


_OF_ALL_WORKERS = {
    "ZeroRedundancyOptimizer": "keeps a piece of the state on each worker: use the optimizer that is inside, or "
    "quorate.parallelize(model, zero=1) for pieces",
    "PostLocalSGDOptimizer": "averages parameters itself: use the optimizer that is inside, with --strategy "
    "post-local-sgd or hierarchical-local-sgd",
}
"""torch's optimizers that exchange messages, which a strategy does."""


def _check_own_exchange(optimizer: object) -> None:
    kind = next((x for x in type(optimizer).__mro__ if x.__module__.startswith("torch.distributed.optim")), None)
    if kind is not None and kind.__name__ in _OF_ALL_WORKERS:
        raise ConfigurationError(f"torch's {kind.__name__} {_OF_ALL_WORKERS[kind.__name__]}")


def check_optimizer(optimizer: object) -> None:
    """Raise `ConfigurationError` for an object that is no optimizer of torch, or one that others are put around.

    Those are optimizers of libraries, and torch's that exchange messages by themselves.
    """
    kind, library = type(optimizer), library_of(optimizer)
    _check_own_exchange(optimizer)
    if library is not None and isinstance(optimizer, Optimizer):
        raise ConfigurationError(
            f"{kind.__name__} is what {library} puts around an optimizer; give quorate.distribute the "
            f"torch.optim.Optimizer that is inside, before {library} has it"
        )
    if library == "Keras":
        raise ConfigurationError(
            f"{kind.__name__} is an optimizer of Keras, and quorate.distribute takes a torch.optim.Optimizer: call "
            "quorate.keras.distribute with the same arguments"
        )
    if not isinstance(optimizer, Optimizer):
        raise ConfigurationError(f"distribute takes a torch.optim.Optimizer, not {kind.__name__}")


def check_call(optimizer: Optimizer, model: object, strategy: object, name: object) -> None:
    """Raise `ConfigurationError` for a model, a strategy or a name of another type."""
    if not isinstance(model, Module):
        kind = f"the class {model.__name__}" if isinstance(model, type) else _kind_of(model)
        raise ConfigurationError(f"distribute takes the torch.nn.Module whose parameters the optimizer has, not {kind}")
    ids = set(map(id, model.parameters()))
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if parameters and not any(id(p) in ids for p in parameters):
        if any(map(is_sharded, model.parameters())):
            raise ConfigurationError(
                "the optimizer was made before quorate.parallelize, and has parameters that the model no longer has; "
                "make it from model.parameters() afterwards"
            )
        raise ConfigurationError(
            f"the optimizer has no parameters of the model ({type(model).__name__}); give distribute the model that "
            "the optimizer was made for"
        )
    if not isinstance(strategy, str | Strategy):
        known_names = ", ".join(sorted(strategies.names()))
        kind = f"the class {strategy.__name__}" if isinstance(strategy, type) else _kind_of(strategy)
        raise ConfigurationError(
            f"strategy must be a name or a Strategy object, not {kind}; known names: {known_names}"
        )
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigurationError(f"the name of an optimizer must be text, not {name!r}")


def check_channel(channel: str, everything: Trained) -> None:
    """Raise `ConfigurationError` for the name of another optimizer that is being trained."""
    other = everything.optimizers.get(channel)
    if other is not None and other.worker is not None and not other.worker.finished:
        raise ConfigurationError(f'another distributed optimizer already has the name "{channel}"; each needs its own')


def check_served_alone(strategy: Strategy, parameters: Iterable[Tensor], everything: Trained) -> None:
    """Raise `ConfigurationError` if servers would step parameters that another optimizer trains, or the reverse."""
    ids = set(map(id, parameters))
    for other in everything.optimizers.values():
        worker = other.worker
        if worker is None or worker.finished or not _is_stepped_by_servers(strategy, worker.strategy):
            continue
        common = ids & {id(p) for p in worker.replica.every}
        if common:
            names = (name for name, p in other.model.named_parameters() if id(p) in common)
            name = next(names, "a parameter")
            raise ConfigurationError(
                f'the distributed optimizer "{other.name}" trains {name} already, and where servers make the steps '
                "parameters have one optimizer at a time; call its finish() on all workers before this distribute"
            )


def _is_stepped_by_servers(*strategies: Strategy) -> bool:
    return any(strategy.meets == "servers" and strategy.replicas == "meet" for strategy in strategies)


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


_PLAIN = "_no_grad_embedding_renorm_"
_lock = threading.Lock()


@dataclass
class EqualParameters:
    """The parameters of one worker that have to stay equal on all, and the strategy, by the parameter's id."""

    of: dict[int, tuple[weakref.ref[Tensor], str]] = field(default_factory=dict)


def check_forward_writes(model: Module, parameters: Iterable[Tensor], strategy: str, equal: EqualParameters) -> None:
    """Raise `ConfigurationError` for a module that writes one of `parameters` in its forward pass.

    From now on calls that would write them are refused as well. The caller has found that replicas have to stay equal
    under `strategy`, among more than one worker.
    """
    parameters_by_id = {id(p): p for p in parameters if p.requires_grad}
    for name, module in model.named_modules():
        is_written = isinstance(module, Embedding | EmbeddingBag) and module.max_norm is not None
        if is_written and any(id(p) in parameters_by_id for p in module.parameters(recurse=False)):
            raise ConfigurationError(_sentence(f"{name or 'the model'} ({type(module).__name__})", strategy))
    equal.of.update((key, (weakref.ref(p), strategy)) for key, p in parameters_by_id.items())
    _wrap()


def _sentence(part: str, strategy: str) -> str:
    return (
        f"{part} has max_norm, which renormalizes the rows of this worker's batch in each forward pass, so replicas "
        f"that are equal under {strategy} would diverge. Leave max_norm out, and renormalize all rows after each "
        "update: optimizer.register_step_post_hook(lambda *_: table.weight.data.renorm_(2, 0, max_norm)). Or use "
        "local-sgd"
    )


def _wrap() -> None:
    """Replace torch's function that renormalizes rows by one that checks the table first, once per process."""
    with _lock:
        plain = getattr(functional, _PLAIN, None)
        if plain is None or hasattr(plain, "_quorate_wraps"):
            return

        @functools.wraps(plain)
        def renorm(weight: Tensor, *arguments: object, **named: object) -> object:
            place = current.place()
            entry = None if place is None else place.context(EqualParameters).of.get(id(weight))
            if entry is not None and entry[0]() is weight:
                shape = "x".join(map(str, weight.shape))
                raise ConfigurationError(_sentence(f"a call of embedding with a table of {shape}", entry[1]))
            return plain(weight, *arguments, **named)

        renorm._quorate_wraps = plain  # type: ignore[attr-defined]
        _register_builtin(renorm, "aten::_no_grad_embedding_renorm_")  # as `plain` is, for TorchScript
        setattr(functional, _PLAIN, renorm)
