"""The device "sim": the CPU under another name, which refuses what a GPU refuses. Built when it is first asked for."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import types
from functools import cache
from pathlib import Path

import torch

NAME = "sim"
_SOURCE = Path(__file__).parent / "device.cpp"
_BUILT = Path(__file__).parents[3] / "build" / "second_device"


def lacking() -> str | None:
    """Why it cannot be built here, if it cannot."""
    return None if shutil.which("g++") else "needs g++, to build a second device for torch"


@cache
def begin() -> torch.device:
    """Register it with torch in this process, once; the first call on a machine compiles for a minute."""
    torch.ops.load_library(str(built()))
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(NAME)
    module.is_available = lambda: True  # type: ignore[attr-defined]
    module.device_count = lambda: 1  # type: ignore[attr-defined]
    module.current_device = lambda: 0  # type: ignore[attr-defined]
    module.set_device = lambda _: None  # type: ignore[attr-defined]
    module.synchronize = lambda *_: None  # type: ignore[attr-defined]
    module.is_initialized = lambda: True  # type: ignore[attr-defined]
    module._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    module.manual_seed_all = lambda _: None  # type: ignore[attr-defined]
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]  # type: ignore[attr-defined]
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return torch.device(NAME, 0)


def built() -> Path:
    """The library, compiled for this torch."""
    key = hashlib.sha256(_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    found = _BUILT / f"{key}.so"
    if not found.exists():
        root = Path(torch.__file__).parent
        _BUILT.mkdir(parents=True, exist_ok=True)
        new = found.with_suffix(f".{os.getpid()}")
        abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
        subprocess.run(
            [
                *("g++", "-O1", "-shared", "-fPIC", "-std=c++20", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
                *(f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include", str(_SOURCE)),
                *(f"-L{root}/lib", "-ltorch_cpu", "-lc10", "-o", str(new)),
            ],
            check=True,
        )
        new.rename(found)
    return found
