"""The parts of `run.json`, `compare.json` and `outcome.json` that readers use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """The entries of `run.json`, and the same ones of `compare.json`, that readers use. Each may be missing."""

    workers: int
    hosts: str
    """Hosts and their numbers of workers, as in `a:2,b:2`, where there are several hosts."""
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
    relevant: float
    equal: str
    warm_up_steps: int
    subject: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class OutcomeFile:
    """The entries of `outcome.json` that readers use."""

    status: int
    """The exit status; below 0 minus the number of a signal."""
    seconds: float
    why: str
