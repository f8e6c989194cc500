"""The protocols by which given workers form one sum. A reducer knows neither when it is needed nor why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from typing import Any

reducers: Registry[type[Any]] = Registry(
    "reducer",
    {
        "adasum": "quorate.means.adasum:Adasum",
        "arc-top-k": "quorate.means.arc_top_k:ArcTopKSettings",
        "auto": "quorate.means.auto_codec:AutoCodecSettings",
        "dense": "quorate.means.dense:Dense",
        "gather": "quorate.means.coded:Coded",
        "halving-doubling": "quorate.means.algorithms.halving_doubling:HalvingDoubling",
        "hierarchical": "quorate.means.hierarchical:Hierarchical",
        "power-sgd": "quorate.means.power_sgd:PowerSGDSettings",
        "recursive-doubling": "quorate.means.algorithms.recursive_doubling:RecursiveDoubling",
        "ring": "quorate.means.algorithms.ring:Ring",
        "tree": "quorate.means.algorithms.tree:Tree",
        "two-phase": "quorate.means.two_phase:TwoPhase",
    },
)
OF_VECTORS = ("dense", "halving-doubling", "recursive-doubling", "ring", "tree")
"""Reducers that sum vectors unchanged, made as `cls(layout, wire)`; the others sum codes."""
OF_GRADIENTS = ("arc-top-k", "auto", "power-sgd")
"""Values of `compress` that are no codec: the settings of reducers that sum gradients by a protocol of their own."""
WITHOUT_CODEC = (*OF_VECTORS, "adasum")
"""Values of `reduce` that need no codec: reducers made as `cls(layout, wire)`."""
register = reducers.register
