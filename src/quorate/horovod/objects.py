"""Broadcasts of whole models, optimizers and plain objects.

Objects are tensors, numbers, text, and lists, tuples and dicts of these. They travel as JSON and safetensors: nothing
is executed that another process sends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from quorate.checkpoint.encoding import as_bytes, from_bytes
from quorate.core.errors import ConfigurationError
from quorate.horovod.exchanges import allgather_async, broadcast_, broadcast_async_
from quorate.horovod.workers import ProcessSet, global_process_set, rank


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root_rank: int = 0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copy the tensors of `root_rank` into those of all workers.

    Args:
        params: `model.state_dict()`, or `model.named_parameters()`.
        root_rank: The worker that is copied.
        process_set: The workers that take part.

    Raises:
        ConfigurationError: If `params` is neither.
    """
    pairs: list[Any] = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ConfigurationError("hvd.broadcast_parameters takes state_dict() or named_parameters(), not tensors alone")
    handles = [
        broadcast_async_(x, root_rank, None, process_set) for _, x in pairs if isinstance(x, Tensor) and x.numel()
    ]
    for handle in handles:
        handle.synchronize()


def broadcast_optimizer_state(
    optimizer: Optimizer,
    root_rank: int = 0,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give the state of the optimizer of `root_rank`, and its options, to those of all workers.

    Raises:
        ConfigurationError: For `torch.optim.LBFGS`, as in Horovod.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigurationError("hvd.broadcast_optimizer_state cannot be used with LBFGS")
    state = broadcast_object(optimizer.state_dict(), root_rank, process_set=process_set)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


def _written(value: Any) -> Tensor:
    return as_bytes(value, "the object", "Horovod's API cannot send")


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the `obj` of `root_rank`, on all workers; see the module for what can be sent."""
    is_root = rank() == root_rank
    payload = _written(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    length = broadcast_(torch.tensor([payload.numel()]), root_rank, name and f"{name}/length", process_set)
    payload = payload if is_root else torch.empty(int(length), dtype=torch.uint8)
    payload = broadcast_(payload, root_rank, name, process_set)
    return obj if is_root else from_bytes(payload)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the `obj` of every worker, by rank; see the module for what can be sent."""
    payload = _written(obj)
    lengths = allgather_async(torch.tensor([payload.numel()]), name and f"{name}/lengths", process_set).synchronize()
    together: Tensor = allgather_async(payload, name, process_set).synchronize()
    return [from_bytes(part) for part in together.split(lengths.tolist())]
