"""The runs of a comparison: their order, their folders and their outcomes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate.compare.plan import Arm, Comparison, Metric
from quorate.launch.warm.request import RunRequest
from quorate.records.records import records_of, rows

SCRIPT = Path(__file__).with_name("train_workload.py")
"""The script that trains every workload."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of the grid."""

    arm: Arm
    seed: int
    factor: float | None
    """Factor of the script's learning rate."""
    is_tuning: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the run, relative to the comparison's."""
        if self.is_tuning:
            return Path(self.arm.name, "tuning", f"lr-{self.factor:g}-seed-{self.seed}")
        return Path(self.arm.name, f"seed-{self.seed}")

    @property
    def in_words(self) -> str:
        """The name of the run in the display of progress."""
        if self.is_tuning:
            return f"{self.arm.name}, learning rate x{self.factor:g}"
        return f"{self.arm.name}, seed {self.seed}"


def tuning_cells(plan: Comparison) -> list[Cell]:
    """Return the runs of the search for learning rates: every factor with every arm, one seed."""
    return [
        Cell(arm=arm, seed=plan.tuning_seed, factor=factor, is_tuning=True)
        for number, factor in enumerate(plan.learning_rates or ())
        for arm in _from(plan.arms, number)
    ]


def final_cells(plan: Comparison) -> list[Cell]:
    """Return the runs of every arm with every seed, seed by seed, so that changes of the machine affect all arms alike.

    The order of the arms rotates from seed to seed: none is always first.
    """
    return [
        Cell(arm=arm, seed=seed, factor=plan.chosen_learning_rates.get(arm.name))
        for number, seed in enumerate(plan.seeds)
        for arm in _from(plan.arms, number)
    ]


def outcome_of(folder: Path) -> int | None:
    """Return the exit status of the run in `folder`; None where it has not ended."""
    try:
        status = json.loads((folder / "outcome.json").read_text(encoding="utf-8")).get("status")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return status if isinstance(status, int) else None


def set_aside(folder: Path) -> Path | None:
    """Rename the folder of a run that has not ended to `….interrupted-1` (2, 3, …); None where there is no folder."""
    if not folder.exists():
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.name}.interrupted-{number}")).exists():
        number += 1
    return folder.rename(aside)


def script_of(plan: Comparison) -> str:
    """Return the path of the script that every worker executes."""
    return str(SCRIPT) if plan.subject.kind == "workload" else plan.subject.name


def request_of(plan: Comparison, cell: Cell, folder: Path) -> RunRequest:
    """Return the request for the run `cell` in `folder`."""
    return RunRequest(
        script=script_of(plan),
        arguments=list(_arguments(plan, cell.arm)),
        overrides=plan.overrides(
            strategy=cell.arm.strategy,
            settings=dict(cell.arm.settings),
            seed=cell.seed,
            learning_rate_factor=cell.factor,
            shrink=cell.arm.shrink,
        ),
        size=cell.arm.workers or plan.workers,
        folder=folder,
        virtual=plan.virtual(cell.seed),
        hosts=plan.reached,
    )


def best_factor(plan: Comparison, arm: Arm, folder: Path) -> float | None:
    """Return the factor with the best quality of `arm`; among equals the one nearest to 1; None if all failed."""
    assert plan.metric is not None
    trials = []
    for cell in tuning_cells(plan):
        if cell.arm.name == arm.name and cell.factor is not None and outcome_of(folder / cell.folder) == 0:
            quality = final_quality(folder / cell.folder, plan.metric)
            if quality is not None:
                loss = -quality if plan.metric.higher_is_better else quality
                trials.append((loss, abs(math.log(cell.factor)), cell.factor))
    return min(trials)[2] if trials else None


def final_quality(folder: Path, metric: Metric) -> float | None:
    """Return the quality at the last evaluation of a run; None where there was none, or the training diverged (NaN)."""
    logged = [row.get("values") for row in rows(records_of(folder, 0)) if row["kind"] == "log"]
    values = [values[metric.name] for values in logged if isinstance(values, dict) and metric.name in values]
    last = values[-1] if values else None
    return float(last) if isinstance(last, int | float) and math.isfinite(last) else None


def steps_of(folder: Path) -> int:
    """Return the number of steps of rank 0."""
    return sum(row["kind"] == "step" for row in rows(records_of(folder, 0)))


def _from(arms: Sequence[Arm], number: int) -> Sequence[Arm]:
    first = number % len(arms)
    return [*arms[first:], *arms[:first]]


def _arguments(plan: Comparison, arm: Arm) -> Iterator[str]:
    if plan.subject.kind == "script":
        yield from plan.subject.arguments
        return
    yield plan.subject.name
    yield from ("--settings", json.dumps(dict(plan.subject.settings)))
    if plan.equal == "seconds":
        yield "--endless"
    until = plan.target if plan.equal == "target" else None
    options: dict[str, float | int | None] = {
        "--epochs": plan.epochs,
        "--evaluations": plan.evaluations,
        "--batch": arm.batch or plan.batch,
        "--target": until,
    }
    for option, value in options.items():
        if value is not None:
            yield from (option, f"{value:g}" if isinstance(value, float) else str(value))
