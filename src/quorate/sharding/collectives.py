"""FSDP's two collectives over a wire, for numbers on the CPU.

Every worker sends each other worker its piece, through shared memory on one host: nothing is copied on the way. Each
sends (S - 1) / S of the vector, the theoretical minimum. A sum is formed in order of rank, host by host, like that of
`Wire.reduce_scatter`. Gloo's own reduce-scatter forms the full sum on every worker.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import ConfigurationError, Mismatch
from quorate.core.fields import Fields, Header
from quorate.sharding.traffic import Traffic
from quorate.wire.exchange import describe, sum_in_order
from quorate.wire.swap import Envelope, Swap

REMEDY = (
    "; workers of a replica use the blocks of a model in shards in one order. Decide alike on all of them which "
    "blocks are used, or, where nothing is trained, calculate inside `with quorate.whole(model):`"
)
_OF_A_BLOCK = re.compile(r"(all_gather|reduce_scatter) of ")

_PATIENCE = 1.0
"""Seconds to wait for a buffer that other workers still read: they must have reached the next exchange."""


@dataclass(frozen=True, slots=True)
class Unused(Fields):
    """The message with the gradients of one block; without the field where all its parameters have gradients."""

    unused: Sequence[int] = ()  # positions of the parameters without a gradient


class Collected(dist.Work):
    """A collective in progress, in the form that torch expects."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: Any = None) -> bool:
        """Return when the result is complete. Raises as `core.contracts.Work.wait`."""
        if self._finish is not None:
            self._finish()
            self._finish = None  # which holds what has come
        return True


class Pieces:
    """The exchanges of one model's pieces among the workers of a replica, in the order in which they are called."""

    def __init__(self, wire: Wire, traffic: Traffic) -> None:
        self.wire, self.traffic, self._calls = wire, traffic, itertools.count()
        self.hosts = [wire.host_of(rank) for rank in range(wire.size)]

    def swap(self, operation: str, outgoing: Sequence[Tensor], header: Header | None = None) -> Work[list[Message]]:
        """Send each worker its tensor, which must not change any more; the result is the messages received, by rank."""
        wire, tag, header = self.wire, f"pieces/{next(self._calls)}", Envelope(operation).header(header)
        messages = [Message((x,), header, shared=True) for x in outgoing]
        others = [peer for peer in range(wire.size) if peer != wire.rank]
        sends = [wire.send(messages[peer], peer, tag) for peer in others]
        receives = [wire.receive(peer, tag, others) for peer in others]
        return Swap(wire, operation, others, receives, sends, messages[wire.rank], list)

    def wait(self, work: Work[list[Message]]) -> list[Message]:
        """Return the messages of `work`, by rank. Raises as `Work.wait`; a `Mismatch` says how to make blocks agree."""
        try:
            return self.traffic.wait(work, self.wire.clock)
        except Mismatch as error:
            raise Mismatch(f"{error}{REMEDY if _OF_A_BLOCK.search(str(error)) else ''}") from None

    def meet(self, call: str) -> None:
        """Wait until all workers have reached the same `call`. Raises `Mismatch` where one has reached another."""
        self.wait(self.swap(call, [torch.empty(0)] * self.wire.size))

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory from which a message needs no copying."""
        (numel,) = size
        return self.wire.empty(numel, dtype, patience=_PATIENCE)

    def end(self, finish: Callable[[], None], is_async: bool) -> Collected | None:
        """Wait now, or return the collective for torch to wait for."""
        if is_async:
            return Collected(finish)
        finish()
        return None


class WireAllGather:
    """Implements torch's `AllGather` for the parameters of one block; messages carry its name."""

    def __init__(self, pieces: Pieces, block: str = "") -> None:
        self._pieces, self.allocate, self._of = pieces, pieces.allocate, f" of {block}," if block else ""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: object, async_op: bool = False
    ) -> Collected | None:
        pieces, wire = self._pieces, self._pieces.wire
        work = pieces.swap(f"all_gather{self._of} {describe(input_tensor)}", [input_tensor.detach()] * wire.size)
        places = output_tensor.chunk(wire.size)

        def finish() -> None:
            for source, message in enumerate(pieces.wait(work)):
                if source != wire.rank:  # what is given is a piece of the output already
                    places[source].copy_(message.tensors[0])

        return pieces.end(finish, async_op)


