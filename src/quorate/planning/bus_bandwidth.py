"""The bus bandwidth of a world: the seconds of sums over all its workers, measured and named as nccl-tests does.

If B bytes on each of n workers are summed in t seconds, the algorithm bandwidth is B / t. The bus bandwidth is
2 (n - 1) / n B / t: the bytes that each worker has to send and to receive. It can be compared with the rate of a
link, for any n. Each size costs two sums before those that are timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quorate.core.contracts import Wire

ON_CPU = (1 << 14, 1 << 18, 1 << 22, 1 << 26)
"""Sizes in bytes that are measured on a CPU."""
ON_GPU = (1 << 20, 1 << 23, 1 << 26, 1 << 29)
SECONDS = 0.5
"""Time in which sums of one size are repeated."""
_MOST_SUMS = 20
_LONGEST = 15.0
"""Predicted seconds of one sum from which on sizes are left out."""
_DTYPE = torch.float32
_PERIOD = 7


@dataclass(frozen=True, kw_only=True)
class SumRate:
    """The rate of sums of one size: a row of nccl-tests."""

    size: int
    """Bytes of each worker."""
    elements: int
    dtype: str
    seconds: float
    """The mean of all workers and sums."""
    algorithm_bandwidth: float
    """Bytes per second."""
    bus_bandwidth: float
    """Bytes per second."""
    error: float
    """The largest difference from the right result, over all numbers and workers."""


def bus_bandwidth(wire: Wire, device: torch.device, sizes: Sequence[int] | None = None) -> list[SumRate]:
    """Measure sums over all workers of `wire`, each of which makes this call.

    Tensors of float32 on `device` go the way that gradients go: by shared memory, messages, gloo or NCCL.

    Args:
        wire: The wire of all workers; another thread may not use it meanwhile.
        device: The device of the tensors.
        sizes: Bytes, in ascending order; by default four, which depend on the device.

    Returns:
        One row for each size. Sizes of which one sum would take more than 15 seconds are left out.
    """
    rows: list[SumRate] = []
    for size in sizes or (ON_CPU if device.type == "cpu" else ON_GPU):
        if rows and rows[-1].seconds * size / rows[-1].size > _LONGEST:
            break
        rows.append(_measured(wire, device, size // _DTYPE.itemsize))
    return rows


def _measured(wire: Wire, device: torch.device, elements: int) -> SumRate:
    pattern = torch.arange(elements, device=device).remainder_(_PERIOD).to(_DTYPE)
    x = wire.empty(elements, _DTYPE) if device.type == "cpu" else torch.empty_like(pattern)
    for _ in range(2):  # the first of a shape may go another way
        x.copy_(pattern + wire.rank)
        seconds = _seconds(wire, x, 1)
    right = pattern.mul_(wire.size).add_(wire.size * (wire.size - 1) / 2)
    error = x.sub_(right).abs_().max().item()
    mean, error = _over_workers(wire, seconds, error)
    count = max(1, min(_MOST_SUMS, int(SECONDS / mean))) if mean > 0 else 1
    x.zero_()
    mean, _ = _over_workers(wire, _seconds(wire, x, count) / count, 0.0)
    size = elements * _DTYPE.itemsize
    rate = size / mean if mean > 0 else float("inf")
    return SumRate(
        size=size, elements=elements, dtype=str(_DTYPE).removeprefix("torch."), seconds=mean, algorithm_bandwidth=rate,
        bus_bandwidth=rate * 2 * (wire.size - 1) / wire.size, error=error,
    )  # fmt: skip


def _seconds(wire: Wire, x: Tensor, count: int) -> float:
    """Return the seconds in which `x` is summed so often."""
    synchronize = torch.get_device_module(x.device).synchronize
    synchronize()
    begin = wire.clock.now()
    for _ in range(count):
        wire.all_reduce(x).wait()
    synchronize()
    return wire.clock.now() - begin


def _over_workers(wire: Wire, seconds: float, error: float) -> tuple[float, float]:
    """Return the mean of the seconds, and the largest error."""
    both = torch.stack(wire.all_gather(torch.tensor([seconds, error], dtype=torch.float64)).wait())
    return float(both[:, 0].mean()), float(both[:, 1].max())
