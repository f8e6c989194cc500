"""`--scale 1,2,4,8`: arms with several numbers of workers; those past the machine are simulated from their runs."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from quorate.cli.choices import MOST_VIRTUAL
from quorate.cli.listing import registry
from quorate.compare.grid import final_cells, outcome_of
from quorate.compare.plan import Comparison
from quorate.core.errors import ConfigurationError, unknown
from quorate.core.telling import tell
from quorate.launch.run.folder import SIMULATED
from quorate.report.wording import listed

REGIMES = {"weak": ("weak",), "strong": ("strong",), "both": ("weak", "strong")}
"""The constant as workers are added, by the value of `--scaling`: the batch of each worker, the batch of all."""


def numbers_of_workers(text: str) -> tuple[int, ...]:
    """Return the numbers in `1,2,4,8`, ascending. Raises `ConfigurationError` for fewer than two, and out of range."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(re.fullmatch("[0-9]{1,9}", part) and 1 <= int(part) <= MOST_VIRTUAL for part in parts):
        raise ConfigurationError(f'--scale "{text}": give several numbers from 1 to {MOST_VIRTUAL:,}, such as 1,2,4,8')
    numbers = tuple(sorted({int(part) for part in parts}))
    if len(numbers) < 2:
        raise ConfigurationError(f'--scale "{text}": give several numbers, such as 1,2,4,8; a single one is -n 4')
    return numbers


def scaled(base: Comparison, numbers: Sequence[int], most: int | None, scaling: str) -> Comparison:
    """Return `base` with each of its arms for each of the `numbers` of workers, and those beyond `most` to simulate.

    The baseline is that of `base`, or its only arm, with the fewest workers. Raises `ConfigurationError` for numbers
    that cannot be run, divide the batch, or be simulated.
    """
    if scaling not in REGIMES:
        raise unknown("scaling", scaling, REGIMES)
    run = [number for number in numbers if most is None or number <= most]
    if not run:
        raise ConfigurationError(f"none of {listed([str(number) for number in numbers])} workers is at most {most}")
    simulated = tuple(number for number in numbers if number not in run)
    if simulated:
        _check_simulated(base, simulated, run, scaling)
    batches = list(_batches(base, run, scaling))
    arms = tuple(
        arm.scaled(
            workers,
            batch=batch,
            is_baseline=(arm.is_baseline or len(base.arms) == 1) and (workers, batch) == (run[0], None),
        )
        for arm in base.arms
        for workers, batch in batches
    )
    return replace(base, arms=arms, workers=run[-1], simulated=simulated)


def _batches(base: Comparison, numbers: Sequence[int], scaling: str) -> Iterator[tuple[int, int | None]]:
    """Yield numbers of workers, each with the examples per worker; None is the usual number."""
    if scaling == "strong":
        yield numbers[0], None
    else:
        yield from ((workers, None) for workers in numbers)
    if scaling == "weak":
        return
    if base.subject.kind == "script":
        raise ConfigurationError("--scaling strong cuts the batch of a workload; a script has a batch of its own")
    source = registry("workloads").source(base.subject.name)
    usual: int = 0 if source is None else ast.literal_eval(dict(source.facts)["batch_size"])
    total = (base.batch or usual) * numbers[0]
    for workers in numbers[1:]:
        if total % workers:
            raise ConfigurationError(
                f"{workers} workers cannot share a batch of {total} examples evenly; give a --batch that each number "
                "of workers divides, or --scaling weak"
            )
        yield workers, total // workers


def _check_simulated(base: Comparison, simulated: Sequence[int], run: Sequence[int], scaling: str) -> None:
    from quorate.simulation.models import known, times_of

    beyond = f"{listed([str(number) for number in simulated])} workers are more than are run here"
    if run[-1] < 2 or scaling == "strong":
        raise ConfigurationError(
            f"{beyond}, and simulating them needs a run with at least 2 workers, each with its own batch; leave them "
            "out, or give a larger -n"
        )
    for arm in base.arms:
        if arm.strategy not in known():
            raise ConfigurationError(
                f"{beyond}, and recorded times are not enough to simulate {arm.strategy}; leave them out, give a "
                f"larger -n, or take strategies among {listed(list(known()))}"
            )
        times_of(arm.strategy, arm.settings)


def simulate(plan: Comparison, folder: Path) -> None:
    """Simulate the numbers of workers that were not run, from the first run of the most workers of each strategy."""
    from quorate.report.summary import write_files
    from quorate.simulation.grid import more_workers

    beyond = f"{listed([str(number) for number in plan.simulated])} workers"
    names = ("steps_per_second", "waiting_share", "communication_share")
    for cell in final_cells(plan):
        place, is_most = folder / cell.folder, cell.arm.workers == plan.workers and cell.arm.batch is None
        if not is_most or cell.seed != plan.seeds[0] or outcome_of(place) != 0:
            continue
        tell(f"quorate: simulating {beyond}, like {cell.in_words}\n")
        try:
            rows, why = more_workers(str(place), plan.simulated), None
        except ConfigurationError as error:
            rows, why = [], f"{beyond} could not be simulated: {error}"
        simulated = [{"workers": row.workers} | {name: getattr(row.figures, name) for name in names} for row in rows]
        write_files(place, {SIMULATED: json.dumps({"simulated": simulated, "why": why}, indent=2) + "\n"})