class WireReduceScatter:
    """Implements torch's `ReduceScatter` for the gradients of one block; messages carry its name."""

    def __init__(self, pieces: Pieces, block: str = "", reduced: Callable[[], None] = lambda: None) -> None:
        """`reduced` is called when a sum is there."""
        self._pieces, self._has_input, self._of = pieces, False, f" of {block}," if block else ""
        self.unused: frozenset[int] = frozenset()
        """Positions of parameters without a gradient: before a call those of this worker, after it those of all."""
        self._reduced = reduced

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for the input, which is sent, or in the next call for the output, the gradient."""
        self._has_input = not self._has_input
        if self._has_input:
            return self._pieces.allocate(size, dtype=dtype, device=device)
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: object, op: Any, async_op: bool = False
    ) -> Collected | None:
        pieces, wire = self._pieces, self._pieces.wire
        self._has_input = False
        outgoing = list(input_tensor.detach().chunk(wire.size))
        header = Unused(sorted(self.unused)).header() if self.unused else None
        work = pieces.swap(f"reduce_scatter{self._of} {describe(output_tensor)}", outgoing, header)

        def finish() -> None:
            messages = pieces.wait(work)
            received = [message.tensors[0] for message in messages]
            if self.unused:
                self.unused = self.unused.intersection(*(Unused.read(message.header).unused for message in messages))
            if output_tensor.element_size() < 4 or len(set(pieces.hosts)) > 1:
                output_tensor.copy_(sum_in_order(received, pieces.hosts))
            else:
                torch.add(received[0], received[1], out=output_tensor)
                for numbers in received[2:]:
                    output_tensor.add_(numbers)
            if op == dist.ReduceOp.AVG:
                output_tensor.div_(wire.size)
            self._reduced()

        return pieces.end(finish, async_op)


def groups_of(module: Any) -> list[Any]:
    """Return the parameter groups of a module that FSDP2 has sharded."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # before torch 2.13 there is at most one
    if groups is None:
        groups = [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def over_wires(module: Any, pieces: Pieces, name: str) -> None:
    """Let the groups of `module`, which is called `name`, gather and reduce by `pieces`."""
    for group in groups_of(module):
        group._all_gather_comm = WireAllGather(pieces, name)
        group.post_backward = complete = Complete(group, pieces, name)
        group._reduce_scatter_comm = complete.reducing


def split_by_dtype(module: Any) -> None:
    """Divide each group of `module` into one for each dtype: FSDP2 reduces gradients of one dtype in a group. Raises
    `ConfigurationError` where torch knows one group in a module (before 2.13)."""
    state, split = module._get_fsdp_state(), list[Any]()
    for group in groups_of(module):
        dtypes = list(dict.fromkeys(p.sharded_param.dtype for p in group.fsdp_params))
        if len(dtypes) > 1 and not hasattr(state, "_fsdp_param_groups"):
            raise ConfigurationError(
                f"a {type(module).__mro__[2].__name__} has parameters of several dtypes, which torch "
                f"{torch.__version__} does not shard together; use torch 2.13, or convert the model to one dtype"
            )
        for dtype in dtypes[1:]:
            places = group.mesh_info, group.post_forward_mesh_info, group.device
            more = type(group)([], group.modules, *places, None, group.mp_policy, group.offload_policy)
            more.fsdp_params = [p for p in group.fsdp_params if p.sharded_param.dtype == dtype]
            split.append(more)
        group.fsdp_params = [p for p in group.fsdp_params if p.sharded_param.dtype == dtypes[0]]
    if split:
        state._fsdp_param_groups.extend(split)


class Complete:
    """Ends one group's backward pass, with a gradient for each trained parameter where any has one.

    Parameters that no worker has used keep no gradient. Cost: a check of each parameter of the group; zeros, and
    their traffic, for parameters that this worker has not used.

    FSDP2 reduces the gradients of the parameters that have one. If workers use different parameters of a group, their
    vectors differ in length, or mix parameters of one shape. So a worker adds zeros for the parameters it has not used.
    """

    def __init__(self, group: Any, pieces: Pieces, block: str) -> None:
        self._group, self._post_backward = group, group.post_backward
        self.reducing = WireReduceScatter(pieces, block, self._note_unused)
        """Forms the sums of the group's gradients."""
        self._unused: list[tuple[Any, dict[Any, Any]]] = []
        """Parameters that no worker has used, and the hooks that are not to see their zeros."""

    def __call__(self, *args: Any) -> None:
        group = self._group
        trained = [(n, p) for n, p in enumerate(group.fsdp_params) if group.reduce_grads and _is_trained(p)]
        unused = [
            (n, p) for n, p in trained if p._unsharded_param.grad is None and p.unsharded_accumulated_grad is None
        ]
        if len(unused) == len(trained):
            unused = []
        accumulates = any(p.unsharded_accumulated_grad is not None for _, p in trained)
        for _, p in unused:
            if accumulates:
                p.unsharded_accumulated_grad = torch.zeros_like(p._unsharded_param, dtype=p.reduce_dtype)
            else:
                p._unsharded_param.grad = torch.zeros_like(p._unsharded_param)
        self.reducing.unused = frozenset(n for n, _ in unused)
        try:
            self._post_backward(*args)
        finally:
            for p, hooks in self._unused:
                p.grad = None
                (p._post_accumulate_grad_hooks or {}).update(hooks)
            self._unused.clear()

    def _note_unused(self) -> None:
        for n in self.reducing.unused:
            p = self._group.fsdp_params[n].sharded_param
            if p.grad is None:
                hooks = p._post_accumulate_grad_hooks or {}
                self._unused.append((p, dict(hooks)))
                hooks.clear()


def _is_trained(p: Any) -> bool:
    return hasattr(p, "_unsharded_param") and p._unsharded_param.requires_grad
