"""`Scaling`: one strategy with several numbers of workers; a comparison for each number, in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from quorate.compare.plan import Comparison, read_plan
from quorate.core.errors import ConfigurationError
from quorate.launch.run.folder import SCALING, SCALING_FORMAT, write_run

Regime = Literal["weak", "strong"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of workers under one regime."""

    regime: Regime
    plan: Comparison
    folder: str
    """Its folder, in the folder of all: `weak-4`. With the fewest workers both regimes have the same runs."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The comparisons to run, and the numbers of workers to simulate, in order of workers."""

    cells: Sequence[Cell]
    simulated: Sequence[int] = ()
    price: float | None = None
    """Price of a worker for an hour."""
    epochs: float | None = None
    """Passes over the data in each run; None where it is unknown."""

    @property
    def workers(self) -> tuple[int, ...]:
        """All numbers of workers."""
        return tuple(sorted({*(cell.plan.workers for cell in self.cells), *self.simulated}))

    @property
    def base(self) -> Comparison:
        """The comparison with the fewest workers."""
        return self.cells[0].plan

    def most(self) -> Cell:
        """Return the cell with the most workers in the weak regime."""
        return max((cell for cell in self.cells if cell.regime == "weak"), key=lambda cell: cell.plan.workers)

    def as_json(self, title: str) -> dict[str, Any]:
        """Return the content of `scaling.json`, but for the command and the machine."""
        rows = [{"regime": cell.regime, "workers": cell.plan.workers, "folder": cell.folder} for cell in self.cells]
        return {
            "format": SCALING_FORMAT,
            "title": title,
            "rows": rows,
            "to_simulate": list(self.simulated),
            "price": self.price,
            "epochs": self.epochs,
        }

    def write(self, folder: Path, title: str, command: Sequence[str]) -> None:
        """Begin the folder of all, and those of the comparisons."""
        subject = self.base.subject
        script = Path(subject.name) if subject.kind == "script" else None
        write_run(folder, script, {"command": list(command), **self.as_json(title)})
        (folder / "run.json").replace(folder / SCALING)
        for cell in self.cells:
            cell.plan.write(folder / cell.folder, command)


def strong(base: Comparison, workers: int, batch: int) -> Comparison:
    """Return `base` with `workers` that share the batch of a step. Raises `ConfigurationError` where they cannot."""
    if batch % workers:
        raise ConfigurationError(
            f"{workers} workers cannot share a batch of {batch} examples evenly; give a --batch that each number of "
            "workers divides, or --scaling weak"
        )
    return replace(base, workers=workers, batch=batch // workers)


def read_scaling_plan(folder: Path) -> Scaling:
    """Read the plan in `folder`. Raises `ConfigurationError` where it is damaged."""
    about = told_in(folder)
    try:
        cells = [
            Cell(regime=row["regime"], plan=read_plan(folder / row["folder"]), folder=row["folder"])
            for row in about["rows"]
        ]
        simulated = [int(count) for count in about["to_simulate"]]
        return Scaling(cells=cells, simulated=simulated, price=about["price"], epochs=about["epochs"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{folder / SCALING} is damaged: {error}") from None


def told_in(folder: Path) -> dict[str, Any]:
    """Return the content of `scaling.json`. Raises `ConfigurationError` where it cannot be read."""
    path = folder / SCALING
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    if not isinstance(about, dict) or about.get("format") != SCALING_FORMAT:
        raise ConfigurationError(f"{path} is not of the format {SCALING_FORMAT}, which this version of quorate reads")
    return about


def keep(folder: Path, more: Mapping[str, Any]) -> None:
    """Write `more` into `scaling.json`, either completely or not at all."""
    new = folder / f"{SCALING}.new"
    new.write_text(json.dumps({**told_in(folder), **more}, indent=2) + "\n", encoding="utf-8")
    new.replace(folder / SCALING)


def cells_of(base: Comparison, workers: Sequence[int], regimes: Sequence[Regime], batch: int | None) -> Iterator[Cell]:
    """Yield the cells to run; `batch`, for the strong regime, is that of a worker among the fewest workers."""
    for regime in regimes:
        for count in workers:
            if regime == "weak" or (count == workers[0] and "weak" in regimes):
                yield Cell(regime=regime, plan=replace(base, workers=count), folder=f"weak-{count}")
            else:
                assert batch is not None
                yield Cell(regime=regime, plan=strong(base, count, batch * workers[0]), folder=f"strong-{count}")
