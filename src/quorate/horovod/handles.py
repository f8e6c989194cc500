"""Collectives under way, as Horovod's handles; and what all collectives have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.contracts import Work
from quorate.core.errors import ConfigurationError
from quorate.horovod.workers import wait


class Handle:
    """A collective under way; see `poll` and `synchronize`."""

    def __init__(self, works: Sequence[Work[Any]], finish: Callable[[list[Any]], Any], call: str) -> None:
        self._works, self._finish, self._call = works, finish, call
        self._result: Any = None
        self._is_over = False

    def poll(self) -> bool:
        """Return whether `synchronize` would return at once."""
        return self._is_over or all(work.done() for work in self._works)

    def synchronize(self) -> Any:
        """Wait for the collective, and return its result."""
        if not self._is_over:
            self._result = self._finish([wait(work, self._call) for work in self._works])
            self._is_over = True
        return self._result


def poll(handle: Handle) -> bool:
    """Return whether a collective is over, so that `synchronize` returns at once."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """Wait for a collective, and return its result: a tensor, or as many as it was given."""
    return handle.synchronize()


class Grouped(Handle):
    """Several collectives; the result is the list of theirs."""

    def __init__(self, handles: Sequence[Handle], call: str) -> None:
        super().__init__([], lambda _: [handle.synchronize() for handle in handles], call)
        self._handles = handles

    def poll(self) -> bool:
        return all(handle.poll() for handle in self._handles)


def check(tensor: Tensor, call: str) -> None:
    """Raise `ConfigurationError` for what is no dense tensor."""
    if not isinstance(tensor, Tensor):
        raise ConfigurationError(f"hvd.{call} takes a tensor, not a {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise ConfigurationError(f"hvd.{call} was given a sparse tensor; only dense ones can be exchanged")


def into(tensors: Sequence[Tensor]) -> Callable[[list[Tensor]], list[Tensor]]:
    """Return a function that copies results into `tensors`, and returns these."""

    def write(results: list[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            for x, result in zip(tensors, results, strict=True):
                x.copy_(result)
        return list(tensors)

    return write


def rows_of(tensor: Tensor) -> Tensor:
    """Return a detached tensor with at least one axis."""
    return tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach().contiguous()


def applied(function: Any, *arguments: Any) -> Any:
    """Return the result of an autograd function, which torch leaves untyped."""
    return function.apply(*arguments)
