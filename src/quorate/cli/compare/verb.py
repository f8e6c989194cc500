"""`quorate compare`: strategies side by side on a workload or a script, all else equal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import typer

from quorate.cli import options as shared
from quorate.cli.choices import check_open_files, check_workers, tell_lack_of_memory
from quorate.cli.compare.arms import numbers_of_workers, scaled, shrunk, simulate
from quorate.cli.compare.comparison import (
    arms_from,
    check_plan,
    factors_from,
    in_words,
    metric_from,
    printed_name,
    seeds_from,
    subject_from,
)
from quorate.cli.config import ConfiguredCommand, previewed, read_config
from quorate.cli.hosts import WorkerOptions, hosts_of
from quorate.cli.listing import registry
from quorate.cli.names import known_as
from quorate.cli.options import argument, command, flags_given, option, same_named
from quorate.cli.scripts import is_file
from quorate.compare.plan import LEARNING_RATES, TIMEOUT, Arm, Comparison, Subject, read_plan
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.quantities import limit_from, seconds_from, share_from
from quorate.core.resources import usable_cores
from quorate.core.telling import tell
from quorate.launch.run.folder import held, run_folder, usual_name
from quorate.launch.run.requests import status_after
from quorate.report.wording import counted, listed

TUNE = "--tune-lr"
LEAST, MOST = 2, 8
"""Workers of a comparison that says no number: as many as there are cores, within these bounds."""
BESIDE = "eager-solo"
"""The strategy that is compared with synchronous training where none is named."""
USUAL_FACTORS = ",".join(f"{factor:g}" for factor in LEARNING_RATES)
_FACTORS = re.compile(r"[0-9.eE,+-]+")
_SEVERAL = re.compile(r"(?<!\S)(?:-n|--workers)[ =]?([0-9]+(?:,[0-9]+)+)")

_BESIDE_CONTINUE = ("again", "arguments", "config", "print_config", "dry_run", "as_json")


class CompareCommand(ConfiguredCommand):
    """A command with an optional value of `--tune-lr`, and with options after the name of a workload."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; `--tune-lr` without a value gets the default factors."""
        place = self._subject(args)
        if place is not None and known_as(args[place], "workloads") in registry("workloads"):
            args = [*args[:place], *args[place + 1 :], args[place]]
        several = _SEVERAL.search(" ".join(args[: self._subject(args)]))
        if several is not None and not ctx.resilient_parsing:
            raise ConfigurationError(f"{several[0]}: give one number; --scale {several[1]} compares several")
        own = args[: self._subject(args)]
        if TUNE in own and not ctx.resilient_parsing:
            _check_word_after(args, own.index(TUNE) + 1)
        own = [f"{TUNE}={USUAL_FACTORS}" if word == TUNE else word for word in own]
        return super().parse_args(ctx, [*own, *args[len(own) :]])

    def _subject(self, args: list[str]) -> int | None:
        """Return the index of the first word that is neither an option nor the value of one."""
        flags = {name for option in self.params if getattr(option, "is_flag", False) for name in option.opts}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            has_value = "=" not in args[place] and args[place] not in (*flags, "--lower", "--help", "-h", TUNE)
            place += 1 + has_value
        return place if place < len(args) and args[place] != "--" else None


def _check_word_after(args: Sequence[str], place: int) -> None:
    """Raise `ConfigurationError` if the word after `--tune-lr` seems to be its value."""
    word = args[place] if place < len(args) else "--"
    is_subject = word.startswith("-") or known_as(word, "workloads") in registry("workloads") or is_file(word)
    if _FACTORS.fullmatch(word) or not (is_subject or Path(word).suffix or "/" in word):
        raise ConfigurationError(f'{TUNE} takes its factors after "=", such as {TUNE}={USUAL_FACTORS}, not "{word}"')


