"""The GPUs that torch sees: their memory, which reach each other directly, and what NVML says where it is installed."""

from __future__ import annotations

from itertools import combinations
from typing import Any

_SLOWED = {
    "SwThermalSlowdown": "too high a temperature",
    "HwThermalSlowdown": "too high a temperature",
    "HwPowerBrakeSlowdown": "an external power brake",
    "HwSlowdown": "a hardware slowdown",
    "SwPowerCap": "its power limit",
}
"""The reasons for lower clocks that NVML names, and words for them; an idle GPU is none."""


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
