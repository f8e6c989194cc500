"""Gradients that steps clear themselves: by `zero_grad()` in a hook of steps, or by setting `.grad` to None.

A step on a mean has the mean in `.grad`, and clears that. This worker's own gradient comes back behind the step, and
the next backward pass would add to it. So it is cleared as well, after each call of `step` by the script. A late worker
may make that call without an update: then it clears what the newest update cleared.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class ClearedGradients:
    """The gradients that the newest update of one optimizer has cleared, if it was made on a mean in `.grad`."""

    def __init__(self) -> None:
        self._is_of_mean = False
        self._to_none: dict[Tensor, bool] = {}
        """The parameters, and whether each gradient became None or zeros."""

    def update_begins(self, *, is_of_mean: bool) -> None:
        """Forget the update before. `is_of_mean`: `.grad` has another gradient than this worker's own until it ends."""
        self._is_of_mean = is_of_mean
        self._to_none.clear()

    def note(self, parameters: Iterable[Tensor], *, to_none: bool = True) -> None:
        """Note that the update has cleared the gradients of `parameters`."""
        if self._is_of_mean:
            self._to_none.update(dict.fromkeys(parameters, to_none))

    def clear_own(self) -> None:
        """Clear this worker's own gradients of the same parameters."""
        for p, to_none in self._to_none.items():
            if to_none or p.grad is None:
                p.grad = None
            else:
                p.grad = p.grad if p.grad.grad_fn is None else p.grad.detach()
                p.grad.zero_()
