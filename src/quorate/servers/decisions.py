"""The pushes that servers decide on, and their decisions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Push:
    """A push of worker `source`: gradient `number` (from 1), the mean of `count` steps, of parameters of `version`.
    With a count of 0 it has no gradient, and nobody waits for it."""

    source: int
    number: int
    version: int
    count: int = 1
    reads: bool = True


@dataclass(frozen=True)
class Taken:
    """A gradient in a step: its weight `factor` (those of a step sum to 1), and its staleness in steps."""

    source: int
    number: int
    factor: float
    staleness: int


@dataclass(frozen=True)
class Decision:
    """A decision: make a step of the gradients `taken`, if any, with the learning rate times `rate`, discard the
    `dropped`, then let the `readers` read version `version`."""

    version: int
    taken: tuple[Taken, ...] = ()
    rate: float = 1.0
    dropped: tuple[tuple[int, int], ...] = ()
    """Source and number of each gradient."""
    readers: tuple[tuple[int, int], ...] = ()
    """Pairs of rank and question: the number of the push before it, 0 at a pause, below 0 for a newcomer."""
    options_of: tuple[int, int] = (-1, 0)
    """Source and number of the push whose options (learning rate and others) the step uses."""
    is_last: bool = False
    """Whether this decision ends the era: nobody pushes until the next one begins."""
    there: tuple[int, ...] = ()
    """The workers of the next era: the readers that have not ended."""
    ended: tuple[int, ...] = ()
    repeats: bool = False
    """Whether the readers read once more what they had asked for, as a part of it was on a server that has died."""
    joined: tuple[tuple[int, int], ...] = ()
    """Newcomers that take part from now on, each with the clock at which it begins."""

    @property
    def is_whole(self) -> bool:
        """Whether its readers are sent full parameters, not the differences from the parameters that they have."""
        return self.is_last or self.repeats or bool(self.joined)
