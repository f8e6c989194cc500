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
from itertools import combinations
from pathlib import Path
from typing import Any

TIMEOUT = 60.0
"""Seconds."""
_SLOWED = {
    "SwThermalSlowdown": "too high a temperature",
    "HwThermalSlowdown": "too high a temperature",
    "HwPowerBrakeSlowdown": "an external power brake",
    "HwSlowdown": "a hardware slowdown",
    "SwPowerCap": "its power limit",
}
"""The reasons for lower clocks that NVML names, and words for them; an idle GPU is none."""


def facts() -> dict[str, Any]:
    """Return the environment as `torch.utils.collect_env` has it, and the GPUs that torch sees."""
    from torch.utils.collect_env import get_env_info

    return {**get_env_info()._asdict(), **gpu_facts()}


def gpu_facts() -> dict[str, Any]:
    """Return `gpus`, a list of facts by index, `apart`, the pairs without direct access, and `nvml`.

    `nvml` is empty, or says why NVML was not asked.
    """
    import torch

    by_uuid, lacking = _by_nvml() if torch.cuda.is_available() else ({}, "")
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        about = {"name": properties.name, "capability": f"{properties.major}.{properties.minor}"}
        uuid = f"GPU-{getattr(properties, 'uuid', '')}"
        gpus.append({**about, "memory": total, "free": free, **by_uuid.get(uuid, {})})
    reach = torch.cuda.can_device_access_peer
    apart = [(a, b) for a, b in combinations(range(len(gpus)), 2) if not (reach(a, b) and reach(b, a))]
    return {"gpus": gpus, "apart": apart, "nvml": lacking}


def _by_nvml() -> tuple[dict[str, dict[str, Any]], str]:
    """Return the answers of NVML by uuid, and why there are none; asked before this process is on a GPU itself."""
    try:
        import pynvml as nvml
    except ImportError:
        return {}, "not installed; with it ECC errors, clocks and processes are shown: pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        facts = {_text(nvml.nvmlDeviceGetUUID(handle)): _of(nvml, handle) for handle in handles}
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return {}, f"NVML does not answer: {error}"
    return facts, ""


def _of(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return what one GPU answers; an entry is None where it does not support the question."""

    def asked(question: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, f"nvmlDeviceGet{question}")(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    mask = asked("CurrentClocksThrottleReasons") or 0
    slowed = [words for name, words in _SLOWED.items() if mask & getattr(nvml, f"nvmlClocksThrottleReason{name}", 0)]
    return {
        "ecc_errors": asked("TotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "clock": asked("ClockInfo", nvml.NVML_CLOCK_SM),
        "most_clock": asked("MaxClockInfo", nvml.NVML_CLOCK_SM),
        "slowed_by": list(dict.fromkeys(slowed)),
        "processes": [
            {"pid": process.pid, "memory": process.usedGpuMemory} for process in asked("ComputeRunningProcesses") or ()
        ],
    }


def _text(uuid: str | bytes) -> str:
    return uuid.decode() if isinstance(uuid, bytes) else uuid


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
