"""GPUs: the facts of torch and of NVML, each stood in for, and the judgement of them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quorate.cli.doctor.findings import Finding
from quorate.cli.doctor.gpus import rows
from quorate.launch.worker.trial import gpu_facts

GB = 10**9
UUIDS = ("11111111-2222", "33333333-4444")


class NVMLError(Exception):
    """The class of that name in pynvml."""


class Pynvml(SimpleNamespace):
    """The calls of `pynvml` that are made, over GPUs by handle; what is missing is not supported."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, NVML_CLOCK_SM = 1, 0, 1
    nvmlClocksThrottleReasonSwPowerCap, nvmlClocksThrottleReasonHwThermalSlowdown = 0x4, 0x40
    nvmlClocksThrottleReasonGpuIdle = 0x1

    def __init__(self, gpus: list[dict[str, Any]]) -> None:
        self.gpus, self.is_open, self.NVMLError = gpus, False, NVMLError

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        assert self.is_open
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: dict[str, Any]) -> str:
        return str(gpu["uuid"])

    def nvmlDeviceGetTotalEccErrors(self, gpu: dict[str, Any], kind: int, counter: int) -> int:
        if "ecc" not in gpu:
            raise NVMLError("Not Supported")
        assert (kind, counter) == (1, 0)
        return int(gpu["ecc"])

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: dict[str, Any]) -> int:
        return int(gpu.get("reasons", 0))

    def nvmlDeviceGetClockInfo(self, gpu: dict[str, Any], kind: int) -> int:
        return 1410

    def nvmlDeviceGetMaxClockInfo(self, gpu: dict[str, Any], kind: int) -> int:
        return 1980

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: dict[str, Any]) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in gpu.get("processes", {}).items()]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs for torch, of which only the first reaches the second."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(name="NVIDIA H100", major=9, minor=0, uuid=UUIDS[index]),
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (79 * GB, 80 * GB))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda first, second: (first, second) == (0, 1))


def judged(monkeypatch: pytest.MonkeyPatch, nvml: object, workers: int = 2, **more: object) -> dict[str, Finding]:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return dict(rows({**environment(), **gpu_facts(), **more}, workers))


def environment(driver: str | None = "580", build: str | None = "13.0") -> dict[str, Any]:
    return {
        "torch_version": "2.13.0", "python_version": "3.12.4 (main, May 1 2026) [GCC 12.2.0]", "os": "Debian",
        "cuda_compiled_version": build, "hip_compiled_version": "N/A", "nvidia_driver_version": driver,
        "gpus": [], "apart": [], "nvml": "",
    }  # fmt: skip


@pytest.mark.usefixtures("two")
def test_every_gpu_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its uuid: NVML may have another order, and GPUs that torch is not to see."""
    shown = {"uuid": f"GPU-{UUIDS[1]}", "ecc": 0, "reasons": 0x1}
    hidden = {"uuid": "GPU-99", "ecc": 7}
    nvml = Pynvml([hidden, shown, {"uuid": f"GPU-{UUIDS[0]}"}])
    findings = judged(monkeypatch, nvml)
    assert list(findings) == ["torch", "gpu 0", "gpu 1", "gpu pairs"] and not nvml.is_open
    card = "NVIDIA H100 (compute capability 9.0), 79.0 GB of 80.0 GB free, 1410 of 1980 MHz"
    assert findings["gpu 0"] == ("OK", card, "")
    assert findings["gpu 1"] == ("OK", f"{card}, no uncorrected ECC errors", "")
    assert findings["gpu pairs"] == ("OK", "through host memory: 0-1; all others reach each other directly", "")


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("fault", "found", "fix"),
    [
        ({"ecc": 3}, "3 uncorrected ECC errors", "nvidia-smi --gpu-reset"),
        ({"reasons": 0x40}, "slowed down by too high a temperature", "cooling"),
        ({"reasons": 0x44}, "slowed down by too high a temperature and its power limit", "power"),
        ({"processes": {4711: 12 * GB}}, "process 4711 with 12.0 GB", "if it is left over: kill 4711"),
        ({"processes": {4711: None}}, "process 4711", "kill 4711"),
    ],
)
def test_a_fault_is_a_warning_on_a_gpu_that_the_run_uses(
    fault: dict[str, Any], found: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for workers, level in ((2, "WARN"), (1, "OK")):
        nvml = Pynvml([{"uuid": f"GPU-{UUIDS[0]}"}, {"uuid": f"GPU-{UUIDS[1]}", **fault}])
        findings = judged(monkeypatch, nvml, workers)
        assert findings["gpu 0"].level == "OK"
        assert findings["gpu 1"].level == level and found in findings["gpu 1"].found
        assert (fix in findings["gpu 1"].fix) == (level == "WARN")


@pytest.mark.usefixtures("two")
def test_without_nvml_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = judged(monkeypatch, None)
    assert findings["gpu 0"] == ("OK", "NVIDIA H100 (compute capability 9.0), 79.0 GB of 80.0 GB free", "")
    assert findings["nvml"].level == "OK" and findings["nvml"].found.endswith("pip install nvidia-ml-py")
    assert len(findings["nvml"].found) < 100


@pytest.mark.usefixtures("two")
def test_nvml_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NVMLError("Driver/library version mismatch")

    nvml = Pynvml([])
    nvml.nvmlInit = refuse  # type: ignore[method-assign]
    findings = judged(monkeypatch, nvml)
    assert findings["gpu 0"].level == "OK"
    assert findings["nvml"].found == "NVML does not answer: Driver/library version mismatch"


def finding_of_gpu(driver: str | None, build: str | None) -> Finding:
    return dict(rows(environment(driver, build), 2))["gpu"]


def test_a_gpu_that_torch_cannot_use_is_a_warning() -> None:
    assert finding_of_gpu(None, None) == ("OK", "none; workers compute on the CPU", "")
    cpu_build, old_driver = finding_of_gpu("580", None), finding_of_gpu("470", "13.0")
    assert cpu_build.level == "WARN" and "built for the CPU" in cpu_build.found
    assert old_driver.level == "WARN" and "sees none" in old_driver.found


def test_torch_is_named_with_its_python() -> None:
    assert next(rows(environment(), 2)) == ("torch", ("OK", "2.13.0, Python 3.12.4, Debian", ""))


def test_pairs_that_all_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"name": "H100", "capability": "9.0", "memory": 80 * GB, "free": 79 * GB}
    findings = dict(rows({**environment(), "gpus": [about] * 3}, 3))
    assert findings["gpu pairs"] == ("OK", "all reach each other directly", "")
