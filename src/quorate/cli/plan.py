"""What a command line asks for, checked, and how it is told to people and to `run.json`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorate.launch.local.newcomers import Room
from quorate.launch.run.overrides import Overrides


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be started; all of it has been checked."""

    script: str
    arguments: list[str]
    is_module: bool
    workers: int
    is_virtual: bool
    overrides: Overrides
    folder: Path
    room: Room = field(default_factory=Room)
    """For workers that come later."""
    compute: str | None = None
    latency: float | None = None
    """Seconds."""
    bandwidth: float | None = None
    """Bytes per second."""
    omp_threads: str = field(default_factory=lambda: os.environ.get("OMP_NUM_THREADS", "1"))

    @property
    def in_words(self) -> str:
        """The line that says what was chosen."""
        kind = "virtual worker" if self.is_virtual else "worker"
        chosen = self.overrides
        settings = ", ".join(f"{key}={value}" for key, value in chosen.settings.items())
        strategy = chosen.strategy or "the script's own"
        beside = {"imbalance": chosen.imbalance, "pace": chosen.pace, "share": chosen.share, "seed": chosen.seed}
        told = "".join(f", {name}: {value}" for name, value in beside.items() if value is not None)
        if self.room.all:
            told += f", room for {self.room.all} more"
        threads = "" if self.is_virtual else f", OMP_NUM_THREADS={self.omp_threads}"
        return (
            f"{self.workers} {kind}{'s' if self.workers > 1 else ''} of {self.script}, strategy: {strategy}"
            f"{f' ({settings})' if settings else ''}{told}{threads}; records in {self.folder}"
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """What `run.json` keeps of it."""
        virtual = {"compute": self.compute, "latency": self.latency, "bandwidth": self.bandwidth}
        return {
            "script": self.script,
            "arguments": self.arguments,
            "is_module": self.is_module,
            "workers": self.workers,
            "world": "virtual" if self.is_virtual else "real",
            **self.overrides.as_json(),
            "records": str(self.folder),
            "restart": self.room.restarts,
            "room": self.room.more,
            **(virtual if self.is_virtual else {"omp_threads": self.omp_threads}),
        }
