"""`quorate compare --workers 1,2,4,8`: one strategy with several numbers of workers, run here or simulated."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from quorate.cli.choices import MOST_PROCESSES, MOST_VIRTUAL
from quorate.cli.listing import registry
from quorate.cli.options import flags_given
from quorate.compare.plan import Comparison
from quorate.compare.scaling import Regime, Scaling, cells_of, keep
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.telling import tell
from quorate.launch.run.folder import held
from quorate.launch.run.requests import status_after
from quorate.report.wording import counted, listed

REGIMES: dict[str, tuple[Regime, ...]] = {"weak": ("weak",), "strong": ("strong",), "both": ("weak", "strong")}
_NOT_HERE = ("workers", "virtual", "hosts", "ssh", "env", "silence", "baseline", "seconds")
_ONLY_HERE = ("scaling", "most", "price")


def numbers_of_workers(text: str) -> tuple[int, ...]:
    """Return the numbers in `1,2,4,8`, ascending. Raises `ConfigurationError` for fewer than two, and out of range."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(re.fullmatch("[0-9]{1,9}", part) and 1 <= int(part) <= MOST_VIRTUAL for part in parts):
        raise ConfigurationError(
            f'--workers "{text}": give several numbers from 1 to {MOST_VIRTUAL:,}, such as 1,2,4,8'
        )
    counts = tuple(sorted({int(part) for part in parts}))
    if len(counts) < 2:
        raise ConfigurationError(f'--workers "{text}": give several numbers, such as 1,2,4,8; a single one is -n 4')
    return counts


def check_beside(options: Any) -> None:
    """Raise `ConfigurationError` for options that require several numbers of workers, or exclude them."""
    if options.numbers is None:
        alone = flags_given(options, *_ONLY_HERE)
        if alone:
            raise ConfigurationError(f"{listed(alone)} can be given with several numbers of workers: --workers 1,2,4,8")
        return
    others = flags_given(options, *_NOT_HERE)
    if others:
        raise ConfigurationError(
            f"--workers compares numbers of workers on this machine; it cannot be combined with {listed(others)}"
        )
    if len(options.strategies) > 1:
        raise ConfigurationError("--workers compares numbers of workers under one strategy; give one --strategy")
    if options.scaling is not None and options.scaling not in REGIMES:
        raise ConfigurationError(f'--scaling "{options.scaling}" is unknown; known: {listed(list(REGIMES))}')
    if options.price is not None and not 0 < options.price < float("inf"):
        raise ConfigurationError(f"--price {options.price:g}: the price of one worker for one hour must be above 0")
    if options.most is not None and not 1 <= options.most <= MOST_PROCESSES:
        raise ConfigurationError(f"--most {options.most}: one machine can run 1 to {MOST_PROCESSES} workers")


def planned(options: Any, base: Callable[[Any], Comparison]) -> Scaling:
    """Return the plan; `base` plans one number of workers. Raises `ConfigurationError` for the first fault."""
    numbers: Sequence[int] = options.numbers
    most = options.most or max(2, len(os.sched_getaffinity(0)))
    run = [count for count in numbers if count <= most]
    if not run:
        raise ConfigurationError(
            f"none of {listed([str(count) for count in numbers])} workers can be run: --most {most}"
        )
    plan = base(replace(options, numbers=None, scaling=None, price=None, most=None, workers=run[0]))
    regimes = REGIMES[options.scaling or "weak"]
    is_script = plan.subject.kind == "script"
    if "strong" in regimes and is_script:
        raise ConfigurationError("--scaling strong cuts the batch of a workload; a script has a batch of its own")
    simulated = [count for count in numbers if count > most]
    if simulated:
        _check_simulated(plan, simulated, run, regimes)
    batch = None if is_script else plan.batch or _fact(plan, "batch_size")
    epochs = None if is_script else plan.epochs or _fact(plan, "epochs")
    cells = tuple(cells_of(plan, run, regimes, batch))
    return Scaling(
        cells=cells, simulated=simulated, price=options.price, epochs=epochs if plan.equal == "examples" else None
    )


def _fact(plan: Comparison, name: str) -> int | None:
    source = registry("workloads").source(plan.subject.name)
    text = None if source is None else dict(source.facts).get(name)
    return None if text is None else int(ast.literal_eval(text))


def _check_simulated(plan: Comparison, simulated: Sequence[int], run: Sequence[int], regimes: Sequence[str]) -> None:
    from quorate.simulation.models import known, times_of

    which = listed([str(count) for count in simulated])
    arm = plan.arms[0]
    if run[-1] < 2 or "weak" not in regimes:
        raise ConfigurationError(
            f"{which} workers are more than can be run here, and simulating them needs a run with at least 2 workers, "
            "each with its own batch; leave them out, or give --most"
        )
    if arm.strategy not in known():
        raise ConfigurationError(
            f"{which} workers are more than can be run here, and recorded times are not enough to simulate "
            f"{arm.strategy}; leave them out, "
            f"say --most, or take one of {listed(list(known()))}"
        )
    times_of(arm.strategy, arm.settings)


