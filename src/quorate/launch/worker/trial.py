"""A program that tries one thing and says how it went, in one line of JSON: what `quorate doctor` starts.

Asked by `python -m quorate.launch.worker.trial`, followed by

facts                            for the environment, and the GPUs that torch sees
reduce BACKEND STORE RANK SIZE   for one all-reduce among SIZE processes that meet at a file
half                             for a product of matrices in bfloat16 on the CPU
train                            for one step of a training, under `quorate run`
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

LIMIT = timedelta(seconds=60)
ELEMENTS = 1000


def facts() -> dict[str, Any]:
    """Return the environment as `torch.utils.collect_env` has it, and the GPUs that torch sees."""
    import torch
    from torch.utils.collect_env import get_env_info

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {**get_env_info()._asdict(), "gpus": [torch.cuda.get_device_name(index) for index in range(count)]}


def reduce(backend: str, store: str, rank: int, size: int) -> dict[str, Any]:
    """The sum of 1 to `size`, a thousand times over, and the seconds it took once all had met."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    dist.init_process_group(backend, store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=LIMIT)
    x = torch.full((ELEMENTS,), float(rank + 1), device=device)
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(x)
    sums = x.tolist()
    seconds = time.perf_counter() - begin
    dist.barrier()
    return {"rank": rank, "right": sums == [size * (size + 1) / 2] * ELEMENTS, "seconds": seconds}


def half() -> dict[str, Any]:
    """Check whether a product in bfloat16 equals that in float32. Some virtual machines end the process instead."""
    import torch

    factor = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    product, wanted = (factor @ factor).float(), factor.float() @ factor.float()
    return {"right": torch.allclose(product, wanted, atol=0.5, rtol=0.02)}


def train() -> dict[str, Any]:
    """One synchronous step, which must use the mean of all workers' gradients; the result as rank 0 has it."""
    import torch

    import quorate

    world = quorate.join(timeout=LIMIT.total_seconds())
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=1.0), model, strategy="all-reduce")
    model(torch.tensor([[float(world.rank)]])).sum().backward()
    optimizer.step()
    optimizer.finish()
    weights = world.gather(model.weight.item())
    return {"rank": world.rank, "right": weights == [-(world.size - 1) / 2] * world.size}


def main() -> None:
    """Run the trial that the arguments name. Nothing is taken down at the end: that is not tried."""
    trial, *arguments = sys.argv[1:]
    if trial == "reduce":
        backend, store, rank, size = arguments
        result = reduce(backend, store, int(rank), int(size))
    else:
        result = {"facts": facts, "half": half, "train": train}[trial]()
    if result.get("rank", 0) == 0 or trial == "reduce":
        print(json.dumps(result), flush=True)
    if trial == "reduce":
        os._exit(0)


if __name__ == "__main__":
    main()
