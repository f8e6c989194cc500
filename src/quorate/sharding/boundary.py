"""Copies of numbers between a device and the memory of its host, with their bytes counted.

On a CPU the device's memory and the host's are two buffers of the same memory, between which the same copies are made.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quorate.core.device_copies import event_on, record
from quorate.core.errors import ConfigurationError


@dataclass
class Boundary:
    """The copies of one worker and one model. Each keeps its dtype: numbers are converted before or after it."""

    to_host_bytes: int = 0
    """Since the beginning, as `to_device_bytes`."""
    to_device_bytes: int = 0

    def to_host(self, x: Tensor, there: Tensor) -> None:
        """Copy `x` into memory of the host; `wait` before it is read."""
        assert x.dtype == there.dtype
        there.copy_(x, non_blocking=event_on(x.device) is not None)
        self.to_host_bytes += x.nbytes

    def to_device(self, x: Tensor, there: Tensor) -> None:
        """Copy `x` from memory of the host; `wait` before it is written to."""
        assert x.dtype == there.dtype
        there.copy_(x, non_blocking=event_on(there.device) is not None)
        self.to_device_bytes += x.nbytes

    def wait(self, tensors: Sequence[Tensor]) -> None:
        """Wait until the copies that this thread has begun from and to the devices of `tensors` have been made."""
        for device in {x.device for x in tensors}:
            if (event := event_on(device)) is not None:
                record(event, device)
                event.synchronize()


@dataclass(frozen=True)
class HostMemory:
    """Allocates tensors of the host: in memory, or in files of `folder` that are mapped into it. A file loses its name
    as soon as it is mapped, so that nothing is left behind, however the process ends."""

    folder: Path | None = None
    is_pinned: bool = False
    """Whether memory is pinned, so that a GPU copies from and to it by itself."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return an uninitialized tensor. Raises `ConfigurationError` where the folder has no room for it."""
        numel = torch.Size(shape).numel()
        if self.folder is None or not numel:
            return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self.is_pinned and self.folder is None)
        nbytes = numel * dtype.itemsize
        try:
            descriptor, name = tempfile.mkstemp(prefix="quorate-", suffix=".offload", dir=self.folder)
            try:
                if hasattr(os, "posix_fallocate"):  # else a full disk would end the process when it is written to
                    os.posix_fallocate(descriptor, 0, nbytes)
                else:
                    os.truncate(descriptor, nbytes)
                return torch.from_file(name, shared=True, size=numel, dtype=dtype).view(shape)
            finally:
                os.close(descriptor)
                os.unlink(name)
        except OSError as error:
            raise ConfigurationError(
                f'offload="disk" needs {nbytes:,} bytes in {self.folder}, which are not free: '
                f"{error.strerror}; name another "
                "folder with offload_folder="
            ) from error

    def holds(self, x: Tensor) -> bool:
        """Return whether `x` lies where `empty` would have put it."""
        if x.device.type != "cpu":
            return False
        return self.folder is None or not x.numel() or x.untyped_storage().filename is not None

    def kept(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return `x` as a tensor of the host with this dtype: itself, or a copy."""
        if self.holds(x) and x.dtype == dtype:
            return x
        return self.empty(x.shape, dtype).copy_(x)
