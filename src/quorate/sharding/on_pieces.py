"""Elementwise optimizers over a model in pieces: their steps are made on the pieces as ordinary tensors.

torch dispatches each operation on a `DTensor` to its piece, some 50 microseconds each, and AdamW makes a dozen for each
parameter. The numbers are the same without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from quorate.core.local_tensor import as_piece_of, is_sharded, local


class OnPieces:
    """Makes steps on pieces. Cost: a check of each parameter and of its state."""

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
        pieces: dict[Any, Parameter] = {p: _piece(p) for p in taking}
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


def _piece(p: Any) -> Parameter:
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
