"""Eight GPUs that are not there: the current one of each thread, and on which one memory is pinned and waited for."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quorate.wire.real import shared


class FakeCuda:
    """`torch.cuda` as far as choosing a device goes; `pinned` and `waited` have the index at each call."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int = 8) -> None:
        self._own, self.pinned, self.waited = threading.local(), list[int](), list[int]()
        self.is_initialized = False
        fakes = {
            "is_available": lambda: True,
            "is_initialized": lambda: self.is_initialized,
            "device_count": lambda: count,
            "current_device": self.current,
            "set_device": self.set,
            "device": self._Inside(self),
            "synchronize": lambda device=None: self.waited.append(self.current() if device is None else device.index),
            "get_device_properties": lambda index: SimpleNamespace(
                uuid=f"gpu-{index}", pci_domain_id=0, pci_bus_id=index, pci_device_id=0
            ),
        }
        for name, fake in fakes.items():
            patch.setattr(torch.cuda, name, fake)
        patch.setattr(shared, "_runtime", lambda: self)

    cudaError = SimpleNamespace(success=0)

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.pinned.append(self.current())
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        return 0

    def current(self) -> int:
        self.is_initialized = True
        return getattr(self._own, "index", 0)

    def set(self, device: Any) -> None:
        self.is_initialized = True
        self._own.index = device if isinstance(device, int) else torch.device(device).index

    class _Inside:
        """Stands for the class `torch.cuda.device`."""

        def __init__(self, cuda: FakeCuda) -> None:
            self._cuda = cuda

        def __call__(self, device: Any) -> Any:
            from contextlib import contextmanager

            @contextmanager
            def inside() -> Any:
                before = self._cuda.current()
                self._cuda.set(device)
                try:
                    yield
                finally:
                    self._cuda.set(before)

            return inside()
