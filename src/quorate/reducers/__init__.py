"""By which protocol one sum is formed among given members. A reducer knows neither when nor who.

`reducers.get(name)` is a class, made as `cls(layout, wire)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from quorate.reducers.in_parts import InParts

reducers: Registry[type[InParts]] = Registry(
    "reducer",
    {
        "dense": "quorate.reducers.dense:Dense",
        "halving-doubling": "quorate.reducers.algorithms.halving_doubling:HalvingDoubling",
        "recursive-doubling": "quorate.reducers.algorithms.recursive_doubling:RecursiveDoubling",
        "ring": "quorate.reducers.algorithms.ring:Ring",
        "tree": "quorate.reducers.algorithms.tree:Tree",
    },
)
register = reducers.register
