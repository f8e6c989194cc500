"""Process groups of torch's, for what is not summed in shared memory or sent in messages."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from quorate.wire.real.endpoint import Endpoint

_SUMMED = (torch.float32, torch.float64, torch.int32, torch.int64, torch.complex64, torch.complex128)
"""What the backends add as it is; the rest is widened."""


def abandon(groups: Iterable[Any]) -> None:
    """Let them be there for as long as the process is: their end waits for what is under way with the dead."""
    for group in groups:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def summable(x: Tensor) -> Tensor:
    """`x` in a contiguous form that a backend can add: small floats as float32, small integers as int32."""
    whole = x.detach().resolve_conj().resolve_neg().contiguous()
    if x.dtype in _SUMMED:
        return whole
    return whole.float() if x.is_floating_point() else whole.int()


def gloo(store: dist.Store, endpoint: Endpoint) -> Any:
    """One of gloo, for CPU tensors."""
    make: Any = dist.ProcessGroupGloo
    options = make._Options()
    options._timeout = timedelta(seconds=endpoint.timeout)
    options._devices = [make.create_device(hostname=endpoint.address)]
    return make(store, endpoint.rank, endpoint.size, options)


def nccl(store: dist.Store, endpoint: Endpoint) -> Any:
    """One of NCCL, for tensors on GPUs."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=endpoint.timeout)
    return dist.ProcessGroupNCCL(store, endpoint.rank, endpoint.size, options)
