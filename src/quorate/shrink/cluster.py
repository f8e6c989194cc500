"""Weights that share few values: k-means of each weight, and a training of the values."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import Module
from torch.optim import Optimizer

from quorate.core.callable_module import let_call
from quorate.core.errors import ConfigurationError
from quorate.replica.groups import MOST, clustered, share_values, step_on_values, weights_of
from quorate.replica.worker_momentum import WorkerMomentum
from quorate.shrink.guard import Evaluate, Guard
from quorate.shrink.weights import Weight, check_patterns, entry_of, loop_of, matching, weights_in
from quorate.wire import current


def cluster(
    target: Module | Optimizer,
    groups: int = 16,
    *,
    layers: Sequence[str] | None = None,
    evaluate: Evaluate | None = None,
    guard: float | None = None,
) -> dict[str, int]:
    """Let the numbers of each weight share few values, by k-means; zeros, as of pruned numbers, stay zero.

    Weights of linear layers, convolutions, embeddings, LSTM and GRU layers become `weight_values` (k) and
    `weight_groups` (uint8). The values remain parameters, and the gradient of a value is the mean of those of its
    group: the learning rate may stay. A training after this call sends k numbers of a weight, and pruned numbers stay
    zero. `quorate pack` writes such a model with a few bits for each number.

    Args:
        target: A model, for an optimizer that is created afterwards; or the result of `quorate.distribute`. With the
            latter all workers call it after the same step: they pause with equal replicas, and the optimizer's momentum
            goes on as means over groups.
        groups: The largest number of values of a weight, 2 to 255: 16 need 4 bits, 255 need 8.
        layers: Names of layers or weights, or patterns of them. None: all.
        evaluate: Returns a loss of the model of a distributed optimizer, which is averaged over the workers.
        guard: The largest relative rise of that loss. A change that exceeds it is undone.

    Returns:
        The number of values of each weight, by name; none if the change is undone.

    Raises:
        ConfigurationError: A setting is wrong, no weight can share values, or the optimizer is not distributed or its
            model is in shards.

    Source: Han, Mao, Dally, "Deep compression", ICLR 2016, section 3. Cost: a sort of each weight.

    Example:
        >>> quorate.shrink.cluster(torch.nn.Linear(64, 64), groups=4)
        {'weight': 4}
    """
    _check(groups)
    guarded = Guard(evaluate, guard)
    if isinstance(target, Module):
        if guard is not None:
            raise ConfigurationError("guard undoes a change of all workers; pass the result of quorate.distribute")
        weights = list(weights_in(target, weights_of))
        return _share(_chosen(weights, layers), groups, None)
    place = current.here()
    entry = entry_of(place, target, "cluster()")
    loop = loop_of(place, entry)
    chosen = _chosen(list(weights_in(entry.model, weights_of, entry.parameters)), layers)
    counts: dict[str, int] = {}
    momentum = None if loop is None else loop.replica.momentum

    def change() -> bool:
        if not guarded.stays(place, entry, loop, share, "cluster"):
            counts.clear()
        return bool(counts)

    def share() -> None:
        counts.update(_share(chosen, groups, target, momentum))

    if loop is None:
        change()
    else:
        loop.relayout.replace(change, "cluster() replaces its weights")
    return counts


def _check(groups: object) -> None:
    if isinstance(groups, bool) or not isinstance(groups, int) or not 2 <= groups <= MOST:
        raise ConfigurationError(f"groups is a whole number from 2 to {MOST}, not {groups!r}")


def _chosen(weights: Sequence[Weight], layers: Sequence[str] | None) -> list[Weight]:
    check_patterns(weights, layers)
    chosen = [weight for weight in matching(weights, layers) if weight.is_plain]
    if not chosen:
        raise ConfigurationError("cluster() has no weight to replace: each shares values already, or cannot")
    return chosen


def _share(
    weights: Sequence[Weight], count: int, optimizer: Optimizer | None, momentum: WorkerMomentum | None = None
) -> dict[str, int]:
    counts = {}
    for weight in weights:
        values, indices = clustered(weight.parameter, count)
        old, parameter = share_values(weight.module, weight.key, values, indices)
        if optimizer is not None:
            step_on_values(optimizer, old, parameter, indices, momentum)
        counts[weight.name] = len(values)
    return counts


let_call(__name__, __name__, "cluster")  # `quorate.shrink.cluster` is this module and the function