def title_of(scaling: Scaling) -> str:
    """Return `digits under all-reduce with 1, 2, 4 and 8 workers`."""
    numbers = listed([str(count) for count in scaling.workers])
    return f"{Path(scaling.base.subject.name).name} under {scaling.base.arms[0].name} with {numbers} workers"


def tell_planned(scaling: Scaling, folder: Path, *, as_json: bool) -> int:
    """Print the comparisons that would run; return the exit status 0."""
    if as_json:
        runs = [str(folder / cell.folder) for cell in scaling.cells]
        about = {**scaling.as_json(title_of(scaling)), "plan": asdict(scaling.base), "comparisons": runs}
        typer.echo(json.dumps(about, indent=2))
        return 0
    typer.echo(f"would compare {title_of(scaling)}: {counted(len(scaling.cells), 'comparison')} in {folder}")
    for cell in scaling.cells:
        batch = "" if cell.plan.batch is None else f", batches of {cell.plan.batch}"
        typer.echo(f"  {cell.regime}: {counted(cell.plan.workers, 'worker')}{batch}")
    if scaling.simulated:
        typer.echo(f"  simulated: {listed([str(count) for count in scaling.simulated])} workers")
    return 0


def run_all(scaling: Scaling, folder: Path, command: list[str], *, as_json: bool) -> int:
    """Run and simulate what is missing in `folder`, write and show the report; return the exit status."""
    from quorate.cli.compare.progress import CompareProgress
    from quorate.compare.execute import Interrupt, asking, execute
    from quorate.launch.warm.run_server import RunServer
    from quorate.report.scaling.summary import write_scaling

    tell(f"quorate: comparing {title_of(scaling)}; records in {folder}\n")
    interrupt, statuses = Interrupt(), list[int]()
    with held(folder, "the comparison in {} is under way in another process"):
        try:
            with asking(interrupt), RunServer() as server:
                for cell in scaling.cells:
                    if not interrupt.asked:
                        tell(f"quorate: {cell.folder}: {counted(cell.plan.workers, 'worker')}\n")
                        with CompareProgress(cell.plan, interrupt, server) as progress:
                            done = execute(cell.plan, folder / cell.folder, command, server, progress, interrupt)
                        statuses += done.statuses
            if not interrupt.asked:
                keep(folder, _simulated(scaling, folder))
        except OSError as error:
            raise QuorateError(
                f"{error.strerror or error} ({error.filename or folder}); "
                f"fix this, then go on with: quorate compare --continue {folder}"
            ) from None
        if interrupt.asked:
            tell(f"quorate: interrupted; go on with: quorate compare --continue {folder}\n")
            return status_after(interrupt.signum)
        try:
            page = write_scaling(folder)
        except ConfigurationError as error:
            if all(status == 0 for status in statuses):
                raise
            tell(f"quorate: {error}\n")  # the runs have failed, and not what was typed
            return 1
    show(folder, page, as_json=as_json)
    return 0 if all(status == 0 for status in statuses) else 1


def _simulated(scaling: Scaling, folder: Path) -> dict[str, Any]:
    """Simulate the numbers of workers that are too many to run; return rows for `scaling.json`."""
    if not scaling.simulated:
        return {}
    from quorate.simulation.grid import more_workers

    most, which = scaling.most(), listed([str(count) for count in scaling.simulated])
    tell(f"quorate: simulating {which} workers, like {most.folder}\n")
    run = folder / most.folder / most.plan.arms[0].name / f"seed-{most.plan.seeds[0]}"
    try:
        predictions = more_workers(str(run), scaling.simulated)
    except ConfigurationError as error:
        return {"simulated": [], "cautions": [f"{which} workers could not be simulated: {error}"]}
    names = ("steps_per_second", "waiting_share", "communication_share")
    rows = [{"workers": row.workers, **{name: getattr(row.figures, name) for name in names}} for row in predictions]
    return {"simulated": rows, "cautions": []}


def show(folder: Path, page: Path, *, as_json: bool) -> None:
    """Print the verdict and the paths of the report and figures; with `as_json`, the full `summary.json`."""
    from quorate.report.scaling.figures import ScalingSummary
    from quorate.report.scaling.verdict import lines_of

    text = (folder / "summary.json").read_text(encoding="utf-8")
    if as_json:
        typer.echo(text.rstrip())
        return
    summary = ScalingSummary.model_validate_json(text)
    with contextlib.suppress(BrokenPipeError):
        for line in lines_of(summary):
            typer.echo(line)
        typer.echo(f"report: {page}\nfigures: {folder / 'summary.json'}")
