"""What a command line asks for, checked, and how it is told to people and to `run.json`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorate.cli.values import Value


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be started; all of it has been checked."""

    script: str
    arguments: list[str]
    is_module: bool
    workers: int
    is_virtual: bool
    strategy: str | None
    settings: dict[str, Value]
    folder: Path
    seed: int | None = None
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
        settings = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        strategy = self.strategy or "the script's own"
        threads = "" if self.is_virtual else f", OMP_NUM_THREADS={self.omp_threads}"
        return (
            f"{self.workers} {kind}{'s' if self.workers > 1 else ''} of {self.script}, strategy: {strategy}"
            f"{f' ({settings})' if settings else ''}{threads}; records in {self.folder}"
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """What `run.json` keeps of it."""
        virtual = {
            "seed": self.seed,
            "compute": self.compute,
            "latency": self.latency,
            "bandwidth": self.bandwidth,
        }
        return {
            "script": self.script,
            "arguments": self.arguments,
            "is_module": self.is_module,
            "workers": self.workers,
            "world": "virtual" if self.is_virtual else "real",
            "strategy": self.strategy,
            "settings": self.settings,
            "records": str(self.folder),
            **(virtual if self.is_virtual else {"seed": None, "omp_threads": self.omp_threads}),
        }
