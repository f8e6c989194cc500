"""`quorate run`: start the workers of a training script here or on several hosts, as processes or virtual ones."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import typer

from quorate.cli.chaos import chaos_of, room_of
from quorate.cli.choices import check_overrides, check_virtual, check_workers
from quorate.cli.config import config_text
from quorate.cli.hosts import hosts_of
from quorate.cli.options import command, flags_given
from quorate.cli.plan import RunOptions, RunPlan
from quorate.cli.resume import note_resumption
from quorate.cli.scripts import check_module, check_script
from quorate.cli.servers import settings_of_servers
from quorate.cli.values import settings_from, strategy_from
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.launch.local.processes import Conclusion
from quorate.launch.loggers import known_names, names_from
from quorate.launch.run.folder import held, run_folder, usual_name, write_outcome, write_run
from quorate.launch.run.overrides import Overrides
from quorate.launch.run.requests import asked_in_one_process, status_after
from quorate.launch.warm.request import RunRequest, VirtualRun, run_request


@command
def run(context: typer.Context, options: RunOptions) -> int:
    """Run a training script with several workers on this machine, or on several hosts.

    Options come before SCRIPT; what follows SCRIPT is passed to the script.
    """
    plan = _planned(options)
    if options.print_config:
        typer.echo(config_text(context))
        return 0
    if options.dry_run:
        typer.echo(_shown(plan, as_json=options.as_json))
        return 0
    return _start(plan, is_resumed=options.resume is not None)


_BESIDE = ("seed", "imbalance", "pace", "share", "mesh", "zero", "offload", "seconds", "chaos", "log")
"""Options that become overrides of the same name, besides strategy and settings."""


def _planned(options: RunOptions) -> RunPlan:
    is_virtual = options.virtual is not None
    if options.workers is not None and is_virtual:
        raise ConfigurationError("give -n (processes) or --virtual (virtual workers), not both")
    check_workers(options.workers, options.virtual)
    if is_virtual and options.is_module:
        raise ConfigurationError("--virtual runs a script, not a module; give the file in place of -m")
    of_virtual = flags_given(options, "compute", "latency", "bandwidth")
    if not is_virtual and of_virtual:
        raise ConfigurationError(f"{' and '.join(of_virtual)} can be given with --virtual N only")
    check_module(options.script) if options.is_module else check_script(options.script)
    if options.resume is not None and options.name is not None:
        raise ConfigurationError("--resume continues in the run's own folder; leave out --name")
    if options.as_json and not options.dry_run:
        raise ConfigurationError("--json can be given with --dry-run only")
    strategy, settings = (None, {}) if options.strategy is None else strategy_from(options.strategy)
    settings = settings | settings_from(options.settings)
    if options.attack is not None:
        from quorate.aggregation.attacks import attack_from

        attack_from(options.attack)
        settings = settings | {"attack": options.attack}
    chaos = chaos_of(options, strategy)
    overrides = Overrides(
        strategy=strategy,
        settings=settings_of_servers(options, strategy, settings),
        failures=None if chaos is None else chaos.failures.text,
        **{name: getattr(options, name) for name in _BESIDE},
    )
    hosts = hosts_of(options)
    if options.log is not None:
        known_names(options.log)
    size = options.virtual or options.workers or (1 if hosts is None else hosts.layout.size)
    check_overrides(overrides, size, is_virtual=is_virtual)
    if is_virtual and (options.restart or options.spare):
        raise ConfigurationError("--restart and --spare start processes; the number of virtual workers is fixed")
    virtual = VirtualRun(
        seed=options.seed or 0, compute=options.compute, latency=options.latency, bandwidth=options.bandwidth
    )
    check_virtual(virtual)
    resumed = None if options.resume is None else Path(options.resume)
    request = RunRequest(
        script=options.script,
        arguments=options.arguments,
        is_module=options.is_module,
        overrides=overrides,
        size=size,
        folder=resumed or run_folder(options.name or usual_name(options.script)),
        virtual=virtual if is_virtual else None,
        hosts=hosts,
        servers=options.servers,
    )
    return RunPlan(
        request=request,
        room=room_of(options),
        chaos=chaos,
        is_cold=options.cold,
        shows_progress=not options.no_progress,
        is_watched=options.watch,
    )


def _shown(plan: RunPlan, *, as_json: bool) -> str:
    commands = {} if plan.request.hosts is None else plan.request.hosts.commands
    if as_json:
        return json.dumps(plan.as_json | ({"commands": commands} if commands else {}), indent=2)
    return "\n".join([f"would start {plan.in_words}", *map(shlex.join, commands.values())])


def _start(plan: RunPlan, *, is_resumed: bool) -> int:
    request = plan.request
    if request.hosts is None:  # on other hosts other packages may be installed
        names_from(request.overrides.log)
    if not is_resumed:
        script = None if request.is_module else Path(request.script)
        write_run(request.folder, script, {"command": ["quorate", *sys.argv[1:]], **plan.as_json})
    with held(request.folder):
        if is_resumed:
            note_resumption(request.folder, plan.as_json)
        return carry_out(plan)


def carry_out(plan: RunPlan) -> int:
    """Run the plan, and report its end; return the exit status."""
    from quorate.cli.beside import shown_beside
    from quorate.report.closing import closing_line

    request = plan.request
    tell(f"quorate: {plan.in_words}\n")
    begin = time.monotonic()
    with _births(plan) as births, shown_beside(plan) as begins:
        ended = _ended(plan, births, begins)
    why = None if ended.why is None else ended.why.partition("\n")[0]
    write_outcome(request.folder, ended.status, time.monotonic() - begin, why)
    line = closing_line(request.folder)
    if line is not None:
        tell(f"quorate: {line}\n")
    return ended.status


def _births(plan: RunPlan) -> AbstractContextManager[Any]:
    """Return the process that forks workers, if any are forked; it imports torch from here on."""
    from quorate.launch.warm.nursery import Nursery

    return Nursery(plan.request.command, plan.request.folder) if plan.forks else nullcontext()


def _ended(plan: RunPlan, births: Any, begins: Callable[[], None]) -> Conclusion:
    from quorate.launch.hosts.ranks import run_on_hosts
    from quorate.launch.local.processes import run_shown

    request = plan.request
    if request.virtual is not None:
        begins()
        return _run_virtual(request, request.virtual)
    if request.hosts is not None:
        begins()
        return run_on_hosts(request.command, request.hosts, request.folder)
    more: dict[str, Any] = {"room": plan.room, "chaos": plan.chaos, "births": births, "begins": begins}
    return run_shown(request.command, request.size, request.folder, servers=request.servers, **more)


def _run_virtual(request: RunRequest, virtual: VirtualRun) -> Conclusion:
    with asked_in_one_process() as asked:
        status = run_request(request, virtual)
    if asked and status:
        return Conclusion(status_after(asked[0]), f"ended by {asked[0].name}; every worker has ended")
    return Conclusion(status, f"a worker ended with status {status}; see its log" if status else None)
