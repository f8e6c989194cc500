"""What `quorate simulate` was asked for, as written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command line, as written."""

    strategies: Sequence[str]
    workers: str | None
    steps: int | None
    compute: str | None
    pace: str | None
    imbalances: Sequence[str]
    networks: Sequence[str]
    parameters: str | None
    batch: int | None
    seed: int | None
    like: Sequence[str]
    is_checked: bool
    real: str | None
    epochs: float | None
    workload_settings: Sequence[str]
