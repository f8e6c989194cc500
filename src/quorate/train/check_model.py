"""Models whose forward passes write weights: refused where replicas have to stay equal.

An embedding with `max_norm` renormalizes, in place, the rows that a worker's batch has, so that each worker writes
other rows. Modules are refused when they are distributed; a call of `torch.nn.functional.embedding` or `embedding_bag`
with `max_norm` before it writes.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor
from torch.jit._builtins import _register_builtin
from torch.nn import Embedding, EmbeddingBag, Module, functional

from quorate.core.errors import ConfigurationError
from quorate.wire import current

_PLAIN = "_no_grad_embedding_renorm_"
_lock = threading.Lock()


@dataclass
class _Equal:
    """Of one worker: parameters that have to stay equal on all workers, and the strategy, by the parameter's id."""

    of: dict[int, tuple[weakref.ref[Tensor], str]] = field(default_factory=dict)


def check_forward_writes(model: Module, parameters: Iterable[Tensor], strategy: str, place: current.Place) -> None:
    """Raise `ConfigurationError` for a module that writes one of `parameters` in its forward pass.

    From now on calls that would write them are refused as well. The caller has found that replicas have to stay equal
    under `strategy`, among more than one worker.
    """
    trained = {id(p): p for p in parameters if p.requires_grad}
    for name, module in model.named_modules():
        is_written = isinstance(module, Embedding | EmbeddingBag) and module.max_norm is not None
        if is_written and any(id(p) in trained for p in module.parameters(recurse=False)):
            raise ConfigurationError(_sentence(f"{name or 'the model'} ({type(module).__name__})", strategy))
    known = place.context(_Equal).of
    known |= {key: (weakref.ref(p), strategy) for key, p in trained.items()}
    _wrap()


def _sentence(what: str, strategy: str) -> str:
    return (
        f"{what} has max_norm, which renormalizes in each forward pass the rows of this worker's batch, so that "
        f"replicas part, which are equal under {strategy}; leave max_norm out, and renormalize all rows after each "
        "update: optimizer.register_step_post_hook(lambda *_: table.weight.data.renorm_(2, 0, max_norm)), or use "
        "local-sgd"
    )


def _wrap() -> None:
    """Let torch's function that renormalizes rows ask, once per process."""
    with _lock:
        plain = getattr(functional, _PLAIN, None)
        if plain is None or hasattr(plain, "_quorate_wraps"):
            return

        @functools.wraps(plain)
        def renorm(weight: Tensor, *given: object, **named: object) -> object:
            place = current.place()
            known = None if place is None else place.context(_Equal).of.get(id(weight))
            if known is not None and known[0]() is weight:
                shape = "x".join(map(str, weight.shape))
                raise ConfigurationError(_sentence(f"a call of embedding with a table of {shape}", known[1]))
            return plain(weight, *given, **named)

        renorm._quorate_wraps = plain  # type: ignore[attr-defined]
        _register_builtin(renorm, "aten::_no_grad_embedding_renorm_")  # as `plain` is, for TorchScript
        setattr(functional, _PLAIN, renorm)
