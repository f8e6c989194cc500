"""How every benchmark here reports: figures with an interval, bars that hold or not, one JSON object at the end."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Figure:
    """One measured figure: the median of `n` values, and the 95% interval of that median (bootstrap, seeded)."""

    name: str
    median: float
    low: float
    high: float
    n: int


def figure(name: str, values: Sequence[float]) -> Figure:
    """The median of `values` with its 95% bootstrap interval."""
    data = np.asarray(values, dtype=float)
    draws = np.random.default_rng(0).choice(data, (10_000, len(data)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return Figure(name, float(np.median(data)), float(low), float(high), len(data))


def median_of(values: Sequence[float] | None) -> float | None:
    """The median; None where nothing was measured."""
    return float(np.median(values)) if values else None


@dataclass
class Report:
    """What one benchmark measured; `show` prints it, the JSON object last."""

    benchmark: str
    settings: dict[str, Any]
    rows: list[Figure] = field(default_factory=list)
    bars: list[dict[str, Any]] = field(default_factory=list)

    def bar(
        self, name: str, measured: float | None, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """A promise held against a figure; `measured` is None where it was not measured."""
        limit = {"at_least": at_least} if at_least is not None else {"at_most": at_most}
        holds = None
        if measured is not None:
            holds = (at_least is None or measured >= at_least) and (at_most is None or measured <= at_most)
        self.bars.append({"name": name, "measured": measured, **limit, "holds": holds})

    def show(self, arguments: argparse.Namespace) -> int:
        """Print figures, bars and the JSON object; returns the exit status (1 only under --strict)."""
        for row in self.rows:
            print(f"{row.name:58s} {row.median:10.4f}  [{row.low:.4f}, {row.high:.4f}]  n={row.n}")
        for bar in self.bars:
            word = {True: "holds", False: "FALLS SHORT", None: "not measured"}[bar["holds"]]
            limit = f">= {bar['at_least']}" if "at_least" in bar else f"<= {bar['at_most']}"
            measured = "-" if bar["measured"] is None else f"{bar['measured']:.4f}"
            print(f"bar: {bar['name']}: {measured} ({limit}) {word}")
        result = {
            "benchmark": self.benchmark,
            "machine": machine(),
            "settings": self.settings,
            "rows": [asdict(row) for row in self.rows],
            "bars": self.bars,
        }
        text = json.dumps(result)
        if arguments.json is not None:
            arguments.json.write_text(text + "\n")
        print(text)
        return int(arguments.strict and any(bar["holds"] is False for bar in self.bars))


def machine() -> dict[str, Any]:
    """Where this was measured."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or None,
    }


def arguments(description: str) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer repeats; ends within 50 s on 2 cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the result in FILE")
    parser.add_argument("--strict", action="store_true", help="exit status 1 if a bar falls short")
    return parser
