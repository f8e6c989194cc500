"""A program that tries one thing and says how it went, in one line of JSON: what `quorate doctor` starts.

Asked by `python -m quorate.launch.worker.trial`, followed by

facts    for the environment, and the GPUs that torch sees
half     for a product of matrices in bfloat16 on the CPU
train    for one step of a training, under `quorate run`
measure  for that, and the bus bandwidth of all workers
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

TIMEOUT = 60.0
"""Seconds."""


def facts() -> dict[str, Any]:
    """Return the environment as `torch.utils.collect_env` has it, and the GPUs that torch sees."""
    from torch.utils.collect_env import get_env_info

    from quorate.launch.worker.gpu_facts import gpu_facts

    return {**get_env_info()._asdict(), **gpu_facts()}


def half() -> dict[str, Any]:
    """Check whether a product in bfloat16 equals that in float32. Some virtual machines end the process instead."""
    import torch

    factor = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    product, wanted = (factor @ factor).float(), factor.float() @ factor.float()
    return {"right": torch.allclose(product, wanted, atol=0.5, rtol=0.02)}


def train(*, measures: bool = False) -> dict[str, Any]:
    """One synchronous step, which must use the mean of all workers' gradients; the result as rank 0 has it."""
    import torch

    import quorate
    from quorate.launch.worker.bus_bandwidth import bus_bandwidth

    world = quorate.join(timeout=TIMEOUT, records=False)
    model = torch.nn.Linear(1, 1, bias=False).to(world.device)
    torch.nn.init.zeros_(model.weight)
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=1.0), model, strategy="all-reduce")
    model(torch.tensor([[float(world.rank)]], device=world.device)).sum().backward()
    optimizer.step()
    optimizer.finish()
    weights = world.gather(model.weight.item())
    right = weights == [-(world.size - 1) / 2] * world.size
    rows = [asdict(row) for row in bus_bandwidth(world.wire, world.device)] if measures else []
    remove_run_folder()
    return {"rank": world.rank, "workers": world.size, "device": world.device.type, "right": right, "rates": rows}


def remove_run_folder() -> None:
    """Remove the folder of the run on a host that has no records in it: any but the launcher's."""
    folder = Path(os.environ.get("QUORATE_RUN", os.devnull))
    with suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()


def main() -> None:
    """Run the trial that the argument names. Nothing is taken down at the end: that is not tried."""
    does: dict[str, Callable[[], dict[str, Any]]] = {"facts": facts, "half": half, "train": train}
    result = train(measures=True) if sys.argv[1] == "measure" else does[sys.argv[1]]()
    if result.get("rank", 0) == 0:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
