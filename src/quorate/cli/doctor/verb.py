"""`quorate doctor`: one table of what works here, with the fix beside what does not."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from quorate.cli.doctor import hosts as several
from quorate.cli.doctor import machine, network, software, trials
from quorate.cli.doctor import memory as needs
from quorate.cli.doctor.findings import Examination, Finding, Level, fail
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell

LACKING = 3
"""The exit status where something fails: the environment lacks it."""
_WIDE = 150
"""Columns of the table where the output is no terminal."""
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}

QUICK, SLOW = 10.0, trials.SECONDS + 10.0
"""Seconds for what ought to take milliseconds (a name server may take its time), and for a trial."""
_WITH_TORCH = ("gpu", "bfloat16", "backend gloo", "backend nccl", "backend mpi", "quorate run")


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
        findings = list(_progress(findings_here(), examination_names()))
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


def quick_examinations() -> list[Examination[Any]]:
    """Return the examinations that start no training."""
    rows: dict[str, tuple[Callable[[], Any], Callable[[Any], Finding]]] = {
        "python": (software.probe_python, software.judge_python),
        "torch": (software.probe_packages, software.judge_torch),
        "packages": (software.probe_packages, software.judge_packages),
        "extras": (software.probe_extras, software.judge_extras),
        "cores": (machine.probe_cores, machine.judge_cores),
        "memory": (machine.probe_memory, machine.judge_memory),
        "/dev/shm": (machine.probe_shared_memory, machine.judge_shared_memory),
        "open files": (machine.probe_open_files, machine.judge_open_files),
        "folders": (machine.probe_folders, machine.judge_folders),
        "clocks": (machine.probe_clocks, machine.judge_clocks),
        "loopback": (network.probe_loopback, network.judge_loopback),
        "unix sockets": (network.probe_sockets, network.judge_sockets),
        "host name": (network.probe_name, network.judge_name),
        "torchrun": (network.probe_torchrun, network.judge_torchrun),
        "token": (network.probe_token, network.judge_token),
    }
    return [Examination(name=name, seconds=QUICK, probe=probe, judge=judge) for name, (probe, judge) in rows.items()]


def examination_names() -> list[str]:
    """Return the names of all rows, in order."""
    return [*(examination.name for examination in quick_examinations()), *_WITH_TORCH]


def findings_here() -> Iterator[Finding]:
    """Yield each finding as soon as it is known. If torch cannot be imported, skip the rows that need it."""
    for examination in quick_examinations():
        yield examination.finding()
    torch_facts: list[dict[str, Any]] = []
    yield _slow("gpu", trials.probe_torch, partial(_judge_gpu, torch_facts=torch_facts))
    if not torch_facts:
        return
    gpus, has_mpi = len(torch_facts[0]["gpus"]), torch_facts[0]["mpi"]
    nccl = partial(trials.probe_backend, "nccl", min(2, gpus)) if gpus and torch_facts[0]["nccl"] else lambda: None
    mpi = partial(trials.probe_backend, "mpi", 2) if has_mpi and trials.has_mpirun() else lambda: None
    yield _slow("bfloat16", trials.probe_half, trials.judge_half)
    yield _slow("backend gloo", partial(trials.probe_backend, "gloo", 2), trials.judge_gloo)
    yield _slow("backend nccl", nccl, partial(trials.judge_nccl, has_gpu=gpus > 0))
    yield _slow("backend mpi", mpi, partial(trials.judge_mpi, is_built=has_mpi))
    yield _slow("quorate run", trials.probe_run, trials.judge_run)


def _slow(name: str, probe: Callable[[], Any], judge: Callable[[Any], Finding]) -> Finding:
    return Examination(name=name, seconds=SLOW, probe=probe, judge=judge).finding()


def _judge_gpu(trial: trials.Trial, torch_facts: list[dict[str, Any]]) -> Finding:
    if trial.why is not None or not trial.answers:
        return fail("gpu", f"torch cannot be imported: {trial.why}", "install torch anew")
    torch_facts.append(trial.answers[0])
    has_driver = shutil.which("nvidia-smi") is not None
    return software.judge_gpu(trial.answers[0]["gpus"], trial.answers[0]["build"], has_driver=has_driver)
