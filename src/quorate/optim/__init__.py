"""Optimizers for large batches, as ordinary classes of torch; each is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.optim.ada_scale import AdaScale as AdaScale
    from quorate.optim.lamb import LAMB as LAMB
    from quorate.optim.lars import LARS as LARS

__all__ = ["LAMB", "LARS", "AdaScale"]

_PLACES = {
    "AdaScale": "quorate.optim.ada_scale",
    "LAMB": "quorate.optim.lamb",
    "LARS": "quorate.optim.lars",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'quorate.optim' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
