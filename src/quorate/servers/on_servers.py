"""What parameters on servers ask of the worker, and call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.means.edge_coding import EdgeCoding


@dataclass(frozen=True)
class OnServers:
    """Of one worker of one optimizer."""

    leaves_out: Callable[[], bool]
    """Whether its gradient of this step is left out."""
    tolerates_death: bool
    """Whether the others go on when a worker dies."""
    call: Mapping[str, Any] = field(default_factory=dict)
    """What it called `distribute` with, for servers that are no workers."""
    coding: EdgeCoding | None = None
    """How its gradients are written small."""
    feeds_back: bool = False
    """Whether what that leaves out is added to the next ones."""
