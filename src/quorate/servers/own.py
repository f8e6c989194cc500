"""The ranks of a run that are servers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class OwnServers:
    """The separate servers of a run, as one worker or server knows them; each place has one."""

    ranks: Sequence[int] = ()
    """Ranks above those of the workers. They hold parameters, and train nothing."""
    has_served: bool = False
    """Whether this rank, a server, has served a training."""
