"""Which ranks of a run are servers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class OwnServers:
    """As one worker or server knows them; one of each place."""

    ranks: Sequence[int] = ()
    """They keep parameters for the workers, whose ranks are lower, and train nothing."""
    has_served: bool = False
    """Of a server: whether it came to a training."""
