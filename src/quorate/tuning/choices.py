"""Choices of how a gradient is exchanged, and what a model of the exchange predicts of each; pure.

None of them changes a bit of a mean on CPUs: each number is added over the workers in the same order in any part.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

from quorate.core.fields import Fields
from quorate.tuning.best_parts import LinkCosts, best_ends, end_of_exchange, ends_by_size

REFUSED_ABOVE = 1.02
"""A choice is not tried if the model predicts an exchange that takes this many times as long as the default's."""


@dataclass(frozen=True)
class Choice(Fields):
    """The settings of the parts of a gradient, as in `distribute`."""

    part_bytes: int
    first_part_bytes: int
    part_order: Literal["registration", "arrival"] = "registration"
    part_layout: Literal["sizes", "measured"] = "sizes"
    part_overlap: bool = True
    part_channels: int = 1

    def other_than(self, default: Choice) -> dict[str, Any]:
        """Return the settings that differ from those of `default`, and that have an effect, by name."""
        names = [field.name for field in fields(self) if getattr(self, field.name) != getattr(default, field.name)]
        unused = ("part_bytes", "first_part_bytes", "part_order") if self.part_layout == "measured" else ()
        return {name: getattr(self, name) for name in names if name not in unused}

    def in_words(self, default: Choice) -> str:
        """Return the settings that differ, in words."""
        words = {
            "part_layout": f"parts {'cut by measured times' if self.part_layout == 'measured' else 'by size'}",
            "part_bytes": f"parts of {_size(self.part_bytes)}",
            "first_part_bytes": f"a first part of {_size(self.first_part_bytes)}",
            "part_order": f"in the order of {self.part_order}",
            "part_overlap": "sent " + ("during" if self.part_overlap else "after") + " the backward pass",
            "part_channels": f"{self.part_channels} parts under way at once",
        }
        differing = self.other_than(default)
        return ", ".join(text for name, text in words.items() if name in differing) or "the default"


def _size(nbytes: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"


@dataclass(frozen=True)
class Profile:
    """The measured times of a gradient's exchange, the same on all workers."""

    ready: Sequence[float]
    """Seconds from the beginning of the step at which each tensor is ready on the slowest worker, in the order of
    registration."""
    sizes: Sequence[int]
    """Bytes of each tensor."""
    costs: LinkCosts
    skew: float
    """Seconds between the middle and the slowest worker at the end of the backward pass."""

    @cached_property
    def arrival(self) -> tuple[int, ...]:
        """The numbers of the tensors in the order in which they are ready."""
        return tuple(sorted(range(len(self.ready)), key=lambda index: (self.ready[index], -index)))

    @cached_property
    def _best(self) -> tuple[int, ...]:
        return best_ends(*self._sorted(self.arrival), self.costs)

    def order_of(self, choice: Choice) -> tuple[int, ...]:
        """Return the numbers of the tensors in the order in which they are sent."""
        is_registration = choice.part_order == "registration" and choice.part_layout == "sizes"
        return tuple(reversed(range(len(self.ready)))) if is_registration else self.arrival

    def ends_of(self, choice: Choice) -> tuple[int, ...]:
        """Return where parts end, in that order."""
        if choice.part_layout == "measured":
            return self._best
        _, sizes = self._sorted(self.order_of(choice))
        return ends_by_size(sizes, choice.part_bytes, choice.first_part_bytes)

    def predicted(self, choice: Choice) -> float:
        """Return the predicted seconds from the beginning of the step to the end of the exchange."""
        ready, sizes = self._sorted(self.order_of(choice))
        how: dict[str, Any] = {"overlaps": choice.part_overlap, "channels": choice.part_channels}
        return end_of_exchange(ready, sizes, self.ends_of(choice), self.costs, **how)

    def is_alike(self, choice: Choice, other: Choice) -> bool:
        """Whether two choices send the same parts in the same way."""
        return self._effects(choice) == self._effects(other)

    def _effects(self, choice: Choice) -> tuple[object, ...]:
        ends = self.ends_of(choice)
        channels = min(choice.part_channels, len(ends))
        overlaps = choice.part_overlap and len(ends) > 1
        return self.order_of(choice) if len(ends) > 1 else (), ends, channels, overlaps

    def _sorted(self, order: Sequence[int]) -> tuple[list[float], list[int]]:
        return [self.ready[index] for index in order], [self.sizes[index] for index in order]


def profile_of(ready: Sequence[Sequence[float]], sizes: Sequence[int], costs: LinkCosts) -> Profile:
    """Return the profile of the ready times of each worker."""
    ends = [max(times) for times in ready]
    slowest = [max(times) for times in zip(*ready, strict=True)]
    return Profile(slowest, sizes, costs, max(ends) - statistics.median_low(ends))
