"""`quorate simulate`: what strategies would do among many workers, from times alone or with real gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from quorate.cli.config import config_text, read_config
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell as say
from quorate.launch.run.folder import run_folder, usual_name


def simulate(
    context: typer.Context,
    strategies: Annotated[
        list[str] | None,
        typer.Option("--strategy", help="NAME or NAME:key=value,…; may be repeated (all-reduce and quorum)."),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option("-n", "--workers", help="How many, or several numbers: 8,64,512 (8).", metavar="N")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Of the fastest worker (100).")] = None,
    compute: Annotated[
        str | None, typer.Option(help="Seconds of a step: constant:10ms, lognormal:10ms:0.5, trace:FILE.")
    ] = None,
    pace: Annotated[str | None, typer.Option(help="How long a step lasts at least: 280ms, trace:NAME.")] = None,
    imbalances: Annotated[
        list[str] | None,
        typer.Option("--imbalance", help="Who is late: one-of:200ms, rank:3:x2, none; may be repeated."),
    ] = None,
    networks: Annotated[
        list[str] | None,
        typer.Option("--network", help="LATENCY:BANDWIDTH (50us:10Gbit), :mesh, :halving; may be repeated."),
    ] = None,
    parameters: Annotated[str | None, typer.Option(help="Numbers that are agreed on, such as 25M (1M).")] = None,
    batch: Annotated[int | None, typer.Option(help="Examples per worker and step.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything drawn (0).")] = None,
    like: Annotated[
        list[str] | None,
        typer.Option(help="Take times from a run's records; further runs tell what exchanges cost.", metavar="RUN"),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --like: status 1 unless the run itself is told within 10%.")
    ] = False,
    real: Annotated[
        str | None, typer.Option(help="With real gradients of this workload, in the virtual world.", metavar="WORKLOAD")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="With --real: over all workers.")] = None,
    workload_settings: Annotated[
        list[str] | None, typer.Option("--workload-set", help="With --real: a setting of the workload, key=value.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Keep figures and picture in runs/NAME.")] = None,
    picture: Annotated[str | None, typer.Option(help="Write the picture there as well.", metavar="FILE.svg")] = None,
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
        bool, typer.Option("--print-config", help="Show the options as TOML for --config, and simulate nothing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be simulated, and do nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Show simulate.json (with --dry-run the plan).")] = False,
) -> int:
    """Simulate strategies among up to 100,000 workers: rounds and steps per second, waiting, staleness, bytes.

    Every strategy meets every number of workers, imbalance and network. Nothing here is measured but what --like reads.
    """
    from quorate.cli.simulate.asked import Asked
    from quorate.cli.simulate.plan import planned

    asked = Asked(
        strategies=strategies or (),
        workers=sizes,
        steps=steps,
        compute=compute,
        pace=pace,
        imbalances=imbalances or (),
        networks=networks or (),
        parameters=parameters,
        batch=batch,
        seed=seed,
        like=like or (),
        is_checked=check,
        real=real,
        epochs=epochs,
        workload_settings=workload_settings or (),
    )
    plan = planned(asked)
    folder = run_folder(name or usual_name("simulate"))
    if picture is not None and (Path(picture).suffix != ".svg" or not Path(picture).parent.is_dir()):
        raise ConfigurationError(
            f"--picture {picture}: it is a file whose name ends in .svg, in a folder that is there"
        )
    if print_config:
        typer.echo(config_text(context))
        return 0
    if dry_run:
        typer.echo(json.dumps(plan.as_json, indent=2) if as_json else f"would simulate {plan.in_words}; in {folder}")
        return 0
    from quorate.cli.simulate.simulation import tell

    say(f"quorate: simulating {plan.in_words}; figures and picture in {folder}\n")
    return tell(plan, folder, None if picture is None else Path(picture), as_json=as_json)
