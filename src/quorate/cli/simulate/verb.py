"""`quorate simulate`: what strategies would do among many workers, from times alone or with real gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from quorate.cli.config import config_text
from quorate.cli.options import command, flags_given
from quorate.cli.simulate.options import SimulateOptions
from quorate.cli.simulate.plan import SimulationPlan, planned
from quorate.core.errors import ConfigurationError
from quorate.core.telling import tell as say
from quorate.launch.run.folder import run_folder, usual_name
from quorate.report.wording import listed

if TYPE_CHECKING:
    from quorate.cli.simulate.failing_plan import FailingPlan


@command
def simulate(context: typer.Context, options: SimulateOptions) -> int:
    """Simulate strategies with up to 100,000 workers: rounds and steps per second, waiting, staleness, bytes.

    Simulates every combination of strategy, number of workers, imbalance and network. Nothing is measured, except what
    --like reads. With --failures it simulates failures of up to 10,000,000 workers.
    """
    if options.records:
        from quorate.cli.simulate.published import tell_records

        return tell_records(options)
    plan = _planned(options)
    folder = run_folder(options.name or usual_name("simulate"))
    picture = None if options.picture is None else Path(options.picture)
    if picture is not None and (picture.suffix != ".svg" or not picture.parent.is_dir()):
        raise ConfigurationError(f"--picture {picture}: give a file name that ends in .svg, in a folder that exists")
    if options.print_config:
        typer.echo(config_text(context))
        return 0
    if options.dry_run:
        sentence = f"would simulate {plan.in_words}; in {folder}"
        typer.echo(json.dumps(plan.as_json, indent=2) if options.as_json else sentence)
        return 0
    say(f"quorate: simulating {plan.in_words}; figures and picture in {folder}\n")
    if not isinstance(plan, SimulationPlan):
        from quorate.cli.simulate.failing import tell_failing

        return tell_failing(plan, folder, picture, as_json=options.as_json)
    from quorate.cli.simulate.simulation import tell

    return tell(plan, folder, picture, as_json=options.as_json)


def _planned(options: SimulateOptions) -> SimulationPlan | FailingPlan:
    if options.failures is not None:
        from quorate.cli.simulate.failing_plan import planned_failing  # imports numpy

        return planned_failing(options)
    only = flags_given(options, "recovery", "learners", "seconds")
    if only:
        raise ConfigurationError(f"{listed(only)} can be given with --failures only")
    return planned(options)
