"""Models that become smaller while many workers train them; each name is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.shrink.hardening import harden as harden
    from quorate.shrink.pruning import Cubic as Cubic
    from quorate.shrink.pruning import Pruning as Pruning
    from quorate.shrink.pruning import prune as prune
    from quorate.shrink.tickets import lottery as lottery

__all__ = ["Cubic", "Pruning", "harden", "lottery", "prune"]

_PLACES = {
    "Cubic": "quorate.shrink.pruning",
    "Pruning": "quorate.shrink.pruning",
    "harden": "quorate.shrink.hardening",
    "lottery": "quorate.shrink.tickets",
    "prune": "quorate.shrink.pruning",
}
"""The module of each public name, one a line, in alphabetical order."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'quorate.shrink' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
