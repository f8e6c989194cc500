"""`quorate run`: start the workers of a training script here or on several hosts, as processes or virtual ones."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from quorate.cli import options as shared
from quorate.cli.choices import (
    check_open_files,
    check_overrides,
    check_seed,
    check_virtual,
    check_workers,
    tell_lack_of_memory,
)
from quorate.cli.config import previewed, read_config
from quorate.cli.hosts import ScriptOptions, hosts_of
from quorate.cli.listing import registry
from quorate.cli.options import (
    command,
    flags_given,
    option,
    same_named,
    settings_from,
    strategy_from,
    with_seconds,
)
from quorate.cli.resume import note_resumption, read_resumed
from quorate.cli.scripts import check_module, check_script, own_strategy, strategy_in
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import limit_from
from quorate.core.telling import tell
from quorate.inject.failures import failures_from
from quorate.launch.local.chaos import ChaosPlan
from quorate.launch.local.newcomers import MOST, Room
from quorate.launch.local.processes import Conclusion
from quorate.launch.loggers import known_names, names_from
from quorate.launch.run.folder import held, run_folder, usual_name, write_outcome, write_run
from quorate.launch.run.overrides import Overrides
from quorate.launch.run.requests import asked_in_one_process, status_after
from quorate.launch.warm.request import RunRequest, VirtualRun, run_request
from quorate.report.wording import counted
from quorate.train.combination import UNCONCERNED, Combination
from quorate.train.compatibility import check

FORKED = 3
"""Processes of a run, from which on one more that imports torch for them is worth its while."""

USUAL_FAILURES = "mtbf=60s,repair=2s,stop=0.2:3s,slow=0.2:x4:5s"
"""The failures for `--chaos` without `--failures`."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(ScriptOptions):
    """The options of `quorate run`."""

    resume: str | None = option(
        "Continue a run in its folder, by default with its script and options.", metavar="RUN", eager=read_resumed
    )
    attack: str | None = option(
        "Let the last workers send wrong gradients: sign-flip:2, noise, nan, …", metavar="ATTACK"
    )
    share: str | None = option(
        "How the data is divided, in place of the script's choice.", "--data-share", metavar=shared.SHARES
    )
    mesh: str | None = option("Divide the model: replicas=R,stages=L,shards=S,tensor=T.", metavar="AXES")
    zero: int | None = option("The ZeRO stage of the shards.", metavar="1|2|3")
    offload: str | None = option(
        "What a model in shards keeps in host memory or on disk.", metavar="optimizer|all|disk"
    )
    seconds: float | None = option(
        "End the training after this many seconds, or a time such as 30min.", reads=limit_from, metavar=shared.TIME
    )
    failures: str | None = option(
        "How workers fail, with --chaos: mtbf=30s,repair=2s,stop=0.2:3s,slow=0.1:x4:5s.",
        metavar="FAILURES",
        needs="--chaos SEED",
    )
    chaos: int | None = option("Kill, stop and slow down workers on the schedule of this seed.", metavar="SEED")
    restart: int | None = option(
        "How many dead workers are replaced by new ones (default: 0; 64 with --chaos).", metavar=shared.N
    )
    leave_within: float | None = option(
        "How long workers have to leave when asked (default: 10s after Ctrl-C, else no limit).",
        reads=limit_from,
        metavar=shared.TIME,
    )
    max_joins: int = option("How many more workers may join later by `quorate join`.", default=0, metavar=shared.N)
    servers: int = option("Number of extra ranks that only serve parameters.", default=0, metavar=shared.N)
    runs_as: str | None = option(
        "Let `import horovod.torch` of the script be quorate.horovod.", "--as", metavar="horovod"
    )
    no_fork: bool = option("Start every worker as a new program instead of forking.", default=False)
    config: str | None = option(shared.CONFIG, metavar="FILE", eager=read_config)
    log: str | None = option("Loggers: tensorboard,wandb,mlflow, or none.", metavar="NAME,…")
    no_progress: bool = option("Do not show progress.", default=False)
    watch: bool = option("Serve a live page of the run to browsers on this machine.", default=False)
    print_config: bool = option(shared.PRINT_CONFIG, default=False)
    dry_run: bool = option("Print what would start, and start nothing.", default=False)
    as_json: bool = option("With --dry-run, print it as one JSON object.", "--json", default=False, needs="--dry-run")


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A checked run, ready to start."""

    request: RunRequest
    room: Room
    """For workers that come later."""
    chaos: ChaosPlan | None = None
    is_cold: bool = False
    """Whether every worker is a program of its own."""
    shows_progress: bool = True
    is_watched: bool = False
    omp_threads: str = field(default_factory=lambda: os.environ.get("OMP_NUM_THREADS", "1"))

    @property
    def forks(self) -> bool:
        """Whether all workers but rank 0 are forked from a process that has imported torch, as that saves imports."""
        request = self.request
        processes = request.size + request.servers + self.room.all
        are_here = request.virtual is None and request.hosts is None
        return are_here and not self.is_cold and (processes >= FORKED or self.chaos is not None)

    @property
    def in_words(self) -> str:
        """The run in one line."""
        request, chosen = self.request, self.request.overrides
        kind = "worker" if request.virtual is None else "virtual worker"
        settings = ", ".join(f"{key}={value}" for key, value in chosen.settings.items())
        own = None if chosen.strategy or request.is_module else strategy_in(request.script)
        strategy = chosen.strategy or (f"{own} (script)" if own else own_strategy(request.script))
        beside: dict[str, object] = {"imbalance": chosen.imbalance, "min step time": chosen.pace}
        beside |= {"data share": chosen.share}
        beside |= {"mesh": chosen.mesh, "zero": chosen.zero, "offload": chosen.offload, "seed": chosen.seed}
        details = "".join(f", {name}: {value}" for name, value in beside.items() if value is not None)
        if self.chaos is not None:
            details += f", chaos of seed {self.chaos.seed}: {self.chaos.failures.text}"
        if self.room.all:
            details += f", up to {counted(self.room.all, 'more worker')}"
        beside_them = f" and {counted(request.servers, 'server')}" if request.servers else ""
        threads = f", OMP_NUM_THREADS={self.omp_threads}" if request.virtual is None else ""
        where = "" if request.hosts is None else f" on {request.hosts.layout.in_words}"
        return (
            f"{counted(request.size, kind)}{beside_them}{where} of {request.script}, strategy: {strategy}"
            f"{f' ({settings})' if settings else ''}{details}{threads}; records in {request.folder}"
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """The contents of `run.json`."""
        return {**self.request.as_json(self.omp_threads), "restart": self.room.restarts, "spare": self.room.more}


@command
def run(context: typer.Context, options: RunOptions) -> int:
    """Run a training script with several workers on this machine, or on several hosts.

    Options come before SCRIPT; what follows SCRIPT is passed to the script.
    """
    plan = planned_run(options)
    if plan.request.virtual is None and plan.request.hosts is None:
        tell_lack_of_memory(plan.request.size)
    if previewed(context, options, lambda: _shown(plan, as_json=options.as_json)):
        return 0
    return start_run(plan, is_resumed=options.resume is not None, runs_as=options.runs_as)


def planned_run(options: RunOptions) -> RunPlan:
    """Return the run that these options ask for. Raises `ConfigurationError` for wrong ones."""
    is_virtual = options.virtual is not None
    if options.workers is not None and is_virtual:
        raise ConfigurationError("give -n (processes) or --virtual (virtual workers), not both")
    check_workers(options.workers, options.virtual)
    if is_virtual and options.is_module:
        raise ConfigurationError("--virtual runs a script, not a module; give the file in place of -m")
    if options.runs_as is not None:
        _check_as(options.runs_as, options.hosts)
    check_module(options.script) if options.is_module else check_script(options.script)
    if options.resume is not None and options.name is not None:
        raise ConfigurationError("--resume continues in the run's own folder; leave out --name")
    strategy, settings = (None, {}) if options.strategy is None else strategy_from(options.strategy)
    settings = settings | with_seconds(strategy or strategy_in(options.script), settings_from(options.settings))
    if options.attack is not None:
        from quorate.aggregation.attacks import attack_from

        attack_from(options.attack)
        settings = settings | {"attack": options.attack}
    chaos = chaos_of(options, strategy)
    overrides = Overrides(
        **same_named(options, Overrides)
        | {
            "strategy": strategy,
            "settings": settings_of_servers(options, strategy, settings),
            "failures": None if chaos is None else chaos.failures.text,
        }
    )
    hosts = hosts_of(options)
    if options.log is not None:
        known_names(options.log)
    size = options.virtual or options.workers or (1 if hosts is None else hosts.layout.size)
    check_overrides(overrides, size, is_virtual=is_virtual)
    if is_virtual and (options.restart or options.max_joins):
        raise ConfigurationError("--restart and --max-joins start processes; the number of virtual workers is fixed")
    virtual = VirtualRun(**same_named(options, VirtualRun) | {"seed": options.seed or 0}) if is_virtual else None
    check_virtual(virtual)
    resumed = None if options.resume is None else Path(options.resume)
    request = RunRequest(
        **same_named(options, RunRequest) | {"virtual": virtual, "hosts": hosts},
        overrides=overrides,
        size=size,
        folder=resumed or run_folder(options.name or usual_name(options.script)),
    )
    return RunPlan(
        request=request,
        room=room_of(options),
        chaos=chaos,
        is_cold=options.no_fork,
        shows_progress=not options.no_progress,
        is_watched=options.watch,
    )


def _check_as(name: str, hosts: str | None) -> None:
    if name != "horovod":
        raise ConfigurationError(f"--as {name} is unknown; known: horovod")
    if hosts is not None:
        raise ConfigurationError("--as works on this machine alone; with --hosts, import quorate.horovod in the script")


def _shown(plan: RunPlan, *, as_json: bool) -> str:
    commands = {} if plan.request.hosts is None else plan.request.hosts.commands
    if as_json:
        return json.dumps(plan.as_json | ({"commands": commands} if commands else {}), indent=2)
    return "\n".join([f"would start {plan.in_words}", *map(shlex.join, commands.values())])


def _find_first(folder: Path) -> None:
    """Let workers find the packages of `folder` before others."""
    sys.path.insert(0, str(folder))  # of virtual workers
    rest = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{rest}" if rest else str(folder)


def start_run(plan: RunPlan, *, is_resumed: bool, runs_as: str | None) -> int:
    """Write the run's folder, carry the plan out, and return the exit status."""
    request = plan.request
    if request.virtual is None and request.hosts is None:
        check_open_files(request.size + request.servers)
    if runs_as is not None:
        _find_first(Path(__file__).parents[1] / "horovod" / "alias")
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
    from quorate.report.closing import closing_line

    request = plan.request
    tell(f"quorate: {plan.in_words}\n")
    begin = time.monotonic()
    with _starter(plan) as starter, shown_beside(plan) as begins:
        ended = _ended(plan, starter, begins)
    why = None if ended.why is None else ended.why.partition("\n")[0]
    write_outcome(request.folder, ended.status, time.monotonic() - begin, why)
    line = closing_line(request.folder)
    if line is not None:
        tell(f"quorate: {line}\n")
    return ended.status


