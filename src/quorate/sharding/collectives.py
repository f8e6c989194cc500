"""FSDP's two collectives over a wire of ours, for numbers on the CPU.

The sum of a reduce-scatter is formed in order of rank (`Wire.reduce_scatter`), and each worker sends and receives what
the theory says, (S - 1) / S of the vector; gloo's own forms the sum of all on every worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from quorate.core.contracts import Wire


class Collected(dist.Work):
    """A collective under way, as torch wants it."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self._finish = finish

    def wait(self, timeout: Any = None) -> bool:
        """Return when the result is there. Raises as `core.contracts.Work.wait`."""
        self._finish()
        return True


class _InOrdinaryMemory:
    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(tuple(size), dtype=dtype, device=device)


class WireAllGather(_InOrdinaryMemory):
    """Implements torch's `AllGather` over a wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: object, async_op: bool = False
    ) -> Collected | None:
        work = self._wire.all_gather(input_tensor.detach())
        rank, pieces = self._wire.rank, output_tensor.chunk(self._wire.size)

        def finish() -> None:
            for source, numbers in enumerate(work.wait()):
                if source != rank:  # what is given is a piece of the output already
                    pieces[source].copy_(numbers)

        if async_op:
            return Collected(finish)
        finish()
        return None


class WireReduceScatter(_InOrdinaryMemory):
    """Implements torch's `ReduceScatter` over a wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: object, op: Any, async_op: bool = False
    ) -> Collected | None:
        work = self._wire.reduce_scatter(input_tensor)

        def finish() -> None:
            if op == dist.ReduceOp.AVG:
                torch.div(work.wait(), self._wire.size, out=output_tensor)
            else:
                output_tensor.copy_(work.wait())

        if async_op:
            return Collected(finish)
        finish()
        return None
