"""The bandwidth of a world: the seconds of collectives over all its workers, measured and named as nccl-tests does.

If an operation on B bytes takes t seconds, the algorithm bandwidth is B / t. The bus bandwidth is that times a factor
of the operation: the bytes that each of n workers has to send or receive, over B. It can be compared with the rate of a
link, for any n. Each size costs two operations before those that are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Wire

ON_CPU = (1 << 14, 1 << 18, 1 << 22, 1 << 26)
"""Sizes in bytes that are measured on a CPU."""
ON_GPU = (1 << 20, 1 << 23, 1 << 26, 1 << 29)
SECONDS = 0.5
"""Time in which sums of one size are repeated."""
_MOST_REPEATS = 20
_LONGEST = 15.0
"""Predicted seconds of one operation from which on sizes are left out."""
_DTYPE = torch.float32
_PERIOD = 7

Result = Tensor | Sequence[Tensor]
"""A vector, or its pieces."""
Call = Callable[[], Result]
"""Makes one operation on this worker, waits for it, and returns its result."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The rate of one operation on one size: a row of nccl-tests."""

    operation: str
    way: str
    """The author of the operation: "quorate", or the name of torch's backend."""
    size: int
    """Bytes: of the tensor before the operation or after it, whichever is larger."""
    elements: int
    dtype: str
    seconds: float
    """The mean of all workers and repeats."""
    algorithm_bandwidth: float
    """Bytes per second."""
    bus_bandwidth: float
    """Bytes per second."""
    error: float
    """The largest difference from the right result, over all numbers and workers."""


@dataclass(frozen=True)
class Operation:
    """A collective on a vector of n pieces for n workers."""

    own: Callable[[Wire, Tensor], Result]
    factor: Callable[[int], float]
    """Returns the bus bandwidth over the algorithm bandwidth for n workers, as nccl-tests defines it."""
    right: Callable[[Tensor, int, int], Tensor]
    """Returns the result from the pattern, the rank and the number of workers; worker r begins with pattern + r."""
    has_pieces: bool = False
    """Whether torch needs a vector of n equal pieces."""


