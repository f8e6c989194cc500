"""Steps of an optimizer over a model in pieces: on each piece, or with full tensors that have one owner each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from quorate.core.axes import rows_of
from quorate.core.contracts import Message, Wire
from quorate.core.local_tensor import as_piece_of, is_sharded, local
from quorate.sharding.traffic import Traffic
from quorate.wire.swap import Envelope, Swap


class OnPieces:
    """Makes steps on pieces. Cost: a check of each parameter and of its state.

    For optimizers that treat each number alike. torch dispatches each operation on a `DTensor` to its piece, some 50
    microseconds each, and AdamW makes a dozen for each parameter. The numbers are the same without.
    """

    def step(self, optimizer: Optimizer, make: Callable[[Optimizer], None]) -> None:
        """Make a step of the optimizer by `make`: see `stepped`."""
        with self.stepped(optimizer):
            make(optimizer)

    @contextmanager
    def stepped(self, optimizer: Optimizer) -> Iterator[None]:
        """Inside, the optimizer has pieces as plain parameters, with their gradients and state. After it, parameters,
        gradients and state are the original objects, with the new numbers."""
        lists: list[list[Any]] = [group["params"] for group in optimizer.param_groups]
        taking = [p for some in lists for p in some if p.grad is not None and is_sharded(p)]
        pieces: dict[Any, Parameter] = {p: _plain_parameter(p) for p in taking}
        before = {p: dict(optimizer.state[p]) for p in taking if p in optimizer.state}
        for group in optimizer.param_groups:
            group["params"] = [pieces.get(p, p) for p in group["params"]]
        for p, state in before.items():
            del optimizer.state[p]
            optimizer.state[pieces[p]] = {key: local(x) if isinstance(x, Tensor) else x for key, x in state.items()}
        try:
            yield
        finally:
            for group, some in zip(optimizer.param_groups, lists, strict=True):
                group["params"] = some
            for p, piece in pieces.items():
                if piece in optimizer.state:
                    optimizer.state[p] = _kept(p, optimizer.state.pop(piece), before.get(p, {}))


def _plain_parameter(p: Any) -> Parameter:
    """Return the piece of `p` as a plain parameter in the same memory."""
    piece = Parameter(local(p).detach(), requires_grad=p.requires_grad)
    piece.grad = local(p.grad)
    return piece


def _kept(p: Tensor, after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Return `after` with tensors of the piece's shape as pieces of tensors like `p`; unchanged ones as in `before`."""
    state: dict[str, Any] = {}
    for key, x in after.items():
        old = before.get(key)
        if isinstance(old, Tensor) and local(old) is x:
            state[key] = old
        elif isinstance(x, Tensor) and x.dim() and x.shape == local(p).shape:
            state[key] = as_piece_of(p, x)
        else:
            state[key] = x
    return state