def _starter(plan: RunPlan) -> AbstractContextManager[Any]:
    """Return what starts workers other than as programs, if anything does; it imports torch from here on."""
    from quorate.launch.warm.forks import Forks, kept

    if plan.is_cold or kept() is not None:
        return nullcontext(None if plan.is_cold else kept())
    return Forks() if plan.forks else nullcontext()


def _ended(plan: RunPlan, starter: Any, begins: Callable[[], None]) -> Conclusion:
    from quorate.launch.hosts.ranks import run_on_hosts
    from quorate.launch.local.processes import run_shown

    request = plan.request
    if request.virtual is not None:
        begins()
        return _run_virtual(request, request.virtual)
    if request.hosts is not None:
        begins()
        return run_on_hosts(request.command, request.hosts, request.folder)
    more: dict[str, Any] = {"room": plan.room, "chaos": plan.chaos, "starter": starter, "begins": begins}
    return run_shown(request.command, request.size, request.folder, servers=request.servers, **more)


def _run_virtual(request: RunRequest, virtual: VirtualRun) -> Conclusion:
    with asked_in_one_process() as asked:
        status = run_request(request, virtual)
    if asked and status:
        return Conclusion(status_after(asked[0]), f"ended by {asked[0].name}; every worker has ended")
    return Conclusion(status, f"a worker ended with status {status}; see its log" if status else None)


