"""Graphs among workers, each registered under one name, written `ring` or `random:degree=3`; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from quorate.core.topology import Topology

topologies: Registry[type[Topology]] = Registry(
    "topology",
    {
        "binary-tree": "quorate.gossip.topology.plain:BinaryTree",
        "bipartite-exponential": "quorate.gossip.topology.matchings:BipartiteExponential",
        "butterfly": "quorate.gossip.topology.butterfly:Butterfly",
        "complete": "quorate.gossip.topology.plain:Complete",
        "exponential": "quorate.gossip.topology.exponential:Exponential",
        "file": "quorate.gossip.topology.from_file:FromFile",
        "hierarchical": "quorate.gossip.topology.hierarchical:Hierarchical",
        "one-peer-exponential": "quorate.gossip.topology.exponential:OnePeerExponential",
        "path": "quorate.gossip.topology.plain:Path",
        "random": "quorate.gossip.topology.drawn:Random",
        "random-matching": "quorate.gossip.topology.matchings:RandomMatching",
        "ring": "quorate.gossip.topology.plain:Ring",
        "star": "quorate.gossip.topology.plain:Star",
        "torus": "quorate.gossip.topology.plain:Torus",
        "wheel": "quorate.gossip.topology.plain:Wheel",
    },
)
register = topologies.register
