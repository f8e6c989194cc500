"""The end of the outermost backward pass.

Autograd's own end-of-backward callback fires once per segment under re-entrant checkpointing. So
`torch.autograd.backward` is wrapped, once per process: a call inside a running backward goes straight through, the
outermost one tells whoever listens in this worker's place that it has ended.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from quorate.core.durations import FORWARD_SHARE as FORWARD_SHARE
from quorate.wire import current

_inside = threading.local()
_lock = threading.Lock()


class Listener:
    """Whoever wants to know that a backward pass begins, and that it has ended; overrides what it is for."""

    def backward_begins(self) -> None:
        """The outermost backward pass begins."""

    def forward_ended(self, losses: Any) -> None:
        """Between the two: what backward was called on, before anything is computed (or exchanged) by it."""

    def backward_ended(self) -> None:
        """All gradients are there."""


class Spending:
    """How much of the current step's modelled compute time has passed in this worker (virtual world)."""

    def __init__(self) -> None:
        self.spent = 0.0

    def up_to(self, share: float) -> None:
        """Let time pass until `share` of the step is spent."""
        place = current.place()
        if place is not None and share > self.spent:
            place.wire.clock.compute(share - self.spent)
            self.spent = share

    def backward_has_done(self, fraction: float) -> None:
        """Let time pass until `fraction` of the backward pass is spent."""
        self.up_to(FORWARD_SHARE + (1 - FORWARD_SHARE) * fraction)


class Listeners:
    """Who listens in one worker's place."""

    def __init__(self) -> None:
        self.all: list[Listener] = []
        self.spending = Spending()
        self.is_paused = False
        """Whether backward passes are none of training, and nobody is told of them."""


def listeners(place: current.Place) -> Listeners:
    """Those who are told when a backward pass of this place's worker ends; the wrap is put in place."""
    _wrap()
    return place.context(Listeners)


@contextmanager
def told_of_backward(place: current.Place) -> Iterator[Callable[[Any], None]]:
    """What is inside is one backward pass: who listens in `place` is told that it begins, and that it has ended, and by
    a call of what is given with what backward is called on, that the forward pass has ended. Nobody is told while
    listeners are paused."""
    told = place.context(Listeners)
    if told.is_paused:
        yield lambda losses: None
        return
    for listener in tuple(told.all):
        listener.backward_begins()
    told.spending.spent = 0.0
    told.spending.up_to(FORWARD_SHARE)

    def forward_ended(losses: Any) -> None:
        for listener in tuple(told.all):
            listener.forward_ended(losses)

    _inside.backward = True
    try:
        yield forward_ended
    finally:
        _inside.backward = False
    told.spending.up_to(1.0)
    for listener in tuple(told.all):
        listener.backward_ended()


def _wrap() -> None:
    with _lock:
        plain = torch.autograd.backward
        if getattr(plain, "_quorate_wraps", None) is not None:
            return

        @functools.wraps(plain)
        def backward(*args: Any, **kwargs: Any) -> None:
            place = current.place()
            nested = getattr(_inside, "backward", False) or torch._C._current_graph_task_id() != -1
            if nested or place is None or not place.context(Listeners).all:
                plain(*args, **kwargs)
                return
            with told_of_backward(place) as forward_ended:
                forward_ended(args[0] if args else kwargs.get("tensors"))
                plain(*args, **kwargs)

        backward._quorate_wraps = plain  # type: ignore[attr-defined]
        torch.autograd.backward = backward