def chaos_of(options: RunOptions, strategy: str | None) -> ChaosPlan | None:
    """Return the plan of `--chaos`, or None. Raises `ConfigurationError` for wrong options."""
    if options.chaos is None:
        return None
    if options.virtual is not None:
        raise ConfigurationError("--chaos kills processes (-n); it cannot be given with --virtual")
    check_seed("--chaos", options.chaos)
    if strategy in registry("baselines"):
        raise ConfigurationError(
            f"the baseline {strategy} cannot continue after the death of a worker; choose another strategy for --chaos"
        )
    return ChaosPlan(failures_from(options.failures or USUAL_FAILURES), options.chaos)


def room_of(options: RunOptions) -> Room:
    """Return how many workers may join; with `--chaos` all dead workers are replaced by default."""
    usual = 0 if options.chaos is None else MOST
    return Room(usual if options.restart is None else options.restart, options.max_joins)


def settings_of_servers(
    options: RunOptions, strategy: str | None, settings: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the settings of the strategy (None: the script's own), with the servers if there are any.

    Raises `ConfigurationError` for a number that cannot be, and for what does not go with them.
    """
    count = options.servers
    if not count:
        return settings
    if not 0 < count <= MOST:
        raise ConfigurationError(f"--servers is {count}; it must be a number of servers from 1 to {MOST}")
    excluded = flags_given(options, "chaos", "failures", "restart", "max_joins")
    if excluded:
        raise ConfigurationError(f"{' and '.join(excluded)} cannot be given with --servers")
    if settings.get("servers", "own") != "own":
        raise ConfigurationError(f"--servers {count} starts separate servers; leave out the setting servers")
    strategies, baselines = registry("strategies"), registry("baselines")
    if strategy is not None and (strategy in strategies or strategy in baselines):  # others are refused elsewhere
        kind: Any = strategies.get(strategy) if strategy in strategies else UNCONCERNED
        check(Combination(label=strategy, strategy=kind, has_own_servers=True), "servers")
    return {**settings, "servers": "own"}


@contextmanager
def shown_beside(plan: RunPlan) -> Iterator[Callable[[], None]]:
    """Show a run inside the context; its progress from the call of the yielded function on.

    Raises `ConfigurationError` where a page is asked for and nothing can listen.
    """
    from quorate.report.live.display import progress_shown

    with ExitStack() as stack:
        if plan.is_watched:
            from quorate.report.live.server import LiveServer

            tell(f"quorate: live page: {stack.enter_context(LiveServer(plan.request.folder)).address}\n")
        if plan.shows_progress:
            can_draw = os.environ.get("TERM", "") not in ("", "dumb")
            yield stack.enter_context(progress_shown(plan.request.folder, can_draw=can_draw))
        else:
            yield lambda: None
