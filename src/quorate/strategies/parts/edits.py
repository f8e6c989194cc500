"""Edits: what a script has written into the parameters since they were at a known point, rounding apart; the point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_ROUNDING = 16
"""Units in the last place of a tensor's largest number; a smaller difference is rounding."""


class WithPoint:
    """The state of a strategy whose workers have a point in common beside their replicas, and are there at pauses.

    If the script edits parameters before a pause, the point is moved by `Strategy.restored`.
    """

    def forget_steps(self) -> None:
        """Contribute none of the steps so far to the pause that begins: the edited parameters count as they are."""


def edit_of(own: Tensor, before: Tensor, *scales: Tensor) -> Tensor:
    """The difference `own - before`, with 0 where it is no larger than rounding.

    Args:
        own: The numbers as they stand, of any shape and dtype.
        before: The numbers that they were, as many as in `own`; they may be on another device.
        scales: Other tensors whose rounding is in `before`, on any device.

    Returns:
        A new tensor in the shape and on the device of `own`.
    """
    difference = own - before.view_as(own).to(own.device)
    if not difference.numel():
        return difference
    info = torch.finfo(own.dtype)
    largest = max(float(x.abs().max()) for x in (own, before, *scales) if x.numel())
    return difference.masked_fill_(difference.abs() <= _ROUNDING * info.eps * largest, 0.0)


def is_edited(own: Iterable[Tensor], before: Sequence[Tensor]) -> bool:
    """Whether some tensor of `own` differs by more than rounding from the one at its place in `before`."""
    return any(bool(edit_of(x, there).any()) for x, there in zip(own, before, strict=True))
