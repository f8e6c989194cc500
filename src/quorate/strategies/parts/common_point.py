"""A point that all workers have in common, and what of one worker's own way is not in it yet; pure."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.resize import kept
from quorate.core.vectors import Flat
from quorate.strategies.parts.edits import is_edited
from quorate.strategies.parts.local_steps import LocalSteps


@dataclass(kw_only=True)
class CommonPoint(LocalSteps):
    """The place of this worker: `common`, plus what is `pending`, plus its newest local steps."""

    common: Flat = kept("same")
    begun: Flat = kept("drop")
    """The point at which the newest local steps began."""
    pending: list[Flat] = kept("drop")
    """Contributions that are not in `common` yet, in order."""
    has_moved: bool = kept("drop", default=False)
    """Whether the common point has moved since the newest pause of all; equal on all workers during a pause."""

    def hand_in(self, reached: Flat) -> tuple[Flat, float]:
        """Return the delta of the newest local steps, up to `reached`, and the weight of one of them.

        The delta is pending from now on. An edit of the script without a step counts 1.
        """
        way, weight = reached - self.begun, self.done / self.steps if self.steps else 1.0
        self.pending.append(way)
        self.restart()
        return way, weight

    def has_left(self, reached: Flat) -> bool:
        """Whether this worker, which has `reached` a point, has made a step since `begun`, or the script an edit."""
        return bool(self.steps) or is_edited(reached.segments(), self.begun.segments())

    def move_to(self, common: Flat) -> None:
        """All go on from `common`, by no step of theirs."""
        self.common, self.begun, self.has_moved = common, common.clone(), True

    def take(self, mean: Flat, count: int) -> None:
        """All went on by `mean`, in which the first `count` pending contributions have come."""
        self.common.add_(mean)
        self.has_moved = True
        del self.pending[:count]

    def rest(self) -> bool:
        """Drop pending contributions, which were too old, at a pause; return whether the common point has moved."""
        self.pending.clear()
        has_moved, self.has_moved = self.has_moved, False
        return has_moved

    def go_on(self) -> Flat:
        """Return the point at which the next local steps begin."""
        self.begun = self.common.clone()
        for way in self.pending:
            self.begun.add_(way)
        return self.begun
