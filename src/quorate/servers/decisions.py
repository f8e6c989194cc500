"""What servers decide on, and what they decide."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Push:
    """What a worker has pushed: its gradient number `number` (from 1), the mean of `count` steps on parameters of
    `version`; with 0 there is none, and nobody waits for it."""

    source: int
    number: int
    version: int
    count: int = 1
    reads: bool = True


@dataclass(frozen=True)
class Taken:
    """A gradient in a step: what it counts there (all of a step count 1), and how stale it is, in steps."""

    source: int
    number: int
    factor: float
    staleness: int


@dataclass(frozen=True)
class Decision:
    """Make a step of `taken`, if there are any, with the learning rate times `rate`; forget the `dropped`, then let the
    `readers` read version `version`."""

    version: int
    taken: tuple[Taken, ...] = ()
    rate: float = 1.0
    dropped: tuple[tuple[int, int], ...] = ()
    """Source and number."""
    readers: tuple[tuple[int, int], ...] = ()
    """Each with the number of the push behind which it asked; 0 where it rests, and below where it comes."""
    options_of: tuple[int, int] = (-1, 0)
    """Whose learning rate and the rest the step is made with: source and number."""
    is_last: bool = False
    """Whether nobody pushes any more until all set out again: the readers rest."""
    there: tuple[int, ...] = ()
    """Who sets out then: the readers that have not ended."""
    ended: tuple[int, ...] = ()
    """Who has, then."""
    repeats: bool = False
    """Whether the readers read again what they had asked for, as some of it was on a server that has died."""
    joined: tuple[tuple[int, int], ...] = ()
    """Who is there from now on, and the clock at which it begins."""

    @property
    def is_whole(self) -> bool:
        """Whether its readers get all numbers, and not how far they have gone since what they have."""
        return self.is_last or self.repeats or bool(self.joined)
