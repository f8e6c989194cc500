"""Weights & Biases: numbers as the history of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_STEP = "step"
"""The axis of our curves: a run that is shared with the script counts steps of its own."""


class WandbRun:
    """A run of Weights & Biases: the one that the script has begun, or a new one of the project `WANDB_PROJECT`.

    The script's own run is left open for it. `WANDB_MODE=offline` writes into the run's folder alone, and needs no
    account.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        import wandb

        self._is_ours = wandb.run is None
        self._run: Any = wandb.run or wandb.init(name=folder.name, dir=str(folder), config=dict(about))
        self._run.define_metric(_STEP)
        self._named: set[str] = set()

    def add(self, name: str, value: float, step: int) -> None:
        if name not in self._named:
            self._named.add(name)
            self._run.define_metric(name, step_metric=_STEP)
        self._run.log({name: value, _STEP: step})

    def close(self, *, is_well: bool) -> None:
        if self._is_ours:
            self._run.finish(exit_code=0 if is_well else 1)
