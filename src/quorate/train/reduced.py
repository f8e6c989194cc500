"""A strategy and how its means are formed, out of one set of settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.core.settings import settings_for
from quorate.core.strategy import Strategy
from quorate.reducers.reduction import NAMES, Reduction, reduction_of


def with_reduction(
    kind: type[Strategy], raw: Mapping[str, object], label: str, given: Strategy | None = None
) -> tuple[Strategy, Reduction]:
    """The strategy of that kind (or as `given`) with those of the settings that it has, and what the others say.

    Raises `ConfigurationError` for settings that nobody has, and where the strategy's means cannot be compressed.
    """
    own = {field.name for field in dataclasses.fields(kind)}
    others = {name: value for name, value in raw.items() if name not in own}
    if not others.keys() & set(NAMES):
        own, others = set(raw), {}  # one that is not known is refused with the strategy's settings in the sentence
    mine = settings_for(kind, {name: value for name, value in raw.items() if name in own})
    reduction = reduction_of(others)
    if reduction.codec is not None and not kind.compresses:
        raise ConfigurationError(
            f'compress="{reduction.settings.compress}" does not go with {label}: what is compressed are gradients that '
            "all workers average in every step; use all-reduce"
        )
    made: Any = kind(**mine) if given is None else dataclasses.replace(given, **mine)
    return made, reduction