class WholeTensors:
    """The full tensors of one optimizer among the workers of a replica.

    The workers of a replica distribute their parameters among them, as full tensors, by bytes. In a step each owner
    receives the pieces of its parameters and of their gradients, makes the step of these alone, and sends everyone its
    piece of the results. The optimizer's state of a parameter lies on its owner only.

    Cost for Psi numbers in S shards, sent by each worker in a step: 3 Psi (S - 1) / S^2, no more than reducing the
    gradients alone takes. During the step, it needs memory for its share of parameters and of gradients once more.
    """

    def __init__(self, wire: Wire, traffic: Traffic) -> None:
        self._wire, self._traffic, self._calls = wire, traffic, 0
        self._owner: dict[Tensor, int] = {}
        self._loads = [0] * wire.size

    def owned(self, optimizer: Optimizer) -> frozenset[int]:
        """Return the indices of the parameters, in the optimizer's order, whose state lies here."""
        every = [p for group in optimizer.param_groups for p in group["params"]]
        self._deal(every)
        return frozenset(n for n, p in enumerate(every) if self._owner.get(p, self._wire.rank) == self._wire.rank)

    @contextmanager
    def gathered(self, optimizer: Optimizer) -> Iterator[None]:
        """Inside, the optimizer has full parameters and gradients where this worker owns them, and no gradients
        elsewhere.

        After it, the results lie in pieces on all workers. All workers of the replica enter it at the same step. Raises
        as `core.contracts.Work.wait`, and `Mismatch` where others have gradients for other parameters.
        """
        every = [p for group in optimizer.param_groups for p in group["params"]]
        self._deal(every)
        taking = [p for p in every if p in self._owner and p.grad is not None]
        kept = {p: p.grad for p in every if p in self._owner}
        owned = self._of(self._wire.rank, taking)
        whole = dict(zip(owned, self._gather(taking, owned), strict=True))
        alike = {p: _plain_parameter(p) for p in every if p not in self._owner and p.grad is not None and is_sharded(p)}
        plain = whole | alike
        lists = [group["params"] for group in optimizer.param_groups]
        try:
            for p in kept:
                p.grad = None
            for group in optimizer.param_groups:
                group["params"] = [plain.get(p, p) for p in group["params"]]
            _move_state(optimizer, plain)
            yield
        finally:
            _move_state(optimizer, {x: p for p, x in plain.items()})
            for group, before in zip(optimizer.param_groups, lists, strict=True):
                group["params"] = before
            for p, gradient in kept.items():
                p.grad = gradient
        self._scatter(taking, whole)

    def step(self, optimizer: Optimizer, make: Callable[[Optimizer], None]) -> None:
        """Make a step of the optimizer on full tensors by `make`: see `gathered`."""
        with self.gathered(optimizer):
            make(optimizer)

    def _deal(self, every: Sequence[Any]) -> None:
        """Give each new trained parameter an owner: the largest first, to the worker with the least by then."""
        new = [p for p in every if p not in self._owner and p.requires_grad and _is_cut(p)]
        for p in sorted(new, key=lambda p: -p.numel() * p.element_size()):
            owner = self._loads.index(min(self._loads))
            self._owner[p] = owner
            self._loads[owner] += p.numel() * p.element_size()

    def _of(self, owner: int, some: Sequence[Any]) -> list[Any]:
        return [p for p in some if self._owner[p] == owner]

    def _gather(self, taking: Sequence[Any], owned: Sequence[Any]) -> Iterator[Parameter]:
        """Yield the parameters that are owned here, as full tensors, with their gradients."""
        outgoing = [
            [local(x).detach() for p in self._of(peer, taking) for x in (p, p.grad)] for peer in range(self._wire.size)
        ]
        received = self._swap(f"a step of {len(taking)} full tensors: pieces", outgoing)
        for place, p in enumerate(owned):
            numbers, gradient = (
                torch.cat([tensors[2 * place + which].view(-1, *p.shape[1:]) for tensors in received])
                for which in (0, 1)
            )
            parameter = Parameter(numbers, requires_grad=p.requires_grad)
            parameter.grad = gradient
            yield parameter

    def _scatter(self, taking: Sequence[Any], whole: dict[Any, Parameter]) -> None:
        outgoing = [[_piece(x.detach(), self._wire.size, peer) for x in whole.values()] for peer in self._peers]
        received = self._swap(f"a step of {len(taking)} full tensors: results", outgoing)
        with torch.no_grad():
            for owner in self._peers:
                for p, numbers in zip(self._of(owner, taking), received[owner], strict=True):
                    local(p).copy_(numbers.view(local(p).shape))

    @property
    def _peers(self) -> range:
        return range(self._wire.size)

    def _swap(self, operation: str, outgoing: Sequence[Sequence[Tensor]]) -> list[tuple[Tensor, ...]]:
        """Send each worker its tensors; return the tensors received, by rank."""
        here = next((local(p).device for p in self._owner), torch.device("cpu"))
        if self._wire.carries(torch.empty(1, device=here)):
            return self._exchanged(operation, outgoing, here)
        wire, self._calls, header = self._wire, self._calls + 1, Envelope(operation).header()
        messages = [Message(tuple(tensors), header) for tensors in outgoing]
        others = [peer for peer in self._peers if peer != wire.rank]
        sends = [wire.send(messages[peer], peer, f"whole/{self._calls}") for peer in others]
        receives = [wire.receive(peer, f"whole/{self._calls}", others) for peer in others]
        swap = Swap(wire, operation, others, receives, sends, messages[wire.rank], list)
        return [tuple(x.to(here) for x in message.tensors) for message in self._traffic.wait(swap, wire.clock)]

    def _exchanged(
        self, operation: str, outgoing: Sequence[Sequence[Tensor]], device: torch.device
    ) -> list[tuple[Tensor, ...]]:
        """Return the same as `_swap`, from device to device; messages have the shapes."""
        wire = self._wire
        likes = [[[list(x.shape), str(x.dtype).removeprefix("torch.")] for x in tensors] for tensors in outgoing]
        likes_of_all = self._traffic.wait(wire.tell_all(operation, likes), wire.clock)
        others = [peer for peer in self._peers if peer != wire.rank]
        receives = [
            (peer, torch.empty(shape, dtype=getattr(torch, dtype), device=device))
            for peer in others
            for shape, dtype in likes_of_all[peer][wire.rank]
        ]
        sends = [(peer, x) for peer in others for x in outgoing[peer]]
        left = iter(self._traffic.wait(wire.exchange(sends, receives, operation), wire.clock))
        received = [
            tuple(next(left) for _ in likes_of_all[peer][wire.rank]) if peer in others else () for peer in self._peers
        ]
        received[wire.rank] = tuple(outgoing[wire.rank])
        return received


def _is_cut(p: Any) -> bool:
    """Return whether each worker has a part of `p`; uncut parameters are stepped by all workers alike."""
    return is_sharded(p) and any(hasattr(placement, "dim") for placement in p.placements)


def _piece(whole: Tensor, shards: int, shard: int) -> Tensor:
    rows = rows_of(whole.shape[0], shards, shard)
    return whole[rows.start : rows.stop]


def _move_state(optimizer: Optimizer, to: dict[Any, Any]) -> None:
    """Move the state of each key of `to` to its value, with local pieces as ordinary tensors."""
    for before, after in to.items():
        if before in optimizer.state:
            state = optimizer.state.pop(before)
            optimizer.state[after] = {
                key: local(value) if isinstance(value, Tensor) else value for key, value in state.items()
            }
