"""`quorate doctor`: what works here, with the fix for what does not."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import typer

from quorate.cli.choices import check_strategy, check_workers
from quorate.cli.doctor import cost as sheets
from quorate.cli.doctor import data as loaders
from quorate.cli.doctor import gpus, machine, trials
from quorate.cli.doctor import hosts as of_hosts
from quorate.cli.doctor import memory as needs
from quorate.cli.doctor.findings import Check, Checks, Finding, examined, fail, within
from quorate.cli.listing import GROUPS
from quorate.cli.options import N, argument, command, flags_given, option, strategy_from
from quorate.cli.scripts import check_script
from quorate.cli.tables import table, terminal_width, text_table
from quorate.core.axes import offload_of
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.quantities import bytes_from
from quorate.core.telling import tell
from quorate.launch.hosts.reach import Layout
from quorate.launch.local.processes import LACKING
from quorate.launch.warm.alone import measured
from quorate.report.wording import listed
from quorate.simulation.links import USUAL, Links, links_from

_COLORS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}
_LEVEL = re.compile(rf"(?<=  )({'|'.join(_COLORS)})\b")
SECONDS = 10.0
"""Time limit of what ought to take milliseconds; a name server may take its time."""
USUAL_WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The options of `quorate doctor`."""

    workers: int | None = option(
        "Number of workers that are tried (default: 2); with --cost, that are simulated (default: 8).",
        "-n",
        "--workers",
        metavar=N,
    )
    hosts: Layout | None = option("Check these hosts and their network.", metavar="A:N,B:N,…", reads=of_hosts.hosts_in)
    strategy: str | None = option("With --hosts: the strategy of the run.", metavar="STRATEGY", needs="--hosts")
    rates: bool = option("Measure the bandwidth of sums over all workers.", "--bandwidth", default=False)
    as_json: bool = option("Print one JSON object.", "--json", default=False)
    memory: bool = option("Say how much memory each worker of SCRIPT will need.", default=False)
    shards: int | None = option("With --memory: the workers that share the state.", metavar=N, needs="--memory")
    fits: int | None = option(
        "With --memory: mark what fits into 24GB, say.", metavar="BYTES", reads=bytes_from, needs="--memory"
    )
    offload: str | None = option(
        "With --memory: what host memory or disk holds.", metavar="optimizer|all|disk", needs="--memory"
    )
    data: bool = option("Say whether SCRIPT waits for its data, and which num_workers suffices.", default=False)
    cost: bool = option("Say what each layer and each part of a step of SCRIPT takes, and what to cut.", default=False)
    network: Links | None = option(
        "With --cost: the network between workers (default: 50us:10Gbit).",
        metavar="LATENCY:BANDWIDTH",
        reads=links_from,
        needs="--cost",
    )
    script: str | None = argument("With --memory, --data or --cost: the training script.", "[SCRIPT", default=None)
    arguments: list[str] = argument("Its arguments.", "ARGUMENT...]", default=[])


@command
def doctor(context: typer.Context, options: DoctorOptions) -> int:
    """Check what training needs on this machine, and say how to fix what does not work.

    Tries a training with two workers, or -n N; this takes about twenty seconds. With --hosts it checks each
    host over ssh, and whether the hosts reach each other. With --memory it runs SCRIPT with one worker until the first
    optimizer.step() ends, and with --data or --cost for some steps.
    """
    if options.memory or options.data or options.cost:
        _look_at_script(options)
        return 0
    if options.script is not None:
        raise ConfigurationError("a script can be given with --memory, --data or --cost only")
    check_workers(options.workers, None)
    if options.hosts is not None and options.workers is not None:
        raise ConfigurationError("with --hosts, their workers are written behind them, as in a:4,b:4; leave out -n")
    rates: list[dict[str, Any]] | None = [] if options.rates else None
    if options.hosts is None:
        checks = checks_here(options.workers, rates)
    else:
        checks = of_hosts.checks(options.hosts, waits=_waits(options.strategy), rates=rates)
    findings = _examine(checks)
    if options.as_json:
        counts = {level: sum(finding.level == level for finding in findings.values()) for level in _COLORS}
        rows = [{"name": name, **finding._asdict()} for name, finding in findings.items()]
        measured_rates = {} if rates is None else {"bandwidth": rates}
        typer.echo(json.dumps({"counts": counts, "findings": rows, **measured_rates}, indent=2, ensure_ascii=False))
    else:
        _show(findings, "trainings can run here" if options.hosts is None else "trainings can run on these hosts")
        typer.echo("\n".join(("", *rates_in_words(rates))) if rates else "", nl=bool(rates))
    return LACKING if any(finding.level == "FAIL" for finding in findings.values()) else 0


def _waits(strategy: str | None) -> bool:
    """Return whether workers wait in every step for what others send: without a strategy, and under most."""
    name = None if strategy is None else strategy_from(strategy)[0]
    check_strategy(name, {}, USUAL_WORKERS, is_virtual=False)
    return not any(name in names for title, names in GROUPS.items() if title.startswith(("quorums", "local steps")))


