"""What strategies are measured against: other systems' ways, run in the same harness. Real worlds only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from torch.nn import Module

Baseline = Callable[["Module"], Callable[[], AbstractContextManager[None]]]

baselines: Registry[Baseline] = Registry("baseline", {"ddp": "quorate.launch.baselines:ddp"})


def ddp(model: Module) -> Callable[[], AbstractContextManager[None]]:
    """torch's DistributedDataParallel, put around the model's forward pass without wrapping it.

    Hooks around the model's forward pass do what DDP's own `forward` does before and after it, with DDP's defaults
    (buckets of 25 MB, rank 0's buffers before every pass). The training loop calls the model itself; whoever calls its
    parts goes past it. Returns what `optimizer.accumulate()` does: DDP's `no_sync`.
    """
    from torch.nn.parallel import DistributedDataParallel

    around: Any = DistributedDataParallel(model)

    def before(_: Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return around._pre_forward(*inputs, **named)

    def after(_: Module, __: tuple[Any, ...], output: Any) -> Any:
        return around._post_forward(output)

    model.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    model.register_forward_hook(after)
    paused: Callable[[], AbstractContextManager[None]] = around.no_sync
    return paused
