"""Claims of publications, the figures that are held against them, and the rules that turn both into verdicts.

A script of this folder lists trials. Each has a claim, a figure with bounds that were declared before it was measured,
and a function that measures it for every seed. The result is a JSON file in `results/`; `table.py` makes the page.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(path) for path in (HERE, HERE.parent, ROOT) if str(path) not in sys.path]

import record  # noqa: E402

RESULTS = HERE / "results"
HOLDS, PARTLY, FAILS, UNTRIED = "holds", "holds partly", "does not hold", "cannot be tried here"
World = Literal["simulated", "computed", "real processes", "real processes, losses only"]
"""Simulated: training in virtual workers, with simulated network and compute times. Computed: no training at all."""
SEEDS, TUNING_SEED = (1, 2, 3), 9
"""The seeds that count, and the one with which settings are chosen."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What was published."""

    claim: str
    source: str
    published: str
    """The published figure."""
    on_what: str
    """Model, data and machine of the publication."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The rule of a verdict: the smallest and greatest figure that confirm a claim, and that confirm part of it."""

    holds: tuple[float, float]
    partly: tuple[float, float]

    def verdict(self, low: float, high: float) -> str:
        """Return the verdict on an interval: it must be within the bounds as a whole."""
        for bounds, word in ((self.holds, HOLDS), (self.partly, PARTLY)):
            if bounds[0] <= low and high <= bounds[1]:
                return word
        return FAILS


def at_least(holds: float, partly: float) -> Bounds:
    """Return the rule of a claim that its figure is large."""
    return Bounds(holds=(holds, math.inf), partly=(partly, math.inf))


def at_most(holds: float, partly: float) -> Bounds:
    """Return the rule of a claim that its figure is small."""
    return Bounds(holds=(-math.inf, holds), partly=(-math.inf, partly))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A claim, and how it is tried."""

    name: str
    claim: Claim
    figure: str
    """The quantity that is measured here."""
    differs: str
    """How the trial differs from the publication."""
    world: World
    bounds: Bounds
    measure: Callable[[bool], Sequence[float]]
    """The figure for each seed; the argument is whether the run is a quick one."""
    note: str = ""
    """What the figure alone does not show."""

    @property
    def words(self) -> dict[str, Any]:
        """Return everything but the measured figure, for JSON."""
        rule = {name: [_finite(number) for number in pair] for name, pair in asdict(self.bounds).items()}
        words = {"figure": self.figure, "differs": self.differs, "world": self.world, "bounds": rule, "note": self.note}
        return {"name": self.name, **asdict(self.claim), **words}


def _finite(number: float) -> float | None:
    """Return a bound for JSON, which has no infinity: None."""
    return number if math.isfinite(number) else None


def row_of(trial: Trial, values: Sequence[float]) -> dict[str, Any]:
    """Return the row of a trial: its words, the values of all seeds, their median with its interval, the verdict."""
    figure = record.figure(trial.name, values)
    verdict = trial.bounds.verdict(figure.low, figure.high)
    measured = {"values": list(values), "median": figure.median, "low": figure.low, "high": figure.high}
    return {**trial.words, **measured, "verdict": verdict}


def stored(script: str) -> dict[str, dict[str, Any]]:
    """Return the rows that a script has written, by name."""
    path = RESULTS / f"{script}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    return {row["name"]: row for row in rows}


def write(script: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows of a script."""
    text = json.dumps({"script": script, "rows": list(rows)}, indent=1, ensure_ascii=False)
    (RESULTS / f"{script}.json").write_text(text + "\n", encoding="utf-8")


def main(file: str, description: str | None, trials: Sequence[Trial]) -> int:
    """Measure trials on the command line, print their figures and verdicts, and write the results of a full run."""
    names = [trial.name for trial in trials]
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed and shorter runs; results are not written")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="TRIAL", help=", ".join(names))
    parser.add_argument("--reword", action="store_true", help="measure nothing; write words and verdicts of old values")
    options = parser.parse_args()
    script = Path(file).stem
    rows = stored(script)
    for trial in trials:
        if options.reword:
            values = rows[trial.name]["values"] if trial.name in rows else []
        elif trial.name in options.only:
            values = list(trial.measure(options.quick))
        else:
            continue
        if values:
            row = rows[trial.name] = row_of(trial, values)
            print(
                f"{trial.name}: {row['median']:.4g} ({row['low']:.4g} to {row['high']:.4g}), {row['verdict']}",
                flush=True,
            )
            if not options.quick:
                write(script, [rows[name] for name in names if name in rows])
    return 0


def quietly(function: Callable[[], Any]) -> Any:
    """Call a training without its warnings, with one torch thread."""
    import contextlib
    import io
    import logging

    import torch

    torch.set_num_threads(1)
    logging.disable()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return function()
    finally:
        logging.disable(logging.NOTSET)


def seeds(is_quick: bool) -> Sequence[int]:
    """Return the seeds of a run that count."""
    return SEEDS[:1] if is_quick else SEEDS
