"""Who pushes to servers, and who is about to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class There:
    """A worker that pushes."""

    clock: int = 0
    """How many gradients of it have been taken in."""
    asked: list[int] = field(default_factory=list)
    """The numbers of the pushes behind which it has asked to read, and has not."""
    answered: int = 0
    """The newest of those behind which it has."""
    leaves: Literal["", "rests", "ended"] = ""
    """How it does when all that it has pushed is taken in."""


@dataclass
class Joining:
    """Those that join, each with the number of its attempt."""

    asked: dict[int, int] = field(default_factory=dict)
    """Who is not there yet."""
    answered: dict[int, int] = field(default_factory=dict)
    """Who has been let in, the newest time."""
    withdrawn: dict[int, int] = field(default_factory=dict)
    """Whose newest attempt is over."""