@dataclass(frozen=True, kw_only=True)
class CompareOptions(WorkerOptions):
    """The options of `quorate compare`."""

    subject: str | None = argument(
        "A workload (quorate list workloads), or a training script.", "SUBJECT", default=None
    )
    arguments: list[str] = argument(shared.ARGUMENTS, "[ARGS]...", default=[])
    workers: int | None = option(
        f"Number of worker processes (default: the cores, from {LEAST} to {MOST}); with --scale the most that are run.",
        "-n",
        "--workers",
        metavar=shared.N,
    )
    scale: tuple[int, ...] | None = option(
        "Compare each strategy with several numbers of workers; those above -n or --virtual are simulated.",
        metavar="N,N,…",
        reads=numbers_of_workers,
    )
    scaling: str | None = option(
        "With --scale: keep the batch of each worker (weak), the batch of all (strong), or try both.",
        metavar="weak|strong|both",
        needs="--scale N,N,…",
    )
    price: float | None = option(
        "With --scale: the price of one worker for one hour.", metavar=shared.NUMBER, needs="--scale N,N,…"
    )
    shrink: list[str] = option(
        "Make the model smaller in training: none, prune:amount=0.9, low-rank:share=0.25, cluster; may be repeated.",
        default=[],
        metavar="STEPS",
    )
    strategies: list[str] = option(
        "A strategy to compare, NAME or NAME:key=value,…; may be repeated (default: eager-solo beside ddp).",
        "--strategy",
        default=[],
        metavar="STRATEGY",
    )
    baseline: str | None = option(
        "What the others are compared with: ddp, or a strategy (default: the first one).", metavar="STRATEGY"
    )
    seeds: tuple[int, ...] | None = option(
        "How many seeds (default: 3), or which: 1,2,5.", reads=seeds_from, metavar="N or N,N,…"
    )
    epochs: float | None = option("Epochs of a workload, over all workers.", metavar=shared.NUMBER)
    seconds: float | None = option(
        "Give every strategy equal time, in seconds or such as 30min, in place of equal work.",
        reads=limit_from,
        metavar=shared.TIME,
    )
    target: float | None = option("The quality to reach; the time to it is compared.", metavar=shared.NUMBER)
    relevant: float | None = option(shared.RELEVANT, reads=share_from, metavar=shared.SHARE)
    stops: bool = option("End a run when it reaches the target.", "--stop-at-target", default=False)
    metric: str | None = option("The name under which a script logs its quality.", metavar="NAME")
    metric_pattern: str | None = option(
        "A line in which the script prints its quality: 'val_acc=([0-9.]+)'.", metavar="REGEX"
    )
    higher: bool | None = option("Whether higher or lower values of it are better.", "--higher/--lower")
    share: str | None = option("How the data is divided.", "--data-share", metavar=shared.SHARES)
    tune: tuple[float, ...] | None = option(
        "First search the best learning rate of each strategy, among factors of its own.",
        TUNE,
        metavar=f"[{USUAL_FACTORS}]",
        reads=factors_from,
    )
    workload_settings: list[str] = option(shared.WORKLOAD_SETTING, "--workload-set", default=[], metavar=shared.PAIR)
    batch: int | None = option("Examples of a workload per worker and step.", metavar=shared.N)
    evaluations: int | None = option("How often a workload is evaluated, at equal distances.", metavar=shared.N)
    name: str | None = option("Keep everything in runs/NAME.", metavar="NAME")
    again: str | None = option("Run what is missing of a comparison.", "--continue", metavar="FOLDER")
    timeout: float | None = option(
        f"How long a run may take before it counts as failed (default: {TIMEOUT:g}s).",
        reads=seconds_from,
        metavar=shared.TIME,
    )
    config: str | None = option(shared.CONFIG, metavar="FILE", eager=read_config)
    print_config: bool = option(shared.PRINT_CONFIG, default=False)
    dry_run: bool = option("Print what would run, and run nothing.", default=False)
    as_json: bool = option("Print summary.json (with --dry-run, the plan).", "--json", default=False)


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
    plan = _planned(options.subject, options)
    if plan.world == "real" and plan.reached is None:
        tell_lack_of_memory(plan.workers)
    folder = run_folder(options.name or usual_name(f"compare-{Path(options.subject).stem}"))
    if previewed(context, options, lambda: _shown(plan, folder, as_json=options.as_json)):
        return 0
    if plan.world == "real" and plan.reached is None:
        check_open_files(plan.workers)
    _check_hosts(plan, folder)
    command = ["quorate", *sys.argv[1:]]
    plan.write(folder, command)
    return _run(plan, folder, command, as_json=options.as_json)


def _planned(name: str, options: CompareOptions) -> Comparison:
    subject = subject_from(name, options.arguments, options.workload_settings)
    hosts = hosts_of(options)
    _check(subject, options)
    plan = Comparison(
        **same_named(options, Comparison)
        | {
            "subject": subject,
            "metric": metric_from(subject, options.metric or printed_name(options.metric_pattern), options.higher),
            "workers": options.virtual or options.workers or (usual_workers() if hosts is None else hosts.layout.size),
            "seeds": options.seeds or seeds_from("3"),
            "ssh": None if hosts is None else hosts.ssh,
            "env": () if hosts is None else hosts.env,
            "timeout": TIMEOUT if options.timeout is None else options.timeout,
        },
        world="real" if options.virtual is None else "virtual",
        arms=_arms(options),
        equal="target" if options.stops else "examples" if options.seconds is None else "seconds",
        learning_rates=options.tune,
        omp_threads=os.environ.get("OMP_NUM_THREADS", "1"),
    )
    if options.shrink:
        plan = shrunk(plan, options.shrink)
    if options.scale is not None:
        plan = scaled(plan, options.scale, options.virtual or options.workers, options.scaling or "weak")
        check_workers(None if options.virtual else plan.workers, options.virtual)
    check_plan(plan)
    return plan


