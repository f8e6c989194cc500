"""Changes of torch and of the process for scripts in virtual workers.

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
from quorate.launch.virtual.operator_libraries import put_operator_libraries
from quorate.launch.virtual.patching import StandIns

_INSTEAD = {
    "quorate.join()": "init_process_group init_device_mesh",
    "world.rank": "get_rank",
    "world.size": "get_world_size",
    "world.wire": "get_backend",
    "world.mean(x)": "all_reduce reduce",
    "world.gather(x)": "all_gather all_gather_into_tensor all_gather_object gather gather_object",
    "world.gather(x)[0]": "broadcast broadcast_object_list scatter scatter_object_list",
    "world.barrier()": "barrier monitored_barrier",
    "world.wire.reduce_scatter(x)": "reduce_scatter reduce_scatter_tensor",
    "world.wire.all_to_all(pieces)": "all_to_all all_to_all_single",
    "world.wire.group(members)": "new_group",
    "world.wire.send(message, to, tag)": "send isend batch_isend_irecv",
    "world.wire.receive(source, tag)": "recv irecv",
}
"""Calls of this library, and the functions of `torch.distributed` that they replace."""

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
    put_operator_libraries(stand_ins)
    stand_ins.put(torch.utils.data.DataLoader, "__init__", _load_here)
    stand_ins.put(torch, "compile", _compile)
    for name, instead in [(name, instead) for instead, names in _INSTEAD.items() for name in names.split()]:
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
            f"{name} does not work in a virtual worker, which is not a process; use {instead} instead"
        )

    return refuse


def _load_here(original: Any, loader: Any, *arguments: Any, **named: Any) -> None:
    bound = inspect.signature(original).bind(loader, *arguments, **named)
    for name, value in _WITHOUT_WORKERS.items():
        if name in bound.arguments:
            bound.arguments[name] = value
    original(*bound.args, **bound.kwargs)


def _compile(original: Any, model: Any = None, **settings: Any) -> Any:
    return model if model is not None else lambda function: function
