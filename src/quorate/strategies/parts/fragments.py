"""A model's parameters in fragments that are averaged in turn: which tensors they hold; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, Layout, Part
from quorate.strategies.parts.local_steps import period_from

Fragment = tuple[int, ...]
"""The numbers of the segments in it."""


def fragments_of(layout: Layout, count: int) -> tuple[Fragment, ...]:
    """The segments of `layout` in `count` fragments of about equal bytes: the largest first, each to the least so far.

    Raises `ConfigurationError` where there are fewer tensors.
    """
    if count > max(1, len(layout.segments)):
        raise ConfigurationError(
            f"fragments is {count}, and {len(layout.segments)} tensors are trained; each fragment needs one"
        )
    sizes = [segment.numel * segment.dtype.itemsize for segment in layout.segments]
    found: list[list[int]] = [[] for _ in range(count)]
    filled = [(0, 0)] * count
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        least = min(range(count), key=lambda place: (filled[place], place))
        found[least].append(index)
        filled[least] = filled[least][0] + sizes[index], len(found[least])
    return tuple(tuple(sorted(some)) for some in found)


def among(x: Flat, segments: Sequence[int]) -> Flat:
    """A view of some segments of `x`, each a part of its own, without a header: what is written there is in `x`."""
    views = x.segments()
    parts = tuple(Part(views[i].numel(), views[i].dtype, views[i].device) for i in segments)
    own = tuple(replace(x.layout.segments[i], part=place, offset=0) for place, i in enumerate(segments))
    return Flat([views[i].reshape(-1) for i in segments], Layout(own, parts, 0))


def check_fragments(sync_every: int | str, fragments: int, overlap: int, merge: float) -> None:
    """Raise `ConfigurationError` for settings of fragments that do not go together."""
    if fragments < 1 or overlap < 0 or not 0 <= merge < 1:
        found = f"fragments={fragments}, overlap={overlap}, merge={merge}"
        raise ConfigurationError(f"{found}: fragments is from 1 on, overlap from 0 on, and merge from 0 to below 1")
    period = period_from(sync_every)
    if period.unit == "steps" and (period.count % fragments or overlap >= period.count / fragments):
        found = f"sync_every={sync_every}, fragments={fragments}, overlap={overlap}"
        raise ConfigurationError(f"{found}: sync_every is a multiple of fragments, and overlap below their ratio")
