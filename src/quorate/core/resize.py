"""The state of a strategy when the number of workers changes: each field names its law.

A strategy with state returns from `start` a dataclass whose fields are made by `kept`:

    @dataclass
    class State:
        momentum: Flat = kept("same")
        residual: Flat = kept("sum")

law       in a checkpoint       in a world of another size
same      once                  as it is: it is equal on all workers
sum       of every worker       its sum is kept: the old workers' are assigned in turn, and added up
total     of every worker       each gets the sum of the old workers'; in a world of the same size, too
keyed     of every worker       a dict by the rank of another worker: empty, as ranks are others then
clients   of every worker       a dict by client: each client's goes to the worker that plays it
average   of every worker       each gets the mean of the old workers'
own       of every worker       refused, with a sentence
drop      not at all            as `start` makes it

In a world of the same size all but `total` and `drop` are restored as they were. A value is a `Flat`, a tensor, a
number, or lists, tuples and dicts of these; None stands for nothing yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from quorate.core.errors import CheckpointError, ConfigurationError, unknown
from quorate.core.vectors import Flat

LAW = "resize"
"""The key of a field's metadata under which its law stands."""

Resize = Callable[[str, Sequence[Any], int, int], Any]
"""(name, the old workers' values by rank, new rank, new size) gives the new worker's value."""


ADAPTED = "is adapted"
"""The metadata key of whether `restored` accepts a list of another length."""


def kept(law: str, *, is_adapted: bool = False, **options: Any) -> Any:
    """Return a field of a strategy's state, with its law for a world of another size.

    With `is_adapted` a list may have another length in a checkpoint than it has at the start; `restored` adapts it.
    """
    if law not in LAWS:
        raise unknown("resize law", law, LAWS)
    return dataclasses.field(metadata={LAW: law, ADAPTED: is_adapted}, **options)


def laws_of(state: Any) -> dict[str, str]:
    """Return the law of every field of a strategy's state, by name; none where there is no state.

    Raises `ConfigurationError` for a state that is no dataclass, and for a field without a law.
    """
    if state is None:
        return {}
    kind = type(state).__name__
    if not dataclasses.is_dataclass(state):
        raise ConfigurationError(f"the state of a strategy must be a dataclass, not a {kind}")
    laws = {field.name: field.metadata.get(LAW) for field in dataclasses.fields(state)}
    for name, law in laws.items():
        if law is None:
            raise ConfigurationError(f"{name} of {kind} has no resize law; known: {', '.join(sorted(LAWS))}")
    return laws  # type: ignore[return-value]


def resized(law: str, name: str, old: Sequence[Any], rank: int, size: int) -> Any:
    """Return the value of a field for worker `rank` of `size`, from the `old` workers' values by rank."""
    if len(old) == size and law not in ("same", "total"):
        return old[rank]
    return LAWS[law](name, old, rank, size)


def dealt(count: int, rank: int, size: int) -> range:
    """Return the old workers, of `count`, whose values worker `rank` of `size` takes over: each goes to exactly one."""
    return range(rank, count, size)


def _same(name: str, old: Sequence[Any], rank: int, size: int) -> Any:
    return old[0]


def _sum(name: str, old: Sequence[Any], rank: int, size: int) -> Any:
    values_of_rank = [old[other] for other in dealt(len(old), rank, size)]
    total = values_of_rank[0] if values_of_rank else _combined(name, [old[0]], lambda values: values[0] * 0)
    for more in values_of_rank[1:]:
        total = _combined(name, [total, more], lambda values: values[0] + values[1])
    return total


def _total(name: str, old: Sequence[Any], rank: int, size: int) -> Any:
    return _combined(name, old, _added)


def _average(name: str, old: Sequence[Any], rank: int, size: int) -> Any:
    return _combined(name, old, lambda values: _added(values) / len(values))


def _added(values: Sequence[Any]) -> Any:
    total = values[0]
    for more in values[1:]:
        total = total + more
    return total


def _keyed(name: str, old: Sequence[Any], rank: int, size: int) -> Any:
    return {}


def _own(name: str, old: Sequence[Any], rank: int, size: int) -> Any:
    raise CheckpointError(
        f"{name} belongs to each worker by itself, so a checkpoint of {len(old)} workers cannot go on with {size}; "
        f"resume with -n {len(old)}"
    )


def _combined(name: str, values: Sequence[Any], combine: Callable[[Sequence[Any]], Any]) -> Any:
    """`combine` of the tensors and numbers at the same places of all `values`; None counts as nothing."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    first = there[0]
    if isinstance(first, torch.Tensor | Flat | float) or (isinstance(first, int) and not isinstance(first, bool)):
        return combine(there)
    if isinstance(first, dict) and all(value.keys() == first.keys() for value in there):
        return {key: _combined(name, [value[key] for value in there], combine) for key in first}
    if isinstance(first, list | tuple) and all(len(value) == len(first) for value in there):
        return type(first)([_combined(name, list(row), combine) for row in zip(*there, strict=True)])
    raise CheckpointError(f"{name} is a {type(first).__name__} on some worker, which cannot be added up")


def _clients(name: str, old: Sequence[Any], rank: int, size: int) -> Any:
    return {key: value for values in old for key, value in values.items() if int(key) % size == rank}


LAWS: dict[str, Resize] = {
    "same": _same,
    "sum": _sum,
    "total": _total,
    "keyed": _keyed,
    "clients": _clients,
    "average": _average,
    "own": _own,
    "drop": _own,
}
