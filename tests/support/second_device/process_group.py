"""Collectives of the device "sim", by gloo, which note what is called in them.

Like those of NCCL they take contiguous tensors of their device, and an operation means nothing to them but its place in
the order of its group. `LOG` has the calls of this process in order; `differences` compares those of all processes.
"""

from __future__ import annotations

import ctypes
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeProcessGroup
from torch.utils._pytree import tree_leaves, tree_map_only

from quorate.launch.worker import join
from quorate.wire.real import process_groups

BACKEND = "simccl"


class Call(NamedTuple):
    """One operation of one process."""

    group: str
    ranks: tuple[int, ...]
    """The members, by their ranks in the world."""
    operation: str
    peers: tuple[int, ...] = ()
    """Of a message: sender and receiver."""
    batch: int = 0
    """Messages of one batch, a number above 0, wait for each other in no order."""


class _Batch:
    count = number = 0

    def __call__(self, operations: list[dist.P2POp]) -> Any:
        """As `torch.distributed.batch_isend_irecv`."""
        self.count += 1
        self.number = self.count
        try:
            return _IN_BATCHES(operations)
        finally:
            self.number = 0


LOG: list[Call] = []
_IN_BATCHES: Any = dist.batch_isend_irecv
_batch = _Batch()
_RANKS: dict[str, tuple[int, ...]] = {}
_OPERATIONS = (
    *("allreduce_", "broadcast_", "reduce_", "allgather_", "_allgather_base_", "_reduce_scatter_base_"),
    *("alltoall_base_", "alltoall_", "send", "recv_"),
    *("allreduce_coalesced_", "allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_"),
)


@cache
def register() -> torch.library.Library:
    """Let torch make groups of this kind for the device, once in a process."""
    dist.Backend.register_backend(BACKEND, _made, extended_api=True, devices=["sim"])
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the kernels that these replace
        for name in _OPERATIONS:
            library.impl(name, _kernel(name, getattr(torch.ops.c10d, name)), "PrivateUse1", allow_override=True)
    return library


def stand_in() -> None:
    """Let this process, before it joins, use groups of this kind as workers on GPUs use NCCL."""
    register()
    join.backend_here = lambda gpus="": f"cpu:gloo,sim:{BACKEND}"
    process_groups.MAKERS["sim"] = main_group
    dist.batch_isend_irecv = _batch


def _made(options: Any, _: Any) -> Any:
    """Return a group that moves nothing: it is asked only whether it is there."""
    _RANKS[options.group_id] = tuple(options.global_ranks_in_group or range(options.group_size))
    return FakeProcessGroup._create_internal(options.group_rank, options.group_size, FakeProcessGroup.Options())


def _kernel(name: str, operation: Any) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        group = next(dist.ProcessGroup.unbox(x) for x in args if isinstance(x, torch.ScriptObject) and _is_group(x))
        shapes = [f"{x.dtype} {tuple(x.shape)}" for x in tree_leaves(args) if isinstance(x, Tensor)]
        ranks = _RANKS[group.group_name]
        peers: tuple[int, ...] = ()
        if name in ("send", "recv_"):
            pair = ranks[group.rank()], ranks[args[2]]
            peers = pair if name == "send" else pair[::-1]
        sizes = "" if name.startswith("alltoall") else ", ".join(shapes)
        LOG.append(Call(group.group_name, ranks, f"{'message' if peers else name} {sizes}", peers, _batch.number))
        return operation(*tree_map_only(Tensor, seen, list(args)))

    return call


def _is_group(x: torch.ScriptObject) -> bool:
    return x._type().qualified_name().endswith("ProcessGroup")


def main_group(store: Any, endpoint: Any, name: str) -> Any:
    """Return a group for the whole world, as wires make it for sums of tensors on the device."""
    rank, size = endpoint.rank, endpoint.size
    group = dist.ProcessGroup(store, rank, size)
    made: Any = dist.ProcessGroupGloo
    options = made._Options()
    options._timeout, options._threads = (
        timedelta(seconds=endpoint.timeout),
        1,
    )  # which complete in order, as a GPU's do
    options._devices = [made.create_device(hostname="127.0.0.1")]
    gloo = made(store, rank, size, options)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    fake = FakeProcessGroup._create_internal(rank, size, FakeProcessGroup.Options())
    group._register_backend(torch.device("sim"), dist.ProcessGroup.BackendType.CUSTOM, fake)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._set_group_name(name)
    _RANKS[name] = tuple(range(size))
    return group


def seen(x: Tensor) -> Tensor:
    """The memory of `x`, which lives as long as the result, as a tensor of the CPU."""
    assert x.device.type == "sim" and x.is_contiguous(), "collectives take contiguous tensors of their device"
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype)
    memory = (ctypes.c_char * x.nbytes).from_address(x.data_ptr())
    memory.owner = x  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=x.dtype).view(x.shape)


def differences(logs: Sequence[Iterable[Call]]) -> list[str]:
    """Return where the processes, by rank, have called in orders in which GPUs could wait for each other for ever.

    In each group the calls of all members must be equal, and those of both sides of messages of two workers. Over all
    groups no call may be before another on one worker, and after it on another: neither directly nor by way of others.
    """
    sequences = [list(_numbered(log)) for log in logs]
    told: list[str] = []
    by_group: dict[Any, dict[int, list[str]]] = {}
    for rank, sequence in enumerate(sequences):
        for (key, _), operation, _ in sequence:
            by_group.setdefault(key, {}).setdefault(rank, []).append(operation)
    for key, by_rank in by_group.items():
        if len({tuple(calls) for calls in by_rank.values()}) > 1 or set(by_rank) != set(key[1]):
            told.append(f"{key}: {by_rank}")
    after: dict[Any, set[Any]] = {}
    for sequence in sequences:
        steps = [[node for node, _, _ in some] for _, some in itertools.groupby(sequence, lambda call: call[2])]
        for step, following in itertools.pairwise(steps):
            for node in step:
                after.setdefault(node, set()).update(following)
    return told + [f"{node} waits for itself" for node in _on_circles(after)]


def _numbered(log: Iterable[Call]) -> Iterable[tuple[tuple[Any, int], str, Any]]:
    """Yield each call as a node of its group, with what it does, and the step that it is a part of."""
    counts: dict[Any, int] = {}
    for place, call in enumerate(log):
        key: Any = (call.group, call.ranks)
        if call.peers:
            sender, receiver = call.peers
            key = (f"{call.group} {sender}>{receiver}", tuple(sorted(call.peers)))
        counts[key] = counts.get(key, -1) + 1
        yield (key, counts[key]), call.operation, ("batch", call.batch) if call.batch else ("call", place)


def _on_circles(after: dict[Any, set[Any]]) -> list[Any]:
    waits = dict.fromkeys(after, 0)
    for following in after.values():
        for node in following:
            waits[node] = waits.get(node, 0) + 1
    ready = [node for node, count in waits.items() if not count]
    while ready:
        node = ready.pop()
        del waits[node]
        for following in after.get(node, ()):
            waits[following] -= 1
            if not waits[following]:
                ready.append(following)
    return list(waits)[:3]
