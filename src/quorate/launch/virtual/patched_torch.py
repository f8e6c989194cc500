"""Changes of torch and of the process for scripts in virtual workers.

DataLoaders load in their worker (`num_workers` is 0), and `torch.compile` is eager (it returns its argument). Calls
that may be made only once, or that would set the process for all, do nothing. `torch.distributed` is refused, since a
virtual worker is no process: the error names the call to use instead.
"""

from __future__ import annotations

import gc
import inspect
import multiprocessing
import signal
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.utils.data
from torch._library import custom_ops
from torch.library import Library

from quorate.core.errors import ConfigurationError
from quorate.launch.virtual.patching import StandIns, here, scheduler

_INSTEAD = {
    "quorate.join()": "init_process_group init_device_mesh",
    "world.rank": "get_rank",
    "world.size": "get_world_size",
    "world.wire": "get_backend",
    "world.mean(x)": "all_reduce reduce",
    "world.gather(x)": "all_gather all_gather_into_tensor all_gather_object gather gather_object",
    "world.broadcast(x)": "broadcast broadcast_object_list",
    "world.gather(x)[0]": "scatter scatter_object_list",
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

_kernels: dict[tuple[str, str], dict[int | None, Callable[..., Any]]] = {}
"""The kernels by rank, of each operator and dispatch key; those of None outlived their workers."""


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


def put_operator_libraries(stand_ins: StandIns) -> None:
    """Let each virtual worker register the operators of its script.

    A process registers a namespace and its operators once, and each worker executes the script that registers them. So
    the first worker registers each operator, with a kernel that calls the kernel of the worker that uses the operator.
    Libraries that an earlier world has left are replaced.
    """
    stand_ins.put(Library, "__init__", _init)
    stand_ins.put(Library, "define", _define)
    stand_ins.put(Library, "impl", _impl)
    stand_ins.put(custom_ops, "get_library_allowing_overwrite", _library_of_custom_op)
    stand_ins.put(custom_ops.CustomOpDef, "_register_adinplaceorview_dispatcher_impl", _register_once)
    stand_ins.on_exit(_forget_workers)


def _forget_workers() -> None:
    """Let operators that outlive their workers have the last worker's kernels."""
    for kernels in _kernels.values():
        if kernels:
            last = list(kernels.values())[-1]
            kernels.clear()
            kernels[None] = last


def _rank() -> int | None:
    """The virtual worker that asks."""
    strand = here()
    return None if strand is None else strand.rank


def _init(original: Any, library: Any, ns: str, kind: str, dispatch_key: str = "") -> None:
    library.world, library.rank, library.schemas, library.first = scheduler(), _rank(), {}, None
    for earlier in _definitions(ns) if kind == "DEF" else ():
        if earlier.world is not scheduler():
            earlier._destroy()
        elif earlier.rank != library.rank:
            library.first, kind = earlier, "FRAGMENT"  # the operators last as long as the first library
            break
    original(library, ns, kind, dispatch_key)


def _definitions(ns: str) -> list[Any]:
    """The libraries that virtual workers have made to define the namespace `ns`."""
    libraries: list[Any] = [x for x in gc.get_objects() if type(x) is Library]
    return [x for x in libraries if "world" in vars(x) and vars(x).get("ns") == ns and x.kind == "DEF"]


def _library_of_custom_op(original: Any, namespace: str, name: str) -> Any:
    earlier: Any = custom_ops.OPDEF_TO_LIB.get(f"{namespace}::{name}")
    is_of_another = earlier is not None and vars(earlier).get("world") is scheduler() and earlier.rank != _rank()
    if not is_of_another:
        return original(namespace, name)
    library: Any = Library(namespace, "FRAGMENT")
    library.first = earlier
    return library


def _register_once(original: Any, definition: Any) -> None:
    if definition._lib.first is None:
        original(definition)


def _define(original: Any, library: Any, schema: str, *arguments: Any, **named: Any) -> Any:
    if "world" not in vars(library):
        return original(library, schema, *arguments, **named)
    name = schema.partition("(")[0].strip()
    if library.first is not None and library.first.schemas.get(name) == schema:
        return name
    library.schemas[name] = schema
    return original(library, schema, *arguments, **named)


def _impl(original: Any, library: Any, op_name: Any, fn: Any, dispatch_key: str = "", *args: Any, **named: Any) -> Any:
    key = dispatch_key or vars(library).get("dispatch_key") or "CompositeImplicitAutograd"
    name = op_name._schema.name if isinstance(op_name, torch._ops.OpOverload) else op_name
    if "world" not in vars(library) or not callable(fn) or fn is torch.library.fallthrough_kernel:
        return original(library, op_name, fn, dispatch_key, *args, **named)
    qualified = name if "::" in name else f"{library.ns}::{name}"
    kernels = _kernels.setdefault((qualified, key), {})
    is_registered = library.first is not None and library.first.rank in kernels
    if not is_registered:
        kernels.clear()
    kernels[library.rank] = fn

    def kernel(*args: Any, **kwargs: Any) -> Any:
        own = kernels.get(_rank()) or list(kernels.values())[-1]
        return own(*args, **kwargs)

    return None if is_registered else original(library, op_name, kernel, dispatch_key, *args, **named)