def _look_at_script(options: DoctorOptions) -> None:
    flag, *more = flags_given(options, "memory", "data", "cost")
    if more:
        raise ConfigurationError(f"{listed([flag, *more])} are measured one after the other; leave out all but one")
    if others := flags_given(options, "hosts", "rates", *(["workers"] if options.memory else [])):
        where = "processes on this machine" if options.data else "one process on this machine"
        raise ConfigurationError(f"{flag} measures {where}; leave out {listed(others)}")
    if options.script is None:
        raise ConfigurationError(f"{flag} needs a script: quorate doctor {flag} SCRIPT [ARGUMENT ...]")
    check_script(options.script)
    tells = {"--memory": _tell_memory, "--data": _tell_data, "--cost": _tell_cost}
    tells[flag](options, options.script)


def _tell_cost(options: DoctorOptions, script: str) -> None:
    workers = sheets.USUAL_WORKERS if options.workers is None else options.workers
    if not 1 <= workers <= sheets.MOST_WORKERS:
        raise ConfigurationError(f"-n {workers}: the cost sheet is for 1 to {sheets.MOST_WORKERS:,} workers")
    links = options.network or links_from(USUAL)
    costs = sheets.costs_from(sheets.measure(script, options.arguments), workers, links, script)
    typer.echo(sheets.as_json(costs) if options.as_json else "\n".join(sheets.in_words(costs)))


def _tell_data(options: DoctorOptions, script: str) -> None:
    workers = options.workers or 1
    check_workers(workers, None)
    answers = loaders.measure(script, options.arguments, workers)
    if options.as_json:
        typer.echo(json.dumps({**loaders.verdict(answers), "workers": answers}, indent=2))
    else:
        typer.echo("\n".join(loaders.in_words(script, answers)))


def _tell_memory(options: DoctorOptions, script: str) -> None:
    offload_of(options.offload)
    shards, most = options.shards, needs.MOST_SHARDS
    if shards is not None and not 1 <= shards <= most:
        raise ConfigurationError(f"--shards is a number of workers from 1 to {most:,}, not {shards}")
    answer = measured(script, options.arguments)
    layouts = list(needs.lines(answer, shards, options.fits, options.offload))
    if options.as_json:
        typer.echo(needs.as_json(answer, layouts, options.fits))
    else:
        typer.echo("\n".join(needs.in_words(answer, layouts, options.fits)))


def quick_checks(workers: int) -> dict[str, Check]:
    """Return the checks that start no training."""
    return {
        "packages": machine.packages,
        "extras": machine.extras,
        "name": machine.namesake,
        "cores": partial(machine.cores, workers),
        "memory": partial(machine.memory, workers),
        "open files": partial(machine.open_files, workers),
        "folders": machine.folders,
        "ports": machine.ports,
    }


def checks_here(workers: int | None = None, rates: list[dict[str, Any]] | None = None) -> Checks:
    """Yield the checks of this machine; without torch, those that need it are left out."""
    for name, check in quick_checks(workers or USUAL_WORKERS).items():
        yield name, partial(within, SECONDS, check)
    try:
        facts = trials.tried(trials.PROGRAM, "facts")
    except QuorateError as error:
        yield "torch", partial(fail, f"torch cannot be imported: {error}", "reinstall torch")
        return
    number = workers or max(USUAL_WORKERS, len(facts["gpus"]))
    for name, finding in gpus.rows(facts, number):
        yield name, partial(Finding, *finding)
    yield "/dev/shm", partial(machine.shared_memory, min(number, len(facts["gpus"])))
    if not facts["gpus"]:
        yield "bfloat16", trials.bfloat16
    yield "quorate run", partial(trials.quorate_run, ["-n", str(number)], rates)


def _examine(checks: Iterable[tuple[str, Check]]) -> dict[str, Finding]:
    """Return the findings, and show the progress on stderr: on a terminal in one line that is erased at the end."""
    on_terminal, findings = sys.stderr.isatty(), {}
    for name, check in checks:
        tell(f"\r\x1b[2Kquorate: {name}" if on_terminal else "")
        findings[name] = examined(check)
        tell("" if on_terminal else f"quorate: {name}: {findings[name].level}\n")
    tell("\r\x1b[2K" if on_terminal else "")
    return findings


def _show(findings: Mapping[str, Finding], well: str) -> None:
    rows = []
    for name, (level, fact, fix) in findings.items():
        rows += [(name, level, fact), *([("", "", f"fix: {fix}")] if fix else [])]
    for line in text_table(rows, terminal_width(), indent=""):
        typer.echo(_LEVEL.sub(lambda match: typer.style(match[0], fg=_COLORS[match[0]]), line, count=1))
    failed, warned = ([name for name, row in findings.items() if row.level == level] for level in ("FAIL", "WARN"))
    if failed:
        typer.echo(f"{len(failed)} of {len(findings)} failed: {', '.join(failed)}")
    else:
        typer.echo(f"{well}; mind: {', '.join(warned)}" if warned else well)


def rates_in_words(rates: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of the bandwidth of sums, in the order of nccl-tests."""
    heads = ["size (B)", "elements", "type", "time (µs)", "algbw (GB/s)", "busbw (GB/s)", "error"]
    forms = ("{size:,}", "{elements:,}", "{dtype}", "{time:,.1f}", "{algbw:.3f}", "{busbw:.3f}", "{error:g}")
    rows = []
    for rate in rates:
        units = {"time": 1e6 * rate["seconds"]}
        units |= {"algbw": rate["algorithm_bandwidth"] / 1e9, "busbw": rate["bus_bandwidth"] / 1e9}
        rows.append([form.format(**rate, **units) for form in forms])
    yield from table(heads, rows, terminal_width())
