"""By which protocol one sum is formed among given members. A reducer knows neither when nor who."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from typing import Any

reducers: Registry[type[Any]] = Registry(
    "reducer",
    {
        "adasum": "quorate.means.adasum:Adasum",
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
"""Those that sum vectors as they are, made as `cls(layout, wire)`; the others sum what is written small."""
WITHOUT_CODEC = (*OF_VECTORS, "adasum")
"""What `reduce` may be without a codec: these, and what is made likewise and forms no plain sum."""
register = reducers.register
