"""Baselines of strategies: the methods of other systems, run in the same harness. Real worlds only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from torch.nn import Module

Baseline = Callable[["Module"], Callable[[], AbstractContextManager[None]]]

baselines: Registry[Baseline] = Registry("baseline", {"ddp": "quorate.launch.worker.baselines:ddp"})


def ddp(model: Module) -> Callable[[], AbstractContextManager[None]]:
    """torch's DistributedDataParallel, applied to the model's forward pass without wrapping the model.

    Hooks around the model's forward pass do what DDP's own `forward` does before and after it, with DDP's defaults
    (buckets of 25 MB, rank 0's buffers before every pass). The training loop must call the model itself; calls of its
    submodules bypass the hooks. `optimizer.accumulate()` is DDP's `no_sync`. Copies of the model, pickled ones
    included, are not synchronized.
    """
    from torch.nn.parallel import DistributedDataParallel

    around: Any = DistributedDataParallel(model)
    model.register_forward_pre_hook(_Before(around), with_kwargs=True, prepend=True)
    model.register_forward_hook(_After(around))
    paused: Callable[[], AbstractContextManager[None]] = around.no_sync
    return paused


def nothing(module: Module, inputs: tuple[Any, ...], more: Any) -> None:
    """Do nothing, in place of the hooks below, in a copy of the model."""


def _hook_of_a_copy() -> Callable[..., None]:
    return nothing


class _Hook:
    """A hook of one model; copies and pickles of the model have `nothing` instead."""

    def __init__(self, around: Any) -> None:
        self._around = around

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return nothing

    def __reduce__(self) -> Any:
        return _hook_of_a_copy, ()


class _Before(_Hook):
    """The beginning of DDP's `forward`."""

    def __call__(self, module: Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return self._around._pre_forward(*inputs, **named)


class _After(_Hook):
    """The end of DDP's `forward`."""

    def __call__(self, module: Module, inputs: tuple[Any, ...], output: Any) -> Any:
        return self._around._post_forward(output)
