"""`quorate compare`: strategies side by side on a workload or a script, all else equal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from quorate.cli.choices import check_workers
from quorate.cli.compare.command import TUNE, USUAL_FACTORS
from quorate.cli.compare.comparison import (
    arms_from,
    check_plan,
    factors_from,
    in_words,
    metric_from,
    seeds_from,
    subject_from,
)
from quorate.cli.config import config_text, read_config
from quorate.cli.values import bytes_per_second_from, seconds_from
from quorate.compare.plan import TIMEOUT, Comparison, read_plan
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.telling import tell
from quorate.launch.run.folder import run_folder, usual_name
from quorate.launch.run.requests import ASKS, status_after
from quorate.report.wording import counted, listed


def compare(
    context: typer.Context,
    subject: Annotated[
        str | None, typer.Argument(help="A workload (see quorate list), or a training script.", metavar="SUBJECT")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What the script is given, untouched.", metavar="[ARGS]...")
    ] = None,
    workers: Annotated[int | None, typer.Option("-n", help="Worker processes.")] = None,
    virtual: Annotated[int | None, typer.Option(help="Virtual workers, instead of -n.")] = None,
    strategies: Annotated[
        list[str] | None,
        typer.Option("--strategy", help="NAME or NAME:key=value,…; once for each that is compared (all-reduce)."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="What the others are held against: ddp, or a strategy (the first one).")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="How many (3), or which: 1,2,5.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Of a workload, over all workers (its own number).")] = None,
    seconds: Annotated[float | None, typer.Option(help="Equal time for all, instead of equal work.")] = None,
    target: Annotated[float | None, typer.Option(help="The quality to which time is taken.")] = None,
    stops: Annotated[
        bool, typer.Option("--stop-at-target", help="End every run when it has reached the target, or all its work.")
    ] = False,
    metric: Annotated[str | None, typer.Option(help="What a script logs as its quality, by name.")] = None,
    higher: Annotated[bool | None, typer.Option("--higher/--lower", help="Which values of it are better.")] = None,
    imbalance: Annotated[
        str | None, typer.Option(help="Who is late: one-of:200ms, rank:3:x2, lognormal:10ms:0.5, trace:FILE.")
    ] = None,
    pace: Annotated[str | None, typer.Option(help="How long a step lasts at least: 280ms, 50us/token.")] = None,
    share: Annotated[str | None, typer.Option(help="How data is cut: static, dynamic.")] = None,
    tune: Annotated[
        str | None,
        typer.Option(
            TUNE,
            help="Search the best learning rate of each strategy first, among factors of the usual one.",
            metavar=f"[{USUAL_FACTORS}]",
        ),
    ] = None,
    workload_settings: Annotated[
        list[str] | None, typer.Option("--workload-set", help="A setting of the workload, key=value; may be repeated.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Of a workload: examples per worker and step.")] = None,
    evaluations: Annotated[int | None, typer.Option(help="Of a workload: how often, evenly over the work.")] = None,
    name: Annotated[str | None, typer.Option(help="Keep everything in runs/NAME.")] = None,
    again: Annotated[
        str | None, typer.Option("--continue", help="Run what is missing of a comparison.", metavar="FOLDER")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which a run has failed (3600).")] = None,
    compute: Annotated[str | None, typer.Option(help="Virtual time of a step, as for quorate run.")] = None,
    latency: Annotated[str | None, typer.Option(help="Of the virtual network, such as 50us.")] = None,
    bandwidth: Annotated[str | None, typer.Option(help="Of the virtual network, such as 10Gbit.")] = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="Options from a TOML file; what is typed goes first.",
            metavar="FILE",
            callback=read_config,
            is_eager=True,
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show the options as TOML for --config, and run nothing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Show summary.json (with --dry-run the plan).")] = False,
) -> int:
    """Compare strategies on a workload or a training script, all else equal, and write a report.

    Everything after a script is the script's; after a workload more options may stand.
    """
    of_workload = {"--epochs": epochs, "--batch": batch, "--evaluations": evaluations}
    of_virtual = {"--compute": compute, "--latency": latency, "--bandwidth": bandwidth}
    others = {
        "SUBJECT": subject, "-n": workers, "--virtual": virtual, "--strategy": strategies, "--baseline": baseline,
        "--seeds": seeds, "--seconds": seconds, "--target": target, "--metric": metric, "--higher/--lower": higher,
        "--stop-at-target": stops or None,
        "--imbalance": imbalance, "--pace": pace, "--share": share, TUNE: tune, "--workload-set": workload_settings,
        "--name": name, "--timeout": timeout, **of_workload, **of_virtual,
    }  # fmt: skip
    if again is not None:
        if print_config:
            raise ConfigurationError("--print-config shows what is typed, and a comparison that goes on has its own")
        return _go_on(again, others, dry_run=dry_run, as_json=as_json)
    if subject is None:
        raise ConfigurationError("name what is to be trained: a workload (quorate list workloads), or a script")
    what = subject_from(subject, arguments or [], workload_settings or [])
    _check(what.kind, workers, virtual, seconds, of_workload, of_virtual, stops=stops)
    plan = Comparison(
        subject=what,
        metric=metric_from(what, metric, higher),
        workers=virtual if virtual is not None else workers or 1,
        world="real" if virtual is None else "virtual",
        arms=arms_from(strategies or (), baseline),
        seeds=seeds_from(seeds or "3"),
        equal="target" if stops else "examples" if seconds is None else "seconds",
        epochs=epochs,
        seconds=seconds,
        target=target,
        imbalance=imbalance,
        pace=pace,
        share=share,
        learning_rates=None if tune is None else factors_from(tune),
        compute=compute,
        latency=None if latency is None else seconds_from(latency),
        bandwidth=None if bandwidth is None else bytes_per_second_from(bandwidth),
        batch=batch,
        evaluations=evaluations,
        omp_threads=os.environ.get("OMP_NUM_THREADS", "1"),
        timeout=TIMEOUT if timeout is None else timeout,
    )
    check_plan(plan)
    folder = run_folder(name or usual_name(f"compare-{Path(subject).stem}"))
    if print_config:
        typer.echo(config_text(context))
        return 0
    if dry_run:
        return _tell(plan, folder, as_json=as_json)
    command = ["quorate", *sys.argv[1:]]
    plan.write(folder, command)
    return _run(plan, folder, command, as_json=as_json)


def _check(
    kind: Literal["workload", "script"],
    workers: int | None,
    virtual: int | None,
    seconds: float | None,
    of_workload: Mapping[str, object],
    of_virtual: Mapping[str, object],
    *,
    stops: bool,
) -> None:
    if (workers is None) == (virtual is None):
        raise ConfigurationError("say how many workers there are: -n 4 for processes, or --virtual 8")
    check_workers(workers, virtual)
    for given, goes_with in (
        (_named(of_workload) if kind == "script" else [], "a workload; a script has arguments of its own"),
        (_named(of_virtual) if virtual is None else [], "a virtual world (--virtual N)"),
    ):
        if given:
            raise ConfigurationError(f"{listed(given)} can be chosen for {goes_with}")
    if seconds is not None and stops:
        raise ConfigurationError("--seconds and --stop-at-target exclude each other: equal time for all, or a target")
    if seconds is not None and of_workload["--epochs"] is not None:
        raise ConfigurationError("--epochs and --seconds exclude each other: equal work for all, or equal time")


def _named(options: Mapping[str, object]) -> list[str]:
    """Those that were given."""
    return [name for name, value in options.items() if value is not None and value != []]


def _go_on(name: str, others: Mapping[str, object], *, dry_run: bool, as_json: bool) -> int:
    from quorate.report.reading.folders import find_folder

    if _named(others):
        raise ConfigurationError(
            f"--continue takes everything from the comparison it goes on with; leave out {listed(_named(others))}"
        )
    folder = find_folder(name)
    plan = read_plan(folder)
    check_plan(plan)
    if dry_run:
        return _tell(plan, folder, as_json=as_json)
    os.environ["OMP_NUM_THREADS"] = plan.omp_threads
    command = json.loads((folder / "compare.json").read_text(encoding="utf-8")).get("command", [])
    return _run(plan, folder, [str(word) for word in command], as_json=as_json)


def _tell(plan: Comparison, folder: Path, *, as_json: bool) -> int:
    from quorate.compare.grid import final_cells, outcome_of, tuning_cells

    cells = [cell for cell in (*tuning_cells(plan), *final_cells(plan)) if outcome_of(folder / cell.folder) is None]
    if as_json:
        runs = [str(folder / cell.folder) for cell in cells]
        typer.echo(json.dumps({**plan.as_json(), "runs": runs}, indent=2))
        return 0
    typer.echo(f"would compare {in_words(plan)}: {counted(len(cells), 'run')} in {folder}")
    for cell in cells:
        typer.echo(f"  {cell.in_words}")
    return 0


def _run(plan: Comparison, folder: Path, command: list[str], *, as_json: bool) -> int:
    from quorate.cli.compare.progress import Progress
    from quorate.cli.compare.results import show
    from quorate.compare.execute import Interrupt, execute
    from quorate.launch.warm.run_server import RunServer
    from quorate.report.write import write_report

    tell(f"quorate: comparing {in_words(plan)}; records in {folder}\n")
    interrupt = Interrupt()
    with _alone_in(folder):
        try:
            with _asking(interrupt), RunServer() as server, Progress(plan, interrupt, server) as progress:
                done = execute(plan, folder, command, server, progress, interrupt)
            page = write_report(folder)
        except OSError as error:  # a full disk, or a terminal that was closed
            if interrupt.asked:
                return status_after(interrupt.signum)
            raise QuorateError(
                f"{error.strerror or error} ({error.filename or folder}); "
                f"when that is put right, go on with: quorate compare --continue {folder}"
            ) from None
    if done.is_interrupted:
        with contextlib.suppress(OSError):
            show(folder, page, as_json=as_json)
            tell(f"quorate: interrupted; go on with: quorate compare --continue {folder}\n")
        return status_after(interrupt.signum)
    show(folder, page, as_json=as_json)
    return 0 if all(status == 0 for status in done.statuses) else 1


@contextlib.contextmanager
def _asking(interrupt: Any) -> Iterator[None]:
    """While in force, what asks this process to end asks the comparison to stop."""
    with contextlib.ExitStack() as stack:
        for signum in ASKS:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # as after nohup
                before = signal.signal(signum, lambda number, frame: interrupt.ask(number))
                stack.callback(signal.signal, signum, before)
        yield


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Raises `ConfigurationError` while another process is in it."""
    number = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"the comparison in {folder} is under way in another process") from None
        yield
    finally:
        os.close(number)
