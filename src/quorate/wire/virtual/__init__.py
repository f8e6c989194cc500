"""A world of virtual workers inside one process: deterministic, on a virtual clock, with a modelled network.

The models of times and of the network need no torch; the world, which does, is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.wire.virtual.compute import ComputeModel, Constant, Sampled, Trace, parse_compute
from quorate.wire.virtual.network import Link, Network

if TYPE_CHECKING:
    from quorate.wire.virtual.world import Outcome, VirtualWorld

__all__ = [
    "ComputeModel",
    "Constant",
    "Link",
    "Network",
    "Outcome",
    "Sampled",
    "Trace",
    "VirtualWorld",
    "parse_compute",
]


def __getattr__(name: str) -> Any:
    if name not in ("Outcome", "VirtualWorld"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from quorate.wire.virtual import world

    return getattr(world, name)
