"""The names of attention patterns."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from quorate.core.registry import Registry

patterns: Registry[Any] = Registry(
    "attention pattern",
    {
        "bigbird": "quorate.attention.patterns:BigBird",
        "dense": "quorate.attention.patterns:Dense",
        "fixed": "quorate.attention.patterns:Fixed",
        "longformer": "quorate.attention.patterns:Longformer",
        "strided": "quorate.attention.patterns:Strided",
        "variable": "quorate.attention.patterns:Variable",
        "window": "quorate.attention.patterns:Window",
    },
)

RANK_OF_HEADS: ContextVar[int] = ContextVar("rank_of_heads", default=0)
"""The number of this worker among the workers that have equally many heads each of the attention that is computed."""
