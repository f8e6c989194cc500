"""A model's parameters in fragments that are averaged in turn: which tensors they hold, and whose turn it is; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from quorate.core.contracts import Work
from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.vectors import Flat, Layout, Part

Fragment = tuple[int, ...]
"""The segments in it."""


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


class UnderWay(NamedTuple):
    """A mean of one fragment that is being formed."""

    number: int
    """Of the fragment."""
    step: int
    """In which it began."""
    mean: Work[Flat]


@dataclass(kw_only=True)
class Fragments:
    """Whose turn it is, and what each worker has done since the last mean of each fragment."""

    fragments: tuple[Fragment, ...] = kept("drop")
    turn: int = kept("same", default=0)
    """The fragment that is averaged next; means are in the same order on all workers."""
    given: int = kept("drop", default=0)
    """The fragment that was given last."""
    since: list[float] = kept("average", is_adapted=True)
    """Steps, or examples, by fragment."""
    under_way: list[UnderWay] = kept("drop", default_factory=list)
    """The oldest first."""

    def gone(self, amount: float) -> None:
        """A step was made."""
        self.since = [done + amount for done in self.since]

    def turn_over(self) -> int:
        """The fragment whose turn it is; the next one is the next one's."""
        self.given = self.turn
        self.turn = (self.turn + 1) % len(self.fragments)
        return self.given
