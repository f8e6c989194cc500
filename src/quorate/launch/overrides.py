"""How `quorate run --strategy --set` reaches `quorate.join()`: through the environment of the workers."""

from __future__ import annotations

import json
from collections.abc import Mapping

STRATEGY = "QUORATE_STRATEGY"
SETTINGS = "QUORATE_SETTINGS"


def override(strategy: str | None, settings: Mapping[str, object]) -> dict[str, str]:
    """The variables that say so; none where nothing is overridden."""
    told = {}
    if strategy is not None:
        told[STRATEGY] = strategy
    if settings:
        told[SETTINGS] = json.dumps(dict(settings))
    return told
