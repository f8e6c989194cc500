"""Process groups of torch for one channel, each named for it: the name is in the reports of torch's flight recorder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from quorate.core.errors import WireTimeout
from quorate.wire.real.endpoint import Endpoint


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


def recorded(error: WireTimeout, endpoint: Endpoint) -> WireTimeout:
    """Return the error of a wait in a process group, with the file in which torch's flight recorder has been kept.

    It is `error` itself without a folder of the run, or where the recorder is off (`TORCH_FR_BUFFER_SIZE`).
    """
    made: Any = torch._C._distributed_c10d
    dump = getattr(made, "_dump_fr_trace_json", None) or getattr(made, "_dump_nccl_trace_json", None)
    text = b"" if dump is None or endpoint.records is None else dump()
    if endpoint.records is None or not json.loads(text or "{}").get("entries"):
        return error
    path = endpoint.records / f"flight-recorder-{endpoint.rank}.json"
    path.write_bytes(text if isinstance(text, bytes) else str(text).encode())
    record = f"; torch's record of collectives is {os.path.relpath(path)}"
    named = WireTimeout(f"{error}{record}", error.ranks)
    named.record = record
    return named
