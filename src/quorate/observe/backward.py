"""The beginning and the end of the outermost backward pass.

Autograd's own end-of-backward callback fires once per segment under re-entrant checkpointing. So
`torch.autograd.backward` is wrapped, once per process: a call inside a running backward goes straight through, the
outermost one calls the observers of this worker.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from quorate.core.durations import FORWARD_SHARE as FORWARD_SHARE
from quorate.observe.step_observer import NEVER, Events, Observers
from quorate.wire import current

_inside = threading.local()
_lock = threading.Lock()


def observe_backward(place: current.Place) -> Observers:
    """Return the observers of the worker of `place`, which are called for its backward passes from now on."""
    _wrap()
    watching = place.context(Observers)
    watching.spending.follow(place.wire.clock)
    return watching


@contextmanager
def observed_backward(watching: Observers) -> Iterator[Callable[[Any], None]]:
    """Call the observers around a backward pass, which is run inside.

    Yields a function, to be called with the arguments of backward as soon as the forward pass has ended. No observer is
    called while observers are paused.
    """
    if watching.is_paused:
        yield lambda losses: None
        return
    begins, forward, ended = watching.of_backward
    watching.loss_factor = 1.0
    for observer in begins:
        if observer.due < NEVER:
            observer.backward_begins()
    spending = watching.spending
    if spending.is_modelled:
        spending.spent = 0.0
        spending.up_to(FORWARD_SHARE)
    _inside.backward = True
    try:
        yield functools.partial(_forward_ended, forward)
    finally:
        _inside.backward = False
    if spending.is_modelled:
        spending.up_to(1.0)
    for observer in ended:
        if observer.due < NEVER:
            observer.backward_ended()


def _forward_ended(watching: Events, losses: Any) -> None:
    for observer in watching:
        if observer.due < NEVER:
            observer.forward_ended(losses)


def _scaled(
    plain: Callable[..., None], factor: float, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any
) -> None:
    """Run a backward pass from `factor` times the gradients that it would start from."""
    roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    starts = [grad_tensors] * len(roots) if grad_tensors is None or isinstance(grad_tensors, Tensor) else grad_tensors
    grads = [
        start * factor if start is not None else torch.full_like(root, factor) if root.numel() == 1 else None
        for root, start in zip(roots, starts, strict=True)
    ]
    plain(roots, grads, *args, **kwargs)


def _wrap() -> None:
    with _lock:
        plain = torch.autograd.backward
        if getattr(plain, "_quorate_wraps", None) is not None:
            return

        @functools.wraps(plain)
        def backward(*args: Any, **kwargs: Any) -> None:
            place = current.place()
            nested = getattr(_inside, "backward", False) or torch._C._current_graph_task_id() != -1
            if nested or place is None or not any((watching := place.context(Observers)).of_backward):
                plain(*args, **kwargs)
                return
            with observed_backward(watching) as forward_ended:
                forward_ended(args[0] if args else kwargs.get("tensors"))
                if watching.loss_factor == 1.0:
                    plain(*args, **kwargs)
                else:
                    _scaled(plain, watching.loss_factor, *args, **kwargs)

        backward._quorate_wraps = plain  # type: ignore[attr-defined]
        torch.autograd.backward = backward
