"""Batches on a device, with the next one copied there during the computation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError


def device_from(requested: str | int | torch.device | None) -> torch.device | None:
    """Return the device passed to `loader`. Raises `ConfigurationError` for one that does not exist."""
    if requested is None:
        return None
    try:
        device = torch.device(requested)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(f"device is {requested!r}, which torch does not know: {error}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f'device is "{device}", but torch finds no usable GPU here; leave it out')
    return device


def moved(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Return `batch` with all its tensors on the device: in tuples, lists, dicts and objects with a method `to`."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, Mapping):
        return {key: moved(value, device, non_blocking=non_blocking) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        of = [moved(value, device, non_blocking=non_blocking) for value in batch]
        return type(batch)(*of) if hasattr(batch, "_fields") else type(batch)(of)
    return batch.to(device) if callable(getattr(batch, "to", None)) else batch


def on_device(batches: Iterator[Any], device: torch.device | None) -> Iterator[Any]:
    """Move `batches` to the device.

    On a GPU each is copied, from pinned memory, on a separate stream during the computation of the one before; so one
    more than requested is fetched.
    """
    if device is None:
        return batches
    return _ahead(batches, device) if device.type == "cuda" else (moved(batch, device) for batch in batches)


def _ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    copies, after = torch.cuda.Stream(device), object()

    def fetch() -> Any:
        batch = next(batches, after)
        if batch is after:
            return after
        with torch.cuda.stream(copies):
            return moved(batch, device, non_blocking=True)

    coming = fetch()
    while coming is not after:
        now = torch.cuda.current_stream(device)
        now.wait_stream(copies)
        batch = coming
        _is_used_on(batch, now)
        coming = fetch()
        yield batch


def _is_used_on(batch: Any, stream: torch.cuda.Stream) -> None:
    """Keep its memory from being reused while `stream` may still read it."""
    if isinstance(batch, Tensor):
        batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _is_used_on(value, stream)
    elif isinstance(batch, tuple | list):
        for value in batch:
            _is_used_on(value, stream)
