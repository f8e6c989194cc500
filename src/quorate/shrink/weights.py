"""The weights of a model that change their form, and the distributed optimizer that trains them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from torch.nn import Module, Parameter
from torch.optim import Optimizer

from quorate.checkpoint.participants import Distributed, Trained
from quorate.core.errors import ConfigurationError
from quorate.train.combination import Combination
from quorate.train.compatibility import check
from quorate.train.loop import Loop, loops_of
from quorate.wire.current import Place

_SUFFIXES = ("_a", "_b", "_values")


@dataclass(frozen=True)
class Weight:
    """One weight of a model."""

    name: str
    module: Module
    key: str
    """The name in `module`."""
    is_inside: bool
    """Whether it is neither the first nor the last weight of the model."""

    @property
    def is_plain(self) -> bool:
        """Whether it is a parameter, and not computed from others."""
        return self.key in self.module._parameters

    @property
    def parameter(self) -> Parameter:
        """The weight, while it is a parameter."""
        parameter = self.module._parameters[self.key]
        assert parameter is not None
        return parameter


def weights_in(
    model: Module, names_of: Callable[[Module], Sequence[str]], own: Sequence[Parameter] | None = None
) -> Iterator[Weight]:
    """Yield the trained weights of `model` that belong to one layer.

    Args:
        model: The model.
        names_of: Returns the names of the weights of a layer that can have another form.
        own: The parameters of the optimizer; None: all of the model.
    """
    counts = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    trained_ids = {id(p) for p in (model.parameters() if own is None else own) if p.requires_grad}
    names = [_stem(name) for name, p in model.named_parameters() if p.dim() > 1]
    for path, module in model.named_modules():
        for key in names_of(module):
            name = f"{path}.{key}" if path else key
            parts = [p for part, p in module._parameters.items() if _stem(part) == key and p is not None]
            if parts and all(id(p) in trained_ids and counts[id(p)] == 1 for p in parts):
                yield Weight(name, module, key, name not in (*names[:1], *names[-1:]))


def _stem(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


def matching(weights: Sequence[Weight], patterns: Sequence[str] | None) -> list[Weight]:
    """Return the weights whose names, or whose layers' names, match one of `patterns`; all where there are none."""
    return [w for w in weights if patterns is None or any(_matches(w.name, pattern) for pattern in patterns)]


def _matches(name: str, pattern: str) -> bool:
    return fnmatch(name, pattern) or fnmatch(name.rpartition(".")[0], pattern)


def check_patterns(weights: Sequence[Weight], patterns: object) -> None:
    """Raise `ConfigurationError` for `patterns` that are no list of texts, or match none of the `weights`."""
    if patterns is None:
        return
    if not (isinstance(patterns, list | tuple) and patterns and all(isinstance(x, str) for x in patterns)):
        raise ConfigurationError(f"layers is a list of names or patterns, not {patterns!r}")
    for pattern in patterns:
        if not any(_matches(weight.name, pattern) for weight in weights):
            known = ", ".join(dict.fromkeys(weight.name.rpartition(".")[0] or weight.name for weight in weights))
            raise ConfigurationError(f'layers has "{pattern}", and the layers that it may name are: {known or "none"}')


def distributed_entry(place: Place, optimizer: Optimizer, call: str) -> Distributed:
    """Return the training of a distributed `optimizer`. Raises `ConfigurationError` if it is not distributed."""
    entry = next((entry for entry in place.context(Trained).optimizers.values() if entry.optimizer is optimizer), None)
    if entry is None:
        raise ConfigurationError(f"{call} takes an optimizer that quorate.distribute has returned")
    return entry


def entry_of(place: Place, optimizer: Optimizer, call: str) -> Distributed:
    """Return the training of a distributed `optimizer`, for a `call` that changes its parameters.

    Raises `ConfigurationError` if it is not distributed, its model is in shards, or another library keeps it equal.
    """
    entry = distributed_entry(place, optimizer, call)
    if entry.coordinates is not None:
        raise ConfigurationError(
            f"{call} needs a model that each worker holds completely, and this one is in shards; call it before "
            "quorate.parallelize, or train without shards"
        )
    if entry.worker is None and place.wire.max_size > 1:
        raise ConfigurationError(f"{call} needs a strategy of Quorate, and this run is a baseline of a comparison")
    if entry.worker is not None:
        check(
            Combination(
                label=entry.strategy or "",
                strategy=entry.worker.strategy,
                optimizer=entry.worker.replica.plain,
                shrinks=f"quorate.shrink.{call}",
            ),
            "shrink",
        )
    return entry


def loop_of(place: Place, entry: Distributed) -> Loop | None:
    """Return the training loop of `entry`; None for a worker alone."""
    return next((loop for loop in loops_of(place) if loop.worker.name == entry.name), None)
