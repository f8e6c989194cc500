"""`quorate doctor`: what works here, with the fix for what does not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import typer

from quorate.cli.doctor import hosts as of_hosts
from quorate.cli.doctor import machine, software, trials
from quorate.cli.doctor import memory as needs
from quorate.cli.doctor.findings import Check, Checks, Finding, examined, fail, within
from quorate.cli.options import N, argument, command, option
from quorate.cli.scripts import check_script
from quorate.cli.tables import terminal_width, wrapped
from quorate.core.axes import offload_of
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.core.quantities import bytes_from
from quorate.core.telling import tell
from quorate.launch.hosts.reach import Layout

LACKING = 3
"""The exit status where something fails: the environment lacks it."""
_COLORS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}
SECONDS = 10.0
"""Time limit of what ought to take milliseconds; a name server may take its time."""
QUICK: dict[str, Check] = {
    "packages": software.packages,
    "extras": software.extras,
    "name": software.namesake,
    "cores": machine.cores,
    "memory": machine.memory,
    "/dev/shm": machine.shared_memory,
    "open files": machine.open_files,
    "folders": machine.folders,
    "ports": machine.ports,
    "token": machine.token,
}
"""The checks that start no training."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The options of `quorate doctor`."""

    hosts: Layout | None = option(
        "Check these hosts, and the network between them.", metavar="A,B,…", reads=of_hosts.hosts_in
    )
    as_json: bool = option("Print one JSON object.", "--json", default=False)
    memory: bool = option("Say how much memory each worker of SCRIPT will need.", default=False)
    shards: int | None = option(
        "With --memory: the number of workers that share the state.", metavar=N, needs="--memory"
    )
    fits: int | None = option(
        "With --memory: mark what fits into this size, such as 24GB.",
        metavar="BYTES",
        reads=bytes_from,
        needs="--memory",
    )
    offload: str | None = option(
        "With --memory: what host memory or disk holds.", metavar="optimizer|all|disk", needs="--memory"
    )
    script: str | None = argument("With --memory: the training script.", "[SCRIPT", default=None, needs="--memory")
    arguments: list[str] = argument("Its arguments.", "ARGUMENT...]", default=[])


@command
def doctor(context: typer.Context, options: DoctorOptions) -> int:
    """Check what training needs on this machine, and say how to fix what does not work.

    Tries a training with two workers; this takes about twenty seconds. With --hosts it checks each
    host over ssh, and whether the hosts reach each other. With --memory it runs SCRIPT with one worker until the first
    optimizer.step() ends.
    """
    if options.memory:
        _tell_memory(options)
        return 0
    findings = _examine(checks_here() if options.hosts is None else of_hosts.checks(options.hosts))
    if options.as_json:
        counts = {level: sum(finding.level == level for finding in findings.values()) for level in _COLORS}
        rows = [{"name": name, **finding._asdict()} for name, finding in findings.items()]
        typer.echo(json.dumps({"counts": counts, "findings": rows}, indent=2, ensure_ascii=False))
    else:
        _show(findings, "trainings can run here" if options.hosts is None else "trainings can run on these hosts")
    return LACKING if any(finding.level == "FAIL" for finding in findings.values()) else 0


def _tell_memory(options: DoctorOptions) -> None:
    if options.hosts is not None:
        raise ConfigurationError("--memory measures one process on this machine; leave out --hosts")
    if options.script is None:
        raise ConfigurationError("--memory needs a script: quorate doctor --memory SCRIPT [ARGUMENT ...]")
    check_script(options.script)
    offload_of(options.offload)
    if options.shards is not None and not 1 <= options.shards <= needs.MOST_SHARDS:
        raise ConfigurationError(
            f"--shards is a number of workers from 1 to {needs.MOST_SHARDS:,}, not {options.shards}"
        )
    answer = needs.measured(options.script, options.arguments)
    layouts = list(needs.lines(answer, options.shards, options.fits, options.offload))
    if options.as_json:
        typer.echo(needs.as_json(answer, layouts, options.fits))
    else:
        typer.echo("\n".join(needs.in_words(answer, layouts, options.fits)))


def checks_here() -> Checks:
    """Yield the checks of this machine; without torch, those that need it are left out."""
    for name, check in QUICK.items():
        yield name, partial(within, SECONDS, check)
    environments: list[dict[str, Any]] = []
    yield "torch", partial(_torch, environments)
    for environment in environments:
        yield "gpu", partial(software.gpu, environment)
        yield "bfloat16", trials.bfloat16
        yield "quorate run", trials.quorate_run


def _torch(environments: list[dict[str, Any]]) -> Finding:
    try:
        environments.append(trials.environment())
    except QuorateError as error:
        return fail(f"torch cannot be imported: {error}", "reinstall torch")
    return software.torch(environments[0])


def _examine(checks: Iterable[tuple[str, Check]]) -> dict[str, Finding]:
    """Return the findings, and show the progress on stderr: on a terminal in one line that is erased at the end."""
    on_terminal, findings = sys.stderr.isatty(), {}
    for name, check in checks:
        tell(f"\r\x1b[2Kquorate: {name}" if on_terminal else "")
        findings[name] = examined(check)
        tell("" if on_terminal else f"quorate: {name}: {findings[name].level}\n")
    tell("\r\x1b[2K" if on_terminal else "")
    return findings


def _show(findings: dict[str, Finding], well: str) -> None:
    width = max(map(len, findings))
    for name, finding in findings.items():
        level = f"  {finding.level:<4}  "
        row = "\n".join(wrapped(f"{name:<{width}}{level}{finding.found}", terminal_width(), hanging="    "))
        typer.echo(row.replace(level, typer.style(level, fg=_COLORS[finding.level]), 1))
        if finding.fix:
            typer.echo("\n".join(wrapped(f"fix: {finding.fix}", terminal_width(), "    ")))
    failed, warned = ([name for name, row in findings.items() if row.level == level] for level in ("FAIL", "WARN"))
    if failed:
        typer.echo(f"{len(failed)} of {len(findings)} failed: {', '.join(failed)}")
    else:
        typer.echo(f"{well}; mind: {', '.join(warned)}" if warned else well)
