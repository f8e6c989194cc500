"""`--scale 1,2,4,8` and `--shrink prune:amount=0.9`: arms with several numbers of workers, or with smaller models.

Numbers of workers past the machine are simulated from the runs of others.
"""

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
from quorate.compare.plan import Arm, Comparison
from quorate.core.errors import ConfigurationError, unknown
from quorate.core.telling import tell
from quorate.launch.run.folder import SIMULATED
from quorate.report.wording import listed
from quorate.shrink.choices import NONE, choices_from
from quorate.train.combination import Combination
from quorate.train.compatibility import check

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


def shrunk(base: Comparison, texts: Sequence[str]) -> Comparison:
    """Return `base` with each of its arms for each of the `texts`; of baselines such as ddp, the full model only.

    The baseline is that of `base`, or its only arm, with the first text. Raises `ConfigurationError` for texts that are
    wrong, that need what the plan lacks, or that a strategy cannot be combined with.
    """
    choices = [choice for text in texts for choice in choices_from(text)]
    if base.subject.kind == "script":
        share = next((text for text in texts for choice in choices_from(text) if choice.is_share), None)
        if share is not None and not _reaches(base):
            raise ConfigurationError(
                f'--shrink "{share}" is made at a share of the training, which a script has to say; give a step, such '
                "as at=200, or call quorate.shrink.chosen(optimizer).reached(share) in the script"
            )
    elif base.equal != "examples" and choices:
        raise ConfigurationError("--shrink is for equal work; leave out --seconds and --stop-at-target")
    elif any(not choice.is_share for choice in choices) and base.share == "dynamic":
        raise ConfigurationError("--shrink at a step needs workers with equally many; leave out --data-share dynamic")
    arms = [arm for each in base.arms for arm in _arms(each, texts, is_only=len(base.arms) == 1)]
    return replace(base, arms=tuple(arms))


def _arms(arm: Arm, texts: Sequence[str], *, is_only: bool) -> list[Arm]:
    if arm.strategy in registry("baselines"):
        return [arm.shrunk(NONE, is_baseline=arm.is_baseline)]
    is_baseline = arm.is_baseline or (is_only and len(texts) > 1)
    arms = [arm.shrunk(text, is_baseline=is_baseline and place == 0) for place, text in enumerate(texts)]
    _check(arm, texts)
    return arms


def _check(arm: Arm, texts: Sequence[str]) -> None:
    """Raise `ConfigurationError` where the strategy of an arm does not go with a text."""
    calls = {choice.call for text in texts for choice in choices_from(text)}
    if not calls or arm.strategy is None:
        return
    kind = registry("strategies").get(arm.strategy)
    for call in sorted(calls):
        combination = Combination(
            label=arm.strategy, strategy=kind, prunes=call == "prune", shrinks=f"quorate.shrink.{call}"
        )
        check(combination, "pruning", "shrink")


def _reaches(base: Comparison) -> bool:
    """Whether the script seems to say what share of the training is done."""
    try:
        with open(base.subject.name, encoding="utf-8") as script:
            return ".reached(" in script.read()
    except (OSError, UnicodeDecodeError):
        return False
