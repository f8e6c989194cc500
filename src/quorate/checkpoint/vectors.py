"""Vectors of a worker's layout, as they stand in a checkpoint: parts, and the header, by itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from quorate.core.errors import CheckpointError
from quorate.core.vectors import Flat, Layout

FLAT = "\x00flat"
"""What marks them."""


def flats_as_parts(value: Any) -> Any:
    """`value` with every `Flat` inside as the list of its parts, the header by itself, marked."""
    if isinstance(value, Flat):
        *parts, last = value.parts
        numbers = last[: last.numel() - value.layout.header]
        return {FLAT: [*parts, numbers, value.header]}  # the header's length differs with the size of the world
    if isinstance(value, dict):
        return {key: flats_as_parts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([flats_as_parts(item) for item in value])
    return value


def parts_as_flats(value: Any, layout: Layout) -> Any:
    """The inverse of `flats_as_parts`. Raises `CheckpointError` for vectors of another model."""
    if isinstance(value, dict):
        if value.keys() == {FLAT}:
            return flat_from(value[FLAT], layout)
        return {key: parts_as_flats(item, layout) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([parts_as_flats(item, layout) for item in value])
    return value


def flat_from(parts: list[Tensor], layout: Layout) -> Flat:
    """A vector over `layout` of these parts, the last of which is the header: that of a world of another size is left.

    One that had none has none again.
    Raises `CheckpointError` where they are of another layout.
    """
    *numbers, header = parts
    layout = layout if header.numel() else layout.bare
    wanted = [
        (p.numel - layout.header * (place == len(layout.parts) - 1), p.dtype) for place, p in enumerate(layout.parts)
    ]
    if [(x.numel(), x.dtype) for x in numbers] != wanted:
        raise CheckpointError(
            "the checkpoint's vectors are of another model: their parts have other sizes or types; what was frozen "
            "then has to be frozen before quorate.distribute()"
        )
    vector = Flat.zeros(layout)
    for there, x in zip(vector.parts, numbers, strict=True):
        there[: x.numel()].copy_(x)
    if header.numel() == layout.header:
        vector.header.copy_(header)
    return vector
