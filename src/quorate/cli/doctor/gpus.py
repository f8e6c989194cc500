"""The rows of torch itself, of every GPU, and of the pairs of GPUs that reach each other directly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quorate.cli.doctor.findings import Finding, ok, warn
from quorate.report.wording import bytes_in_words


def rows(facts: Mapping[str, Any], workers: int) -> Iterator[tuple[str, Finding]]:
    """Yield torch from `torch.utils.collect_env`, and the GPUs; those beyond the `workers` of a host are not judged."""
    python = facts["python_version"].partition(" ")[0]
    versions = (facts["cuda_compiled_version"], facts["hip_compiled_version"])
    build = next((version for version in versions if version not in (None, "N/A")), None)
    yield "torch", ok(f"{facts['torch_version']}, Python {python}, {facts['os']}")
    gpus, driver = facts["gpus"], facts["nvidia_driver_version"]
    if not gpus and driver is not None:
        reason = f"torch, built for {build}, sees none" if build else "torch was built for the CPU"
        fix = "install torch for your driver's version of CUDA"
        yield "gpu", warn(f"driver {driver} is installed, but {reason}", fix)
    elif not gpus:
        yield "gpu", ok("none; workers compute on the CPU")
    for number, about in enumerate(gpus):
        yield f"gpu {number}", gpu(about, is_used=number < workers)
    if apart := ", ".join(f"{first}-{second}" for first, second in facts["apart"]):
        yield "gpu pairs", ok(f"through host memory: {apart}; all others reach each other directly")
    elif len(gpus) > 1:
        yield "gpu pairs", ok("all reach each other directly")
    if gpus and facts["nvml"]:
        yield "nvml", ok(facts["nvml"])


def gpu(about: Mapping[str, Any], *, is_used: bool) -> Finding:
    """Judge one GPU: processes left over, uncorrected errors of its memory, and lower clocks are warnings."""
    free, memory = bytes_in_words(about["free"]), bytes_in_words(about["memory"])
    facts = [f"{about['name']} (compute capability {about['capability']})", f"{free} of {memory} free"]
    fixes = []
    if about.get("clock") is not None:
        facts.append(f"{about['clock']} of {about['most_clock']} MHz")
    if (errors := about.get("ecc_errors")) is not None:
        facts.append(f"{errors or 'no'} uncorrected ECC errors")
    if errors:
        fixes.append("let an administrator reset it: nvidia-smi --gpu-reset")
    if about.get("slowed_by"):
        facts.append(f"slowed down by {' and '.join(about['slowed_by'])}")
        fixes.append("see to its cooling and power")
    for process in about.get("processes", ()):
        size = "" if process["memory"] is None else f" with {bytes_in_words(process['memory'])}"
        facts.append(f"process {process['pid']}{size}")
        fixes.append(f"if it is left over: kill {process['pid']}")
    fact = ", ".join(facts)
    return warn(fact, "; ".join(fixes)) if fixes and is_used else ok(fact)
