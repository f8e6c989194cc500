"""`quorate doctor`: one table of what works here, with the fix beside what does not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from quorate.cli.doctor import examinations
from quorate.cli.doctor import hosts as several
from quorate.cli.doctor import memory as needs
from quorate.cli.doctor.findings import Finding, Level
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell

LACKING = 3
"""The exit status where something fails: the environment lacks it."""
_WIDE = 150
"""Columns of the table where the output is no terminal."""
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def doctor(
    hosts: Annotated[
        str | None, typer.Option(help="Check these hosts, and the network between them.", metavar="A,B,…")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Say how much memory each worker of SCRIPT will need.")
    ] = False,
    shards: Annotated[
        int | None, typer.Option(help="With --memory: the number of workers that share the state.", metavar="N")
    ] = None,
    fits: Annotated[
        str | None, typer.Option(help="With --memory: mark what fits into this size, such as 24GB.", metavar="BYTES")
    ] = None,
    offload: Annotated[
        str | None, typer.Option(help="With --memory: what host memory or disk holds.", metavar="optimizer|all|disk")
    ] = None,
    script: Annotated[str | None, typer.Argument(help="With --memory: the training script.", metavar="[SCRIPT")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.", metavar="ARGUMENT...]")] = None,
) -> int:
    """Check what training needs on this machine, and say how to fix what does not work.

    Tries the backends and a training with two processes; this takes about twenty seconds. With --hosts it checks each
    host over ssh, and whether the hosts reach each other. With --memory it runs SCRIPT with one worker until the first
    optimizer.step() ends.
    """
    if memory:
        return _memory(script, arguments or [], shards, fits, offload, hosts, as_json=as_json)
    if any(value is not None for value in (script, shards, fits, offload)):
        raise ConfigurationError(
            "a script, --shards, --fits and --offload need --memory: quorate doctor --memory SCRIPT"
        )
    if hosts is None:
        findings = list(_progress(examinations.findings(), examinations.names()))
    else:
        names = several.hosts_in(hosts)
        findings = list(_progress(several.findings(names), several.rows_of(names)))
    if as_json:
        typer.echo(json.dumps(_as_json(findings), indent=2, ensure_ascii=False))
    else:
        _show(findings)
        typer.echo(_conclusion(findings, "can run here" if hosts is None else "can run on these hosts"))
    return LACKING if any(finding.level is Level.FAIL for finding in findings) else 0


def _memory(
    script: str | None,
    arguments: Sequence[str],
    shards: int | None,
    fits: str | None,
    offload: str | None,
    hosts: str | None,
    *,
    as_json: bool,
) -> int:
    if hosts is not None:
        raise ConfigurationError("--memory measures one process on this machine; leave out --hosts")
    limit = needs.check_asked(script, shards, fits, offload)
    assert script is not None
    answer = needs.measured(script, arguments)
    layouts = list(needs.lines(answer, shards, offload))
    if as_json:
        typer.echo(needs.as_json(answer, layouts, limit))
    else:
        needs.show(answer, layouts, limit)
    return 0


def _as_json(findings: Sequence[Finding]) -> dict[str, object]:
    counts = {level.value: sum(finding.level is level for finding in findings) for level in Level}
    return {"counts": counts, "findings": [asdict(finding) for finding in findings]}


def _progress(findings: Iterable[Finding], names: Sequence[str]) -> Iterator[Finding]:
    """Pass the findings on, and show the progress on stderr: on a terminal in one line that is erased at the end."""
    with_terminal = sys.stderr.isatty()
    remaining, number = iter(findings), 0
    while number < len(names):
        tell(f"\r\x1b[2Kquorate: [{number + 1}/{len(names)}] {names[number]}" if with_terminal else "")
        finding = next(remaining, None)
        if finding is None:
            break
        number = names.index(finding.name) + 1  # rows that need one that has failed are left out
        if not with_terminal:
            tell(f"quorate: [{number}/{len(names)}] {finding.name}: {finding.level}\n")
        yield finding
    tell("\r\x1b[2K" if with_terminal else "")


def _show(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for heading, width in (("what", 12), ("", 4), ("found", None), ("what to do", None)):
        table.add_column(heading, min_width=width, overflow="fold")
    for finding in findings:
        table.add_row(
            finding.name,
            Text(finding.level.value, style=_STYLES[finding.level]),
            Text(finding.found),
            Text(finding.fix),
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)


def _conclusion(findings: Sequence[Finding], can_run: str) -> str:
    failed = [finding.name for finding in findings if finding.level is Level.FAIL]
    warned = [finding.name for finding in findings if finding.level is Level.WARN]
    if failed:
        return f"{len(failed)} of {len(findings)} failed: {', '.join(failed)}"
    if warned:
        return f"trainings {can_run}; mind: {', '.join(warned)}"
    return f"trainings {can_run}"