def _ranks(pattern: Tensor, size: int) -> Tensor:
    """Return for each number the worker in whose piece it is."""
    return torch.arange(size, device=pattern.device, dtype=_DTYPE).repeat_interleave(len(pattern) // size)


def _sum(pattern: Tensor, rank: int, size: int) -> Tensor:
    return pattern * size + size * (size - 1) / 2


OPERATIONS: Mapping[str, Operation] = {
    "all-reduce": Operation(lambda wire, x: wire.all_reduce(x).wait(), lambda n: 2 * (n - 1) / n, _sum),
    "reduce-scatter": Operation(
        lambda wire, x: wire.reduce_scatter(x).wait(),
        lambda n: (n - 1) / n,
        lambda pattern, rank, size: _sum(pattern, rank, size).tensor_split(size)[rank],
        has_pieces=True,
    ),
    "all-gather": Operation(
        lambda wire, x: wire.all_gather(x.tensor_split(wire.size)[wire.rank]).wait(),
        lambda n: (n - 1) / n,
        lambda pattern, rank, size: pattern + _ranks(pattern, size),
        has_pieces=True,
    ),
    "all-to-all": Operation(
        lambda wire, x: wire.all_to_all(x.tensor_split(wire.size)).wait(),
        lambda n: (n - 1) / n,
        lambda pattern, rank, size: pattern.tensor_split(size)[rank].repeat(size) + _ranks(pattern, size),
        has_pieces=True,
    ),
    "broadcast": Operation(
        lambda wire, x: wire.broadcast(x).wait(), lambda n: 1.0, lambda pattern, rank, size: pattern
    ),
}


def bus_bandwidth(wire: Wire, device: torch.device, sizes: Sequence[int] | None = None) -> list[Rate]:
    """Measure sums over all workers of `wire`, each of which makes this call.

    Tensors of float32 on `device` go the way that gradients go: by shared memory, messages, gloo or NCCL.

    Args:
        wire: The wire of all workers; another thread may not use it meanwhile.
        device: The device of the tensors.
        sizes: Bytes, in ascending order; by default four, which depend on the device.

    Returns:
        One row for each size. Sizes of which one sum would take more than 15 seconds are left out.
    """
    return list(rates(wire, device, "all-reduce", sizes or (ON_CPU if device.type == "cpu" else ON_GPU)))


def rates(
    wire: Wire,
    device: torch.device,
    name: str,
    sizes: Sequence[int],
    *,
    way: str = "quorate",
    call: Callable[[Tensor], Result] | None = None,
    seconds: float = SECONDS,
) -> Iterator[Rate]:
    """Measure one operation; every worker of `wire` makes this call.

    Args:
        wire: The wire of all workers; another thread may not use it meanwhile.
        device: The device of the tensors.
        name: A key of `OPERATIONS`.
        sizes: Bytes, in ascending order. Where there are pieces, each is made a multiple of the number of workers.
        way: The name in the rows.
        call: Makes the operation on a vector another way, and returns its result; None: as `wire` does.
        seconds: Time in which operations of one size are repeated.

    Yields:
        One row for each size. Sizes of which one operation would take more than 15 seconds are left out.
    """
    operation, elapsed, before = OPERATIONS[name], 0.0, 0
    for size in sizes:
        if before and elapsed * size / before > _LONGEST:
            return
        pieces = wire.size if operation.has_pieces else 1
        elements = max(1, size // _DTYPE.itemsize // pieces) * pieces
        pattern = torch.arange(elements, device=device).remainder_(_PERIOD).to(_DTYPE)
        x = wire.empty(elements, _DTYPE) if device.type == "cpu" and call is None else torch.empty_like(pattern)
        move: Call = partial(call, x) if call else partial(operation.own, wire, x)
        elapsed, error = _checked(wire, operation, move, x, pattern, seconds)
        before = elements * _DTYPE.itemsize
        yield rate(wire, name, way, elements, elapsed, error, operation.factor(wire.size))


def rate(wire: Wire, name: str, way: str, elements: int, seconds: float, error: float, factor: float) -> Rate:
    """Return the row of an operation on so many elements of float32."""
    size = elements * _DTYPE.itemsize
    bandwidth = size / seconds if seconds > 0 else float("inf")
    return Rate(
        operation=name, way=way, size=size, elements=elements, dtype=str(_DTYPE).removeprefix("torch."),
        seconds=seconds, algorithm_bandwidth=bandwidth, bus_bandwidth=bandwidth * factor, error=error,
    )  # fmt: skip


def _checked(
    wire: Wire, operation: Operation, call: Call, x: Tensor, pattern: Tensor, seconds: float
) -> tuple[float, float]:
    """Return the seconds of a call and its error: the mean and the greatest of all workers."""
    once = 0.0
    for _ in range(2):  # the first of a shape may go another way
        x.copy_(pattern + wire.rank)
        once, result = timed(wire, x.device, call, 1)
    whole = result if isinstance(result, Tensor) else torch.cat(list(result))
    error = (whole - operation.right(pattern, wire.rank, wire.size)).abs_().max().item()
    x.zero_()
    return repeated(wire, x.device, call, once, seconds), _over_workers(wire, 0.0, error)[1]


def repeated(wire: Wire, device: torch.device, call: Callable[[], Any], once: float, seconds: float) -> float:
    """Return the mean seconds of a call, repeated for about `seconds`, if one took `once` on this worker."""
    mean, _ = _over_workers(wire, once, 0.0)
    count = max(1, min(_MOST_REPEATS, int(seconds / mean))) if mean > 0 else 1
    return _over_workers(wire, timed(wire, device, call, count)[0] / count, 0.0)[0]


def timed(wire: Wire, device: torch.device, call: Callable[[], Any], count: int) -> tuple[float, Any]:
    """Return the seconds of so many calls, and what the last has returned."""
    synchronize = torch.get_device_module(device).synchronize
    synchronize()
    begin, result = wire.clock.now(), None
    for _ in range(count):
        result = call()
    synchronize()
    return wire.clock.now() - begin, result


def _over_workers(wire: Wire, seconds: float, error: float) -> tuple[float, float]:
    """Return the mean of the seconds, and the largest error."""
    both = torch.stack(wire.all_gather(torch.tensor([seconds, error], dtype=torch.float64)).wait())
    return float(both[:, 0].mean()), float(both[:, 1].max())
