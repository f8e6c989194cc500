"""The state of a worker under push-sum: a numerator, its weight, and shares that came while all rested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.core.neighbours import Given, added_up
from quorate.core.own_replica import OwnReplica
from quorate.core.resize import kept
from quorate.core.vectors import Flat, scale_into


@dataclass(kw_only=True)
class PushSum:
    """x and u of the paper's x and w; the model shows z = x / u. Shares in flight are in no worker's state."""

    x: Flat = kept("average")
    u: float = kept("average", default=1.0)
    came_x: Flat | None = kept("average", default=None)
    """The sum of the numerators that arrived during a pause of all; the next step takes it in."""
    came_u: float = kept("average", default=0.0)
    """Their weights, added up."""
    is_edited: bool = kept("drop", default=False)
    """Whether the script has edited the model since the newest step, during a pause of this worker."""

    @property
    def mass(self) -> float:
        """The weight of all that this worker holds."""
        return self.u + self.came_u

    def take_edits(self, replica: OwnReplica, *, rests: bool = False) -> None:
        """Add to the numerator what the script has written into the model since it showed z."""
        z = self.x / self.u
        has_edits = replica.take_edits(z, into=self.x, scale=self.u)
        self.is_edited = rests and (self.is_edited or has_edits)
        if self.came_x is not None:
            replica.take_edits(z, into=self.came_x, scale=self.came_u)

    def keep(self, shares: Sequence[Given], blank: Flat) -> None:
        """Hold shares that arrived during a pause of all; `blank` takes their sum.

        They may be older than an edit of the model after the newest step: then their weight is added to the model.
        """
        if shares or self.came_x is not None:
            self.came_x, self.came_u = added_up([*shares, *self.taken()], blank)
            if self.is_edited:
                scale_into(self.x / self.u, self.came_u, into=self.came_x)

    def taken(self) -> list[Given]:
        """Return the shares that arrived during a pause as one share, and hold them no more."""
        held = [] if self.came_x is None else [Given(self.came_x, 1.0, (self.came_u,), -1)]
        self.came_x, self.came_u = None, 0.0
        return held

    def consensus(self, own: Flat) -> Flat:
        """Return the parameters of all that this worker holds; `own`, those of the model, may be written to."""
        return own if self.came_x is None else own.copy_((self.x + self.came_x) / self.mass)
