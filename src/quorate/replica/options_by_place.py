"""Options of an optimizer (learning rate, betas, decay) by the place in the training that they are meant for."""

from __future__ import annotations

from typing import Any


class OptionsByPlace:
    """The options of an optimizer for each place in the training, in synchronous steps.

    A scheduler is stepped as often as the training has made steps (`train.schedules`), so its options are for the place
    of the worker's replica. A script that writes other numbers before every step of its own means that step: where this
    worker has made more steps than the training, the options of its step of the same number count.
    """

    def __init__(self) -> None:
        self._last: list[dict[str, Any]] | None = None
        self._moved = self._in_a_row = 0
        self._by_step: dict[int, list[dict[str, Any]]] = {}

    @property
    def is_by_hand(self) -> bool:
        """Whether the script writes the options before every step."""
        return self._in_a_row > 1

    def of(
        self, options: list[dict[str, Any]], step: int, progress: float, moved: int
    ) -> tuple[list[dict[str, Any]], float]:
        """Return the options for the contribution of this worker's `step` (from 1), and the place that they mean.

        `options` are those in force; `moved` counts the steps of schedulers.
        """
        is_written = self._last is not None and options != self._last and moved == self._moved
        if options != self._last:
            self._in_a_row = self._in_a_row + 1 if is_written else 0
        self._last, self._moved = options, moved
        self._by_step[step] = options
        for old in [past for past in self._by_step if past <= int(progress)]:
            del self._by_step[old]
        if not self.is_by_hand:
            return options, progress
        place = min(step - 1, int(progress))
        return self._by_step.get(place + 1, options), float(place)
