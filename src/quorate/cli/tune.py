"""`quorate tune`: the settings of a gradient's parts that are fastest for a script, measured while it trains."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import typer

from quorate.cli import options as shared
from quorate.cli.config import toml_of
from quorate.cli.hosts import ScriptOptions
from quorate.cli.options import command, option
from quorate.cli.run import RunOptions, planned_run, start_run
from quorate.cli.tables import echo_text, table, terminal_width
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.observe.stopping import RETRY
from quorate.records.choice_rows import Tuned
from quorate.report.wording import seconds_in_words

USUAL_WORKERS = 2
USUAL_FILE = "tuned.toml"


@dataclass(frozen=True, kw_only=True)
class TuneOptions(ScriptOptions):
    """The options of `quorate tune`."""

    workers: int | None = option("Number of worker processes (default: 2).", "-n", "--workers", metavar=shared.N)
    output: str = option(
        f"Write the options for run --config to this file (default: {USUAL_FILE}).",
        "--to",
        default=USUAL_FILE,
        metavar="FILE.toml",
    )
    picture: str | None = option("Draw predicted beside measured times to this file.", metavar="FILE.svg")
    as_json: bool = option("Print one JSON object.", "--json", default=False)


@command
def tune(context: typer.Context, options: TuneOptions) -> int:
    """Train a script for up to 200 steps, try how its gradients are sent, and write what is faster.

    Choices are compared with the default on consecutive steps. The default stays unless the whole 95% interval of the
    speed-up is above it. No choice changes a bit of the training on CPUs.
    """
    _check(options)
    of_run = [spec.name for spec in fields(ScriptOptions) if spec.name not in ("workers", "settings")]
    chosen: dict[str, Any] = {name: getattr(options, name) for name in of_run}
    is_elsewhere = options.virtual is not None or options.hosts is not None
    workers = options.workers if is_elsewhere else options.workers or USUAL_WORKERS
    plan = planned_run(RunOptions(**chosen, workers=workers, settings=[*options.settings, 'autotune="only"']))
    status = start_run(plan, is_resumed=False, runs_as=None)
    row = _newest(plan.request.folder)
    if row is None:
        if status not in (0, RETRY):
            return status
        raise QuorateError(
            f"{options.script} ended before its tuning, which takes up to 200 steps of all-reduce without compression; "
            "let it train longer"
        )
    written = {name: context.params.get(name) for name in of_run} | {"workers": workers, "name": None}
    written["settings"] = [*options.settings, *(f"{name}={json.dumps(x)}" for name, x in row.settings.items())]
    head = "".join(f"# {sentence}\n" for sentence in row.why)
    Path(options.output).write_text(f"{head}{toml_of(RunOptions, written)}\n", encoding="utf-8")
    if options.picture is not None:
        Path(options.picture).write_text(_picture(row, options.script), encoding="utf-8")
    _tell(row, options)
    return 0


def _check(options: TuneOptions) -> None:
    for flag, path, suffix in (("--to", options.output, ".toml"), ("--picture", options.picture, ".svg")):
        if path is not None and not (path.endswith(suffix) and Path(path).parent.is_dir()):
            raise ConfigurationError(f"{flag} {path}: give a file name that ends in {suffix}, in a folder that exists")
    if any(setting.partition("=")[0] in ("autotune", "part_order", "part_layout") for setting in options.settings):
        raise ConfigurationError("quorate tune chooses autotune, part_order and part_layout itself; leave them out")


def _newest(folder: Path) -> Tuned | None:
    from quorate.report.reading.run import read_run

    rows = [row for rank in read_run(folder).ranks for row in rank.tunings]
    return max(rows, key=lambda row: row.time, default=None)


def _picture(row: Tuned, script: str) -> str:
    from quorate.report.charts.markup import element
    from quorate.report.topics.tuning import choices_of, pair_chart
    from quorate.simulation.picture import MARGIN, TOP, WIDTH, framed

    choices, label = choices_of(row), " ".join(row.why)
    title = "seconds from the beginning of the step to the end of the exchange"
    chart = pair_chart(choices, title=title, width=WIDTH - 2 * MARGIN, label=label)
    body = element("g", chart, transform=f"translate({MARGIN:g} {TOP:g})")
    height = TOP + 52.0 * len(choices) + 48.0
    return framed(body, height, f"Parts of the gradients of {Path(script).name}", row.why[-1], "", label)


def _tell(row: Tuned, options: TuneOptions) -> None:
    if options.as_json:
        typer.echo(json.dumps({"file": options.output, **row.as_json()}, indent=2))
        return
    from quorate.report.topics.tuning import choices_of

    heads = ["choice", "parts", "predicted", "measured", "pairs", "speed-up", "95% interval"]
    cells = [
        [
            f"{each.name}{' (taken)' * each.taken}",
            f"{each.parts}",
            seconds_in_words(each.predicted),
            "–" if each.measured is None else seconds_in_words(each.measured),
            f"{each.pairs}" if each.pairs else "–",
            "–" if each.speed_up is None else f"{each.speed_up:.3f}",
            "–" if each.low is None else f"{each.low:.3f} to {each.high:.3f}",
        ]
        for each in choices_of(row)
    ]
    typer.echo("\n".join(table(heads, cells, terminal_width())))
    typer.echo("")
    echo_text(" ".join(row.why))
    echo_text(f"{row.steps} steps; quorate run --config {options.output} trains with these settings.")
