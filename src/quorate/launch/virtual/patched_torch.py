"""What torch and the process are for scripts in virtual workers.

DataLoaders load in their worker (`num_workers` is 0), `torch.compile` is eager (it returns what it is given), what may
be set only once or would set the whole process is not set, and `torch.distributed` is refused: its calls name what to
call instead, since a virtual worker is no process.
"""

from __future__ import annotations

import inspect
import multiprocessing
import signal
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.utils.data

from quorate.core.errors import ConfigurationError
from quorate.launch.virtual.patching import StandIns

_INSTEAD = {
    "init_process_group": "quorate.join()",
    "init_device_mesh": "quorate.join()",
    "get_rank": "world.rank",
    "get_world_size": "world.size",
    "get_backend": "world.wire",
    "all_reduce": "world.mean(x)",
    "reduce": "world.mean(x)",
    "all_gather": "world.gather(x)",
    "all_gather_into_tensor": "world.gather(x)",
    "all_gather_object": "world.gather(x)",
    "gather": "world.gather(x)",
    "gather_object": "world.gather(x)",
    "broadcast": "world.gather(x)[0]",
    "broadcast_object_list": "world.gather(x)[0]",
    "scatter": "world.gather(x)[0]",
    "scatter_object_list": "world.gather(x)[0]",
    "barrier": "world.barrier()",
    "monitored_barrier": "world.barrier()",
    "reduce_scatter": "world.wire.reduce_scatter(x)",
    "reduce_scatter_tensor": "world.wire.reduce_scatter(x)",
    "all_to_all": "world.wire.all_to_all(pieces)",
    "all_to_all_single": "world.wire.all_to_all(pieces)",
    "new_group": "world.wire.group(members)",
    "send": "world.wire.send(message, to, tag)",
    "isend": "world.wire.send(message, to, tag)",
    "recv": "world.wire.receive(source, tag)",
    "irecv": "world.wire.receive(source, tag)",
    "batch_isend_irecv": "world.wire.send(message, to, tag)",
}

_WITHOUT_WORKERS = {
    "num_workers": 0,
    "pin_memory": False,
    "persistent_workers": False,
    "prefetch_factor": None,
    "multiprocessing_context": None,
    "timeout": 0,
}


def put_torch(stand_ins: StandIns) -> None:
    """All of the above."""
    stand_ins.put(torch.utils.data.DataLoader, "__init__", _load_here)
    stand_ins.put(torch, "compile", _compile)
    for name, instead in _INSTEAD.items():
        refusal = _refusal(f"torch.distributed.{name}", instead)
        stand_ins.put(dist, name, refusal)
        stand_ins.put(dist.distributed_c10d, name, refusal)
    for module in (dist, dist.distributed_c10d):
        stand_ins.put(module, "is_initialized", lambda original: False)
        stand_ins.put(module, "destroy_process_group", lambda original, group=None: None)
    wrapper = torch.nn.parallel.DistributedDataParallel
    stand_ins.put(wrapper, "__init__", _refusal(wrapper.__name__, "quorate.distribute(optimizer, model)"))
    stand_ins.put(signal, "signal", lambda original, number, handler: signal.getsignal(number))
    for owner, name in (
        (torch, "set_num_threads"),
        (torch, "set_num_interop_threads"),
        (multiprocessing, "set_start_method"),
        (torch.multiprocessing, "set_start_method"),
    ):
        stand_ins.put(owner, name, lambda original, *arguments, **named: None)


def _refusal(name: str, instead: str) -> Any:
    def refuse(original: Any, *arguments: Any, **named: Any) -> Any:
        raise ConfigurationError(
            f"{name} does not work in a virtual worker, which is no process; use {instead} instead"
        )

    return refuse


def _load_here(original: Any, loader: Any, *arguments: Any, **named: Any) -> None:
    given = inspect.signature(original).bind(loader, *arguments, **named)
    for name, value in _WITHOUT_WORKERS.items():
        if name in given.arguments:
            given.arguments[name] = value
    original(*given.args, **given.kwargs)


def _compile(original: Any, model: Any = None, **settings: Any) -> Any:
    return model if model is not None else lambda function: function
