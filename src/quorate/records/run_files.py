"""What is read of the files beside the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """What is read of `run.json`, and of `compare.json` where it is the same; both say more. All may be missing."""

    workers: int
    hosts: str
    """`a:2,b:2`, where they are on several."""
    strategy: str
    settings: Mapping[str, Any]
    seed: int
    learning_rate_factor: float
    script: str
    arguments: Sequence[Any]
    command: Sequence[Any]
    versions: Mapping[str, str | None]
    git: Mapping[str, str | bool | None]
    """The "commit", and whether it is "dirty"."""
    metric: Mapping[str, str | bool]
    cores: int
    seconds: float
    target: float
    equal: str
    warm_up_steps: int
    subject: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class OutcomeFile:
    """What is read of `outcome.json`."""

    status: int
    """Below 0: minus the number of a signal."""
    seconds: float
    why: str
