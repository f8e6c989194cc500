"""Copies between the host and a device for which no thread waits: the device makes them behind its current work.

Some devices (Apple's and Intel's GPUs) have no float64: see `widest`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor


def values_of(numbers: Sequence[Tensor]) -> list[float]:
    """Return the values of tensors of one real number each; their device is waited for once, if it is the same."""
    if len({x.device for x in numbers}) > 1:
        return [float(x) for x in numbers]
    if len({x.dtype for x in numbers}) > 1:
        numbers = [x.to(widest(x.device)) for x in numbers]
    return [float(x) for x in torch.stack(list(numbers)).tolist()] if numbers else []


class HostCopy:
    """A copy of `x` into pinned memory of the host, begun behind the work that its device has so far.

    A device without events (Apple) is waited for at once.
    """

    def __init__(self, x: Tensor, into: Tensor | None = None) -> None:
        """`into` is the memory; by default new one."""
        x, self._event = x.detach(), event_on(x.device)
        if self._event is None:
            self.there = x.to("cpu") if into is None else into.copy_(x)
            return
        pinned = torch.empty(x.shape, dtype=x.dtype, pin_memory=True) if into is None else into
        self.there = pinned.copy_(x, non_blocking=True)
        """The copy, whose numbers are valid once it `is_there`."""
        record(self._event, x.device)

    def is_there(self) -> bool:
        """Whether the copy is complete; never waits."""
        return self._event is None or bool(self._event.query())

    def value(self) -> Tensor:
        """Return the copy, once the device has made it."""
        if not self.is_there():
            self._event.synchronize()
        return self.there


def event_on(device: torch.device) -> Any:
    """Return a new event of a device; None where it has none, and for the CPU."""
    if device.type == "cpu":
        return None
    made = getattr(torch.get_device_module(device), "Event", None)
    return None if made is None else made()


def record(event: Any, device: torch.device) -> None:
    """Let `event` happen after the work that this thread has given to `device` so far."""
    event.record(torch.get_device_module(device).current_stream(device))


def lies_in(x: Tensor, other: Tensor) -> bool:
    """Return whether `x` is a part of the memory of `other`."""
    return x.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


@cache
def _stream_aside(device: torch.device) -> Any:
    return torch.get_device_module(device).Stream(device)


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Inside, this thread gives its work to a stream of its own, behind the work that `device` has so far.

    Work that is given to the device later is not held up by it.
    """
    module, stream = torch.get_device_module(device), _stream_aside(device)
    stream.wait_stream(module.current_stream(device))
    with module.stream(stream):
        yield


def to_device(numbers: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    """Return `numbers` in the dtype and on the device of `like`, from pinned memory: no thread waits."""
    x = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=like.dtype)
    if like.device.type == "cpu":
        return x
    if event_on(like.device) is None:
        return x.to(like.device)
    return x.pin_memory().to(like.device, like.dtype, non_blocking=True)


Move = Callable[[Tensor, "Tensor | torch.device"], Tensor]
"""(x, to) -> `x` on a device, or in a tensor of one: its numbers count once the context of `waiting_once` has ended."""


@contextmanager
def waiting_once(reads: Callable[[Any], None] | None = None) -> Iterator[Move]:
    """Yield a function that copies between the host and devices. At its end the context waits once for each device.

    With `reads` all copies are from the host, and `reads` gets the event of their end instead.
    """
    devices: set[torch.device] = set()
    late: list[tuple[Tensor, Tensor]] = []

    def move(x: Tensor, to: Tensor | torch.device) -> Tensor:
        place = to if isinstance(to, Tensor) else None
        there = to if isinstance(to, torch.device) else to.device
        x = x.detach()
        if x.device == there:
            return x if place is None else place.copy_(x)
        device = there if x.device.type == "cpu" else x.device
        if event_on(device) is None:
            return x.to(there) if place is None else place.copy_(x)
        devices.add(device)
        if there.type != "cpu":
            return x.to(there, non_blocking=True) if place is None else place.copy_(x, non_blocking=True)
        if place is not None and place.is_pinned():
            return place.copy_(x, non_blocking=True)
        pinned = torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
        if place is not None:
            late.append((place, pinned))
        return pinned if place is None else place

    yield move
    for device in devices:
        event = event_on(device)
        record(event, device)
        if reads is None:
            event.synchronize()
        else:
            reads(event)
    for place, pinned in late:
        place.copy_(pinned)


@cache
def widest(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on a device that refuses it."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return torch.float32
    return torch.float64
