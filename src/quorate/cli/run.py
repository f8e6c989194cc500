"""`quorate run`: start the workers of a training script on this machine, as processes or virtual ones."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli.choices import check_overrides, check_workers
from quorate.cli.config import config_text, read_config
from quorate.cli.plan import Plan
from quorate.cli.resume import note_resumption, read_resumed
from quorate.cli.scripts import check_module, check_script
from quorate.cli.values import bytes_per_second_from, seconds_from, settings_from, strategy_from
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell
from quorate.launch.local.newcomers import Room
from quorate.launch.run.folder import run_folder, usual_name, write_outcome, write_run
from quorate.launch.run.lock import held
from quorate.launch.run.overrides import Overrides

if TYPE_CHECKING:
    from quorate.launch.local.processes import Conclusion


def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="The training script.", metavar="SCRIPT")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What the script is given, untouched.", metavar="[ARGS]...")
    ] = None,
    workers: Annotated[int | None, typer.Option("-n", help="Worker processes (1 unless told).")] = None,
    virtual: Annotated[int | None, typer.Option(help="Virtual workers in this one process, instead of -n.")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Overrides the script's own strategy; NAME, or NAME:key=value,…")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the strategy, key=value; may be repeated.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Keep the records in runs/NAME.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="Go on in the folder of a run, with its script and options unless told.",
            metavar="RUN",
            callback=read_resumed,
            is_eager=True,
        ),
    ] = None,
    is_module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as after python -m.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of everything drawn: data order, generators, imbalance.")] = None,
    imbalance: Annotated[
        str | None, typer.Option(help="Who is late: one-of:200ms, rank:3:x2, lognormal:10ms:0.5, trace:FILE.")
    ] = None,
    pace: Annotated[str | None, typer.Option(help="How long a step lasts at least: 280ms, 50us/token.")] = None,
    share: Annotated[
        str | None, typer.Option(help="How data is cut, instead of the script's: static, dynamic.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="End the training after so many seconds.")] = None,
    restart: Annotated[
        int | None, typer.Option(help="Start another worker in place of one that died, at most so many times.")
    ] = None,
    room: Annotated[int | None, typer.Option(help="How many more workers may come by `quorate join`.")] = None,
    compute: Annotated[
        str | None, typer.Option(help="Virtual time of a step: constant:10ms, normal:10ms:2ms, lognormal:10ms:0.5.")
    ] = None,
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
        bool, typer.Option("--print-config", help="Show the options as TOML for --config, and start nothing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would start, and start nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: as one JSON object.")] = False,
) -> int:
    """Run a training script with several workers on this machine.

    Options go before SCRIPT; everything after it is the script's.
    """
    options = {"--compute": compute, "--latency": latency, "--bandwidth": bandwidth}
    _check(script, workers, virtual, is_module, options)
    if resume is not None and name is not None:
        raise ConfigurationError("--resume goes on in the run's own folder; leave out --name")
    if as_json and not dry_run:
        raise ConfigurationError("--json goes with --dry-run; a run shows what its rank 0 prints")
    name_of, of_name = (None, {}) if strategy is None else strategy_from(strategy)
    raw = of_name | settings_from(settings or ())
    overrides = Overrides(
        strategy=name_of, settings=raw, seed=seed, imbalance=imbalance, pace=pace, share=share, seconds=seconds
    )
    check_overrides(overrides, virtual or workers or 1, is_virtual=virtual is not None)
    if virtual is not None and (restart or room):
        raise ConfigurationError("--restart and --room start processes; virtual workers are as many as at the start")
    plan = Plan(
        script=script,
        arguments=arguments or [],
        is_module=is_module,
        workers=virtual or workers or 1,
        is_virtual=virtual is not None,
        overrides=overrides,
        folder=run_folder(name or usual_name(script)) if resume is None else Path(resume),
        room=Room(restart or 0, room or 0),
        compute=compute,
        latency=None if latency is None else seconds_from(latency),
        bandwidth=None if bandwidth is None else bytes_per_second_from(bandwidth),
    )
    if print_config:
        typer.echo(config_text(context))
        return 0
    if dry_run:
        typer.echo(json.dumps(plan.as_json, indent=2) if as_json else f"would start {plan.in_words}")
        return 0
    return _start(plan, is_resumed=resume is not None)


def _check(
    script: str, workers: int | None, virtual: int | None, is_module: bool, for_virtual: Mapping[str, object]
) -> None:
    if workers is not None and virtual is not None:
        raise ConfigurationError("-n and --virtual exclude each other: workers are processes, or virtual")
    check_workers(workers, virtual)
    if virtual is not None and is_module:
        raise ConfigurationError("virtual workers run a script, not a module; give its file instead of -m")
    given = [option for option, value in for_virtual.items() if value is not None]
    if virtual is None and given:
        raise ConfigurationError(
            f"{' and '.join(given)} can be chosen for a virtual world only; give --virtual N as well"
        )
    check_module(script) if is_module else check_script(script)


def _start(plan: Plan, *, is_resumed: bool) -> int:
    script = None if plan.is_module else Path(plan.script)
    go = _virtual(plan) if plan.is_virtual else _processes(plan)
    if not is_resumed:
        write_run(plan.folder, script, {"command": ["quorate", *sys.argv[1:]], **plan.as_json})
    with held(plan.folder):
        if is_resumed:
            note_resumption(plan.folder, plan.as_json)
        return _go(plan, go)


def _go(plan: Plan, go: Callable[[], Conclusion]) -> int:
    from quorate.report.closing import closing_line

    tell(f"quorate: {plan.in_words}\n")
    begin = time.monotonic()
    ended = go()
    why = None if ended.why is None else ended.why.partition("\n")[0]
    write_outcome(plan.folder, ended.status, time.monotonic() - begin, why)
    line = closing_line(plan.folder)
    if line is not None:
        tell(f"quorate: {line}\n")
    return ended.status


def _processes(plan: Plan) -> Callable[[], Conclusion]:
    from quorate.launch.local.processes import Command, run_shown

    command = Command(
        script=plan.script,
        arguments=plan.arguments,
        is_module=plan.is_module,
        overrides=plan.overrides,
    )
    return partial(run_shown, command, plan.workers, plan.folder, room=plan.room)


def _virtual(plan: Plan) -> Callable[[], Conclusion]:
    from quorate.launch.local.processes import Conclusion
    from quorate.launch.run.requests import asked_in_one_process, status_after
    from quorate.launch.virtual.run import run_script
    from quorate.wire.virtual import Network, parse_compute

    seed = plan.overrides.seed or 0
    usual = Network()
    network = Network(
        latency=usual.latency if plan.latency is None else plan.latency,
        bandwidth=usual.bandwidth if plan.bandwidth is None else plan.bandwidth,
    )
    compute = None if plan.compute is None else parse_compute(plan.compute, seed=seed)
    # All virtual workers are in this process, and its environment is theirs: of what it says only the command line's.
    for name in [name for name in os.environ if name.startswith("QUORATE_")]:
        del os.environ[name]
    os.environ["QUORATE_RUN"] = str(plan.folder.resolve())
    os.environ.update(plan.overrides.environment())

    def go() -> Conclusion:
        with asked_in_one_process() as asked:
            status = run_script(
                plan.script,
                plan.arguments,
                plan.workers,
                seed=seed,
                compute=compute,
                network=network,
                run_dir=plan.folder,
            )
        if asked and status:
            return Conclusion(status_after(asked[0]), f"ended by {asked[0].name}; every worker has ended")
        return Conclusion(status, f"a worker ended with status {status}; see its log" if status else None)

    return go
