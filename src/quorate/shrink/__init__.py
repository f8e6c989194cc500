"""Models that become smaller while many workers train them; each name is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.shrink.cluster import cluster as cluster
    from quorate.shrink.hardening import harden as harden
    from quorate.shrink.low_rank import low_rank as low_rank
    from quorate.shrink.low_rank import shape_like as shape_like
    from quorate.shrink.packed import pack as pack
    from quorate.shrink.packed import unpack as unpack
    from quorate.shrink.pruning import Cubic as Cubic
    from quorate.shrink.pruning import Pruning as Pruning
    from quorate.shrink.pruning import prune as prune
    from quorate.shrink.shrinking import Shrinking as Shrinking
    from quorate.shrink.shrinking import chosen as chosen
    from quorate.shrink.tickets import lottery as lottery

_PLACES = {
    "Cubic": "pruning",
    "Pruning": "pruning",
    "Shrinking": "shrinking",
    "chosen": "shrinking",
    "cluster": "cluster",
    "harden": "hardening",
    "lottery": "tickets",
    "low_rank": "low_rank",
    "pack": "packed",
    "prune": "pruning",
    "shape_like": "low_rank",
    "unpack": "packed",
}
"""The modules of public functions; those of the same name can be called."""
__all__ = [
    "Cubic", "Pruning", "Shrinking", "chosen", "cluster", "harden", "lottery", "low_rank", "pack", "prune",
    "shape_like", "unpack",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'quorate.shrink' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = importlib.import_module(f"quorate.shrink.{_PLACES[name]}")
    return module if name == _PLACES[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
