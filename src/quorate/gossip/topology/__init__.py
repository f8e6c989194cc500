"""Graphs among workers, each registered under one name; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core.errors import ConfigurationError
from quorate.core.registry import Registry
from quorate.core.settings import settings_for, written_settings

if TYPE_CHECKING:
    from quorate.core.topology import Topology

topologies: Registry[type[Topology]] = Registry(
    "topology",
    {
        "binary-tree": "quorate.gossip.topology.fixed:BinaryTree",
        "bipartite-exponential": "quorate.gossip.topology.changing:BipartiteExponential",
        "butterfly": "quorate.gossip.topology.groups:Butterfly",
        "complete": "quorate.gossip.topology.fixed:Complete",
        "exponential": "quorate.gossip.topology.fixed:Exponential",
        "file": "quorate.gossip.topology.from_file:FromFile",
        "hierarchical": "quorate.gossip.topology.groups:Hierarchical",
        "one-peer-exponential": "quorate.gossip.topology.changing:OnePeerExponential",
        "path": "quorate.gossip.topology.fixed:Path",
        "random": "quorate.gossip.topology.fixed:Random",
        "random-matching": "quorate.gossip.topology.changing:RandomMatching",
        "ring": "quorate.gossip.topology.fixed:Ring",
        "star": "quorate.gossip.topology.fixed:Star",
        "torus": "quorate.gossip.topology.fixed:Torus",
        "wheel": "quorate.gossip.topology.fixed:Wheel",
    },
)
register = topologies.register


def topology_of(text: str, size: int | None = None) -> Topology:
    """Return the topology that `text` names, with its settings; checked for `size` workers if that is given.

    `text` is written `ring`, `random:degree=3,seed=1` or `file:path=graph.txt`. Semicolons may separate settings as
    well, where commas separate other things (`--strategy d-psgd:topology=...`).

    Raises `ConfigurationError` for unknown names and settings, and for a size that the topology does not support.
    """
    name, raw = written_settings(text, "topology")
    kind: Any = topologies.get(name)
    try:
        topology: Topology = kind(**settings_for(kind, raw, name))
    except TypeError:
        raise ConfigurationError(f'the topology "{name}" needs settings: write {name}:key=value') from None
    if size is not None:
        topology.check(size)
    return topology
