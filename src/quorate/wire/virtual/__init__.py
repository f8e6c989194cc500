"""A world of virtual workers inside one process: deterministic, on a virtual clock, with a modelled network."""

from quorate.wire.virtual.compute import ComputeModel, Constant, Formula, Sampled, Trace, parse_compute
from quorate.wire.virtual.network import Link, Network
from quorate.wire.virtual.world import Outcome, VirtualWorld

__all__ = [
    "ComputeModel",
    "Constant",
    "Formula",
    "Link",
    "Network",
    "Outcome",
    "Sampled",
    "Trace",
    "VirtualWorld",
    "parse_compute",
]
