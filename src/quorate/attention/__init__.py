"""Block-sparse attention: patterns of blocks, and attention that computes only the blocks of a pattern; pure."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from quorate.attention.names import patterns as patterns

if TYPE_CHECKING:
    from quorate.attention.module import SparseMultiheadAttention as SparseMultiheadAttention
    from quorate.attention.module import sparsify as sparsify
    from quorate.attention.pattern import ByFunction as ByFunction
    from quorate.attention.pattern import Pattern as Pattern
    from quorate.attention.pattern import pattern_mask as pattern_mask
    from quorate.attention.patterns import BigBird as BigBird
    from quorate.attention.patterns import Dense as Dense
    from quorate.attention.patterns import Fixed as Fixed
    from quorate.attention.patterns import Longformer as Longformer
    from quorate.attention.patterns import Strided as Strided
    from quorate.attention.patterns import Variable as Variable
    from quorate.attention.patterns import Window as Window
    from quorate.attention.transformers import register as register

_PLACES = {
    "BigBird": "patterns",
    "ByFunction": "pattern",
    "Dense": "patterns",
    "Fixed": "patterns",
    "Longformer": "patterns",
    "Strided": "patterns",
    "Variable": "patterns",
    "Window": "patterns",
    "Pattern": "pattern",
    "SparseMultiheadAttention": "module",
    "pattern_mask": "pattern",
    "register": "transformers",
    "sparsify": "module",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'quorate.attention' has no attribute {name!r}")
    return getattr(importlib.import_module(f"quorate.attention.{_PLACES[name]}"), name)
