"""Process groups of torch for one channel, each named for it: the name is in the reports of torch's flight recorder."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from quorate.wire.real.endpoint import Endpoint

_SUMMED = (torch.float32, torch.float64, torch.int32, torch.int64, torch.complex64, torch.complex128)
"""Dtypes that the backends add; others are widened."""


def summable(x: Tensor) -> Tensor:
    """Return `x` in a contiguous form that a backend can add: small floats as float32, small integers as int32."""
    whole = x.detach().resolve_conj().resolve_neg().contiguous()
    if x.dtype in _SUMMED:
        return whole
    return whole.float() if x.is_floating_point() else whole.int()


def gloo(store: dist.Store, endpoint: Endpoint, name: str) -> Any:
    """Make a process group of gloo, for CPU tensors."""
    make: Any = dist.ProcessGroupGloo
    options = make._Options()
    options._timeout = timedelta(seconds=endpoint.timeout)
    options._devices = [make.create_device(hostname=endpoint.address)]
    options.group_name = name
    return make(store, endpoint.rank, endpoint.size, options)


def nccl(store: dist.Store, endpoint: Endpoint, name: str) -> Any:
    """Make a process group of NCCL, for tensors on GPUs."""
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=endpoint.timeout)
    options.group_name = name
    return dist.ProcessGroupNCCL(store, endpoint.rank, endpoint.size, options)


MAKERS: dict[str, Callable[[dist.Store, Endpoint, str], Any]] = {"cpu": gloo, "cuda": nccl}
"""By type of device; the groups of others are those of the CPU."""
