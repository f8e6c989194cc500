"""A program that measures collectives and rounds beside torch's: what `quorate bench` starts under `quorate run`.

The argument is a JSON object: `operations`, `sizes` in bytes, and `seconds` for each size. Rank 0 prints a line for
each row, and one before them that names the network.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import quorate
from quorate.launch.worker.bus_bandwidth import OPERATIONS, Rate, rate, rates, repeated, timed
from quorate.launch.worker.trial import TIMEOUT, remove_run_folder

ROUND = "round"
"""A step of `quorum:wait_for=all`, or of torch DDP, on one parameter: the backward pass, the mean, and the update."""


_REDUCE_SCATTER: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
"""Torch has had these names since 2.13, and warns of the earlier ones."""


def _piece(x: Tensor) -> Tensor:
    return x.tensor_split(dist.get_world_size())[dist.get_rank()]


def _reduce_scatter(x: Tensor) -> Tensor:
    piece = torch.empty_like(_piece(x))
    _REDUCE_SCATTER(piece, x)
    return piece


def _all_gather(x: Tensor) -> Tensor:
    whole = torch.empty_like(x)
    _ALL_GATHER(whole, _piece(x))
    return whole


def _all_to_all(x: Tensor) -> Tensor:
    pieces = torch.empty_like(x)
    dist.all_to_all_single(pieces, x)
    return pieces


def _all_reduce(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x


def _broadcast(x: Tensor) -> Tensor:
    dist.broadcast(x, 0)
    return x


BY_TORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "all-reduce": _all_reduce,
    "reduce-scatter": _reduce_scatter,
    "all-gather": _all_gather,
    "all-to-all": _all_to_all,
    "broadcast": _broadcast,
}
"""The operations of `OPERATIONS`, by torch's default process group."""


def round_rates(
    world: quorate.World, sizes: Sequence[int], seconds: float, *, backend: str | None = None
) -> Iterator[Rate]:
    """Yield the row of each size; with `backend`, the name of torch's, those of DDP."""
    wire = world.wire
    for size in sizes:
        parameter = nn.Parameter(torch.zeros(max(1, size // 4), device=world.device))
        model: Any = nn.ParameterList([parameter])
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
        forward = _Weighted(parameter, world.rank + 1.0)
        run: Any = DistributedDataParallel(forward) if backend else forward
        if backend is None:
            quorate.distribute(optimizer, forward, strategy="quorum", wait_for="all")

        def step(run: Any = run, optimizer: Any = optimizer) -> None:
            run().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        error = (parameter.detach() + (world.size + 1) / 2).abs_().max().item()
        once, _ = timed(wire, world.device, step, 1)
        elapsed = repeated(wire, world.device, step, once, seconds)
        if backend is None:
            optimizer.finish()
        factor = OPERATIONS["all-reduce"].factor(world.size)
        yield rate(wire, ROUND, backend or "quorate", parameter.numel(), elapsed, error, factor)


class _Weighted(nn.Module):
    """The sum of a parameter times a weight, which is each number of its gradient."""

    def __init__(self, parameter: nn.Parameter, weight: float) -> None:
        super().__init__()
        self.parameter, self.weight = parameter, weight

    def forward(self) -> Tensor:
        return self.parameter.sum() * self.weight


def main() -> None:
    """Measure the operations that the argument names, Quorate's and torch's in turn for each size."""
    asked = json.loads(sys.argv[1])
    world = quorate.join(timeout=TIMEOUT, records=False)
    wire, device, sizes, seconds = world.wire, world.device, asked["sizes"], asked["seconds"]
    backend = dist.get_backend_config().partition(f"{device.type}:")[2].partition(",")[0] or dist.get_backend()
    is_one_host = all(wire.host_of(rank) == wire.host_of(0) for rank in range(wire.size))
    network = backend if wire.sums_on(device) else "shared memory" if is_one_host else "sockets"
    if world.is_first:
        print(json.dumps({"network": network, "backend": backend, "device": device.type}), flush=True)
    for name in asked["operations"]:
        if name == ROUND:
            both = [round_rates(world, sizes, seconds, backend=way) for way in (None, backend)]
        else:
            both = [
                rates(wire, device, name, sizes, seconds=seconds),
                rates(wire, device, name, sizes, seconds=seconds, way=backend, call=BY_TORCH[name]),
            ]
        for row in chain.from_iterable(zip_longest(*both)):
            if row is not None and world.is_first:
                print(json.dumps(asdict(row)), flush=True)
    world.barrier()
    remove_run_folder()


if __name__ == "__main__":
    main()
