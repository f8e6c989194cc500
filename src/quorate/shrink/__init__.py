"""Smaller models on many workers: layers in two factors, weights that share values, and files of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.shrink.cluster import cluster as cluster
    from quorate.shrink.low_rank import low_rank as low_rank
    from quorate.shrink.low_rank import shape_like as shape_like
    from quorate.shrink.packed import pack as pack
    from quorate.shrink.packed import unpack as unpack

_PLACES = {"cluster": "cluster", "low_rank": "low_rank", "shape_like": "low_rank", "pack": "packed", "unpack": "packed"}
"""The modules of public functions; those of the same name can be called."""
__all__ = ["cluster", "low_rank", "pack", "shape_like", "unpack"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'quorate.shrink' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = importlib.import_module(f"quorate.shrink.{_PLACES[name]}")
    return module if name == _PLACES[name] else getattr(module, name)
