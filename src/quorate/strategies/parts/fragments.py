"""A model's parameters in fragments that are averaged in turn: which tensors they hold; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, Layout, Part
from quorate.strategies.parts.local_steps import period_from

Fragment = tuple[int, ...]
"""The numbers of the segments in it."""
By = Literal["bytes", "layer"]


def fragments_of(layout: Layout, count: int, by: By = "bytes") -> tuple[Fragment, ...]:
    """The segments of `layout` in `count` fragments of about equal bytes.

    By bytes: the largest tensor first, each to the fragment that has the least so far. By layer: layers one after the
    other, each whole; a layer is a module that has parameters of its own. Raises `ConfigurationError` where there are
    fewer tensors, or layers.
    """
    if by == "layer":
        return _by_layer(layout, count)
    if count > max(1, len(layout.segments)):
        raise ConfigurationError(
            f"fragments is {count}, and {len(layout.segments)} tensors are trained; each fragment needs at least one"
        )
    sizes = [_bytes_of(layout, index) for index in range(len(layout.segments))]
    fragments: list[list[int]] = [[] for _ in range(count)]
    filled = [(0, 0)] * count
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        least = min(range(count), key=lambda place: (filled[place], place))
        fragments[least].append(index)
        filled[least] = filled[least][0] + sizes[index], len(fragments[least])
    return tuple(tuple(sorted(some)) for some in fragments)


def _by_layer(layout: Layout, count: int) -> tuple[Fragment, ...]:
    layers: dict[str, list[int]] = {}
    for index, segment in enumerate(layout.segments):
        layers.setdefault(segment.name.rpartition(".")[0], []).append(index)
    if count > max(1, len(layers)):
        raise ConfigurationError(
            f"fragments is {count}, and there are {len(layers)} layers with parameters that are trained; each fragment "
            "needs one"
        )
    sizes = [sum(_bytes_of(layout, index) for index in own) for own in layers.values()]
    ends = _cut(sizes, count)
    in_order = list(layers.values())
    return tuple(
        tuple(sorted(index for own in in_order[begin:end] for index in own)) for begin, end in pairwise([0, *ends])
    )


def _cut(sizes: Sequence[int], count: int) -> list[int]:
    """Return the end of each of `count` runs of `sizes`: as near to equal shares as can be, none of them empty."""
    total, so_far = sum(sizes), 0
    ends: list[int] = []
    for place, size in enumerate(sizes, 1):
        wanted = total * (len(ends) + 1) / count
        left, open_runs = len(sizes) - place, count - len(ends) - 1
        after = so_far + size
        nearer = after >= wanted or (left and abs(after - wanted) <= abs(after + sizes[place] - wanted))
        so_far = after
        if open_runs and left >= open_runs and (nearer or left == open_runs):
            ends.append(place)
    return [*ends, len(sizes)]


def _bytes_of(layout: Layout, index: int) -> int:
    """Return the bytes of the full tensor: all pieces of a replica are cut alike."""
    segment = layout.segments[index]
    return (segment.numel if segment.whole is None else segment.whole) * segment.dtype.itemsize


def among(x: Flat, segments: Sequence[int]) -> Flat:
    """Return a view of some segments of `x`, each a part of its own, without a header."""
    views = x.segments()
    parts = tuple(Part(views[i].numel(), views[i].dtype, views[i].device) for i in segments)
    own = tuple(replace(x.layout.segments[i], part=place, offset=0) for place, i in enumerate(segments))
    return Flat([views[i].reshape(-1) for i in segments], Layout(own, parts, 0))


def check_fragments(sync_every: int | str, fragments: int, overlap: int, merge: float) -> None:
    """Raise `ConfigurationError` for settings of fragments that do not go together."""
    if fragments < 1 or overlap < 0 or not 0 <= merge < 1:
        settings = f"fragments={fragments}, overlap={overlap}, merge={merge}"
        raise ConfigurationError(
            f"{settings}: fragments must be at least 1, overlap at least 0, and merge at least 0 and below 1"
        )
    period = period_from(sync_every)
    if period.unit == "steps" and (period.count % fragments or overlap >= period.count / fragments):
        settings = f"sync_every={sync_every}, fragments={fragments}, overlap={overlap}"
        raise ConfigurationError(
            f"{settings}: sync_every must be a multiple of fragments, and overlap must be below their ratio"
        )