def usual_workers() -> int:
    """Return the number of workers of a comparison that says none."""
    return min(MOST, max(LEAST, usable_cores()))


def _arms(options: CompareOptions) -> tuple[Arm, ...]:
    if options.strategies or options.baseline is not None or options.scale is not None or options.shrink:
        return arms_from(options.strategies, options.baseline)
    return arms_from([BESIDE], "ddp" if options.virtual is None else "all-reduce")


def _check(subject: Subject, options: CompareOptions) -> None:
    if options.scale is not None and options.hosts is not None:
        raise ConfigurationError("--scale compares numbers of workers on this machine; leave out --hosts")
    worlds = [count for count in (options.workers, options.virtual) if count is not None]
    if len(worlds) > 1:
        raise ConfigurationError("give -n (processes) or --virtual (virtual workers), not both")
    check_workers(options.workers, options.virtual)
    of_workload = flags_given(options, "epochs", "batch", "evaluations") if subject.kind == "script" else []
    if of_workload:
        raise ConfigurationError(
            f"{listed(of_workload)} can be chosen for a workload; a script has arguments of its own"
        )
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
    plan = read_plan(folder)
    check_plan(plan)
    if options.dry_run:
        typer.echo(_shown(plan, folder, as_json=options.as_json))
        return 0
    _check_hosts(plan, folder)
    os.environ["OMP_NUM_THREADS"] = plan.omp_threads
    command = json.loads((folder / "compare.json").read_text(encoding="utf-8")).get("command", [])
    return _run(plan, folder, [str(word) for word in command], as_json=options.as_json)


def _check_hosts(plan: Comparison, folder: Path) -> None:
    """Raise `ConfigurationError` where the hosts of the plan cannot run it."""
    if plan.reached is not None:
        from quorate.compare.grid import script_of
        from quorate.launch.hosts.link import check_hosts

        check_hosts(plan.reached, script_of(plan), folder)


def _shown(plan: Comparison, folder: Path, *, as_json: bool) -> str:
    from quorate.compare.grid import final_cells, outcome_of, tuning_cells

    cells = [cell for cell in (*tuning_cells(plan), *final_cells(plan)) if outcome_of(folder / cell.folder) is None]
    commands = {} if plan.reached is None else plan.reached.commands
    if as_json:
        runs = [str(folder / cell.folder) for cell in cells]
        return json.dumps(plan.as_json() | {"runs": runs} | ({"commands": commands} if commands else {}), indent=2)
    simulated = [f"  simulated: {listed(list(map(str, plan.simulated)))} workers"] if plan.simulated else []
    runs = [f"would compare {in_words(plan)}: {counted(len(cells), 'run')} in {folder}"]
    return "\n".join(
        [*runs, *(f"  {cell.in_words}" for cell in cells), *simulated, *map(shlex.join, commands.values())]
    )


def _run(plan: Comparison, folder: Path, command: list[str], *, as_json: bool) -> int:
    from quorate.cli.compare.progress import CompareProgress
    from quorate.cli.compare.results import show
    from quorate.compare.execute import Interrupt, asking, execute
    from quorate.launch.warm.run_server import RunServer
    from quorate.report.summary import write_report

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
            if plan.simulated and not done.is_interrupted:
                simulate(plan, folder)
        page = write_report(folder)  # when nobody is at work any more: it says so
    except OSError as error:  # a full disk, or a terminal that was closed
        if interrupt.asked:
            return status_after(interrupt.signum)
        raise QuorateError(
            f"{error.strerror or error} ({error.filename or folder}); "
            f"fix this, then continue with: quorate compare --continue {folder}"
        ) from None
    if done.is_interrupted:
        with contextlib.suppress(OSError):
            show(folder, page, as_json=as_json)
            tell(f"quorate: interrupted; continue with: quorate compare --continue {folder}\n")
        return status_after(interrupt.signum)
    show(folder, page, as_json=as_json)
    return 0 if all(status == 0 for status in done.statuses) else 1
