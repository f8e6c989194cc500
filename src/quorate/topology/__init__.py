"""Who is whose neighbour: graphs among workers, each known by one name, written `ring` or `random:degree=3`; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from quorate.core.topology import Topology

topologies: Registry[type[Topology]] = Registry(
    "topology",
    {
        "binary-tree": "quorate.topology.plain:BinaryTree",
        "bipartite-exponential": "quorate.topology.matchings:BipartiteExponential",
        "butterfly": "quorate.topology.butterfly:Butterfly",
        "complete": "quorate.topology.plain:Complete",
        "exponential": "quorate.topology.exponential:Exponential",
        "file": "quorate.topology.from_file:FromFile",
        "hierarchical": "quorate.topology.hierarchical:Hierarchical",
        "one-peer-exponential": "quorate.topology.exponential:OnePeerExponential",
        "path": "quorate.topology.plain:Path",
        "random": "quorate.topology.drawn:Random",
        "random-matching": "quorate.topology.matchings:RandomMatching",
        "ring": "quorate.topology.plain:Ring",
        "star": "quorate.topology.plain:Star",
        "torus": "quorate.topology.plain:Torus",
        "wheel": "quorate.topology.plain:Wheel",
    },
)
register = topologies.register
