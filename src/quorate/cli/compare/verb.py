"""`quorate compare`: strategies side by side on a workload or a script, all else equal."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from dataclasses import fields
from pathlib import Path

import typer

from quorate.cli.choices import check_workers
from quorate.cli.compare.comparison import (
    arms_from,
    check_plan,
    in_words,
    metric_from,
    seeds_from,
    subject_from,
)
from quorate.cli.compare.options import CompareOptions
from quorate.cli.compare.scaling import check_beside, planned, run_all, tell_planned, title_of
from quorate.cli.config import config_text
from quorate.cli.hosts import hosts_of
from quorate.cli.options import command, flags_given
from quorate.compare.plan import TIMEOUT, Comparison, Subject, read_plan
from quorate.compare.scaling import read_scaling_plan, told_in
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.telling import tell
from quorate.launch.run.folder import SCALING, held, run_folder, usual_name
from quorate.launch.run.requests import status_after
from quorate.report.wording import counted, listed

_AS_TYPED = (
    "epochs", "seconds", "target", "imbalance", "pace", "share", "compute", "latency", "bandwidth", "batch",
    "evaluations",
)  # fmt: skip
"""Options that a comparison has under the same name."""
_BESIDE_CONTINUE = ("again", "arguments", "config", "print_config", "dry_run", "as_json")


@command
def compare(context: typer.Context, options: CompareOptions) -> int:
    """Compare strategies on a workload or a training script under equal conditions, and write a report.

    Arguments after a script are passed to the script; after a workload, options may follow.
    """
    if options.again is not None:
        if options.print_config:
            raise ConfigurationError(
                "--print-config shows the options given here; it cannot be combined with --continue"
            )
        return _go_on(options.again, options)
    if options.subject is None:
        raise ConfigurationError("name a workload (quorate list workloads) or a training script")
    check_beside(options)
    if options.numbers is not None:
        return _scale(context, options.subject, options)
    plan = _planned(options.subject, options)
    folder = run_folder(options.name or usual_name(f"compare-{Path(options.subject).stem}"))
    if options.print_config:
        typer.echo(config_text(context))
        return 0
    if options.dry_run:
        return _tell(plan, folder, as_json=options.as_json)
    _check_hosts(plan, folder)
    command = ["quorate", *sys.argv[1:]]
    plan.write(folder, command)
    return _run(plan, folder, command, as_json=options.as_json)


def _scale(context: typer.Context, name: str, options: CompareOptions) -> int:
    scaling = planned(options, lambda base_options: _planned(name, base_options))
    folder = run_folder(options.name or usual_name(f"scale-{Path(name).stem}"))
    if options.print_config:
        typer.echo(config_text(context))
        return 0
    if options.dry_run:
        return tell_planned(scaling, folder, as_json=options.as_json)
    command = ["quorate", *sys.argv[1:]]
    scaling.write(folder, title_of(scaling), command)
    return run_all(scaling, folder, command, as_json=options.as_json)


def _planned(name: str, options: CompareOptions) -> Comparison:
    subject = subject_from(name, options.arguments, options.workload_settings)
    hosts = hosts_of(options)
    _check(subject, options)
    plan = Comparison(
        subject=subject,
        metric=metric_from(subject, options.metric, options.higher),
        workers=options.virtual or options.workers or (1 if hosts is None else hosts.layout.size),
        world="real" if options.virtual is None else "virtual",
        arms=arms_from(options.strategies, options.baseline),
        seeds=options.seeds or seeds_from("3"),
        equal="target" if options.stops else "examples" if options.seconds is None else "seconds",
        learning_rates=options.tune,
        **{name: getattr(options, name) for name in _AS_TYPED},
        hosts=None if hosts is None else hosts.text,
        ssh=None if hosts is None else hosts.ssh,
        env=() if hosts is None else hosts.env,
        omp_threads=os.environ.get("OMP_NUM_THREADS", "1"),
        timeout=TIMEOUT if options.timeout is None else options.timeout,
    )
    check_plan(plan)
    return plan


def _check(subject: Subject, options: CompareOptions) -> None:
    if options.hosts is None and (options.workers is None) == (options.virtual is None):
        raise ConfigurationError(
            "say how many workers there are: -n 4 for processes, --hosts first:4,second:4 for those on several hosts, "
            "or --virtual 8"
        )
    check_workers(options.workers, options.virtual)
    of_workload = flags_given(options, "epochs", "batch", "evaluations") if subject.kind == "script" else []
    if of_workload:
        raise ConfigurationError(
            f"{listed(of_workload)} can be chosen for a workload; a script has arguments of its own"
        )
    of_virtual = flags_given(options, "compute", "latency", "bandwidth") if options.virtual is None else []
    if of_virtual:
        raise ConfigurationError(f"{listed(of_virtual)} can be chosen for a virtual world (--virtual N)")
    if options.seconds is not None and options.stops:
        raise ConfigurationError("--seconds and --stop-at-target cannot be combined: equal time for all, or a target")
    if options.seconds is not None and options.epochs is not None:
        raise ConfigurationError("--epochs and --seconds cannot be combined: equal work for all, or equal time")


def _go_on(name: str, options: CompareOptions) -> int:
    from quorate.report.reading.folders import find_folder

    others = flags_given(options, *(option.name for option in fields(options) if option.name not in _BESIDE_CONTINUE))
    if others:
        raise ConfigurationError(
            f"--continue takes everything from the comparison it goes on with; leave out {listed(others)}"
        )
    folder = find_folder(name)
    if (folder / SCALING).is_file():
        scaling = read_scaling_plan(folder)
        if options.dry_run:
            return tell_planned(scaling, folder, as_json=options.as_json)
        os.environ["OMP_NUM_THREADS"] = scaling.base.omp_threads
        return run_all(scaling, folder, told_in(folder).get("command", []), as_json=options.as_json)
    plan = read_plan(folder)
    check_plan(plan)
    if options.dry_run:
        return _tell(plan, folder, as_json=options.as_json)
    _check_hosts(plan, folder)
    os.environ["OMP_NUM_THREADS"] = plan.omp_threads
    command = json.loads((folder / "compare.json").read_text(encoding="utf-8")).get("command", [])
    return _run(plan, folder, [str(word) for word in command], as_json=options.as_json)


def _check_hosts(plan: Comparison, folder: Path) -> None:
    """Raise `ConfigurationError` where the hosts of the plan cannot run it."""
    if plan.reached is not None:
        from quorate.compare.grid import script_of
        from quorate.launch.hosts.survey import check_hosts

        check_hosts(plan.reached, script_of(plan), folder)


def _tell(plan: Comparison, folder: Path, *, as_json: bool) -> int:
    from quorate.compare.grid import final_cells, outcome_of, tuning_cells

    cells = [cell for cell in (*tuning_cells(plan), *final_cells(plan)) if outcome_of(folder / cell.folder) is None]
    commands = {} if plan.reached is None else plan.reached.commands
    if as_json:
        runs = [str(folder / cell.folder) for cell in cells]
        typer.echo(json.dumps(plan.as_json() | {"runs": runs} | ({"commands": commands} if commands else {}), indent=2))
        return 0
    typer.echo(f"would compare {in_words(plan)}: {counted(len(cells), 'run')} in {folder}")
    for cell in cells:
        typer.echo(f"  {cell.in_words}")
    for words in commands.values():
        typer.echo(shlex.join(words))
    return 0


def _run(plan: Comparison, folder: Path, command: list[str], *, as_json: bool) -> int:
    from quorate.cli.compare.progress import CompareProgress
    from quorate.cli.compare.results import show
    from quorate.compare.execute import Interrupt, asking, execute
    from quorate.launch.warm.run_server import RunServer
    from quorate.report.write import write_report

    tell(f"quorate: comparing {in_words(plan)}; records in {folder}\n")
    interrupt = Interrupt()
    try:
        with (
            held(folder, "the comparison in {} is under way in another process"),
            asking(interrupt),
            RunServer() as server,
            CompareProgress(plan, interrupt, server) as progress,
        ):
            done = execute(plan, folder, command, server, progress, interrupt)
        page = write_report(folder)  # when nobody is at work any more: it says so
    except OSError as error:  # a full disk, or a terminal that was closed
        if interrupt.asked:
            return status_after(interrupt.signum)
        raise QuorateError(
            f"{error.strerror or error} ({error.filename or folder}); "
            f"fix this, then go on with: quorate compare --continue {folder}"
        ) from None
    if done.is_interrupted:
        with contextlib.suppress(OSError):
            show(folder, page, as_json=as_json)
            tell(f"quorate: interrupted; go on with: quorate compare --continue {folder}\n")
        return status_after(interrupt.signum)
    show(folder, page, as_json=as_json)
    return 0 if all(status == 0 for status in done.statuses) else 1
