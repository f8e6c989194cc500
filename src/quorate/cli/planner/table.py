"""The output of `quorate plan`: a table of the best layouts, and lines about the others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import typer

from quorate.cli.planner.costs import columns, sentences
from quorate.cli.planner.prices import Pricing
from quorate.cli.simulate.results import NOTHING, Columns
from quorate.cli.simulate.results import show as show_table
from quorate.cli.tables import echo_text
from quorate.planning.cluster import Cluster
from quorate.planning.layouts import Layout
from quorate.planning.model import Model
from quorate.planning.prediction import Prediction
from quorate.planning.search import Loser, Plan
from quorate.planning.search import as_json as of_one
from quorate.planning.tries import Tried
from quorate.planning.waiting import SYNC_EVERY
from quorate.report.wording import bytes_in_words, counted, seconds_in_words, share_in_words

_R = TypeVar("_R")

_NAMED = 16
"""Stages whose beginnings are listed."""
_SHOWN = 24
"""Lines about layouts that lose."""


def as_json(
    model: Model,
    cluster: Cluster,
    plan: Plan,
    tried: Sequence[Tried] | None = None,
    pricing: Pricing | None = None,
) -> dict[str, Any]:
    """Return the plan as JSON; `tried`: the layouts that were run, the fastest first. With `pricing` each layout has
    its cost."""

    def cost(seconds: float | None) -> dict[str, Any]:
        return {} if pricing is None or seconds is None else {"cost": asdict(pricing.cost(seconds, model))}

    runs = [
        of_one(trial.foreseen)
        | {"measured": trial.seconds, "taken": trial.taken, "steps": trial.steps, "failed": trial.why}
        | cost(trial.seconds)
        for trial in tried or ()
    ]
    return {
        "model": model.name,
        "numbers": model.numbers,
        "batch": model.batch,
        "cluster": asdict(cluster),
        "looked_at": plan.looked_at,
        "best": [of_one(prediction) | cost(prediction.seconds) for prediction in plan.best],
        "lost": [asdict(loser) for loser in plan.losers],
        **({} if tried is None else {"tried": runs}),
        **({} if pricing is None else {"pricing": pricing.as_json()}),
    }


def show(
    model: Model,
    cluster: Cluster,
    plan: Plan,
    tried: Sequence[Tried] | None = None,
    script: Sequence[str] = (),
    pricing: Pricing | None = None,
) -> None:
    """Print it; layouts that were `tried` are in a table of their own, before the others. Of a `script` with its
    arguments also how it is started in the first layout. With `pricing` also what the training costs."""
    workers = f"{counted(cluster.workers, 'worker')} of {bytes_in_words(cluster.memory)}"
    echo_text(
        f"{model.name}, {model.numbers:,} parameters, {counted(model.batch, 'example')} a step, over {workers}; "
        f"{counted(plan.looked_at, 'layout')} looked at"
    )
    if tried is not None:
        _show_tried(tried)
    of_tried = {trial.foreseen.layout for trial in tried or ()}
    untried = [prediction for prediction in plan.best if prediction.layout not in of_tried]
    if tried is not None and untried:
        typer.echo("Not tried:")
    if untried:
        show_table(untried, [_numbered(untried), *_COLUMNS])
    if pricing is not None:
        steps = [prediction.seconds for prediction in plan.best] if tried is None else [t.seconds for t in tried]
        _show_costs(pricing, model, [seconds for seconds in steps if seconds is not None])
    for line in _lines(plan.losers):
        echo_text(line)
    if script:
        first = tried[0].foreseen.layout if tried else plan.best[0].layout
        typer.echo(f"\nThe first choice: {how_to_run(first, model, script)}")
    origin = "Predicted, not measured" if tried is None else "Lines after the first table are predicted, not measured"
    echo_text(
        f"\n{origin}. A step of quorum, local-sgd or d-psgd is not as much learning as one of all-reduce"
        f" (local-sgd: a mean every {SYNC_EVERY} steps); quorate compare tells."
    )


def how_to_run(layout: Layout, model: Model, script: Sequence[str]) -> str:
    """Return the command, and the arguments of `parallelize` for a pipeline."""
    words = ["quorate", "run", "-n", str(layout.workers)]
    words += ["--mesh", layout.mesh] if layout.mesh else []
    words += ["--zero", str(layout.zero)] if layout.shards > 1 else []
    words += ["--strategy", layout.strategy] if layout.strategy else []
    command = shlex.join([*words, *script])
    if not layout.schedule:
        return command
    count = layout.stages * layout.chunks
    arguments = [f'schedule="{layout.schedule}"', f"microbatches={layout.microbatches}"]
    if count <= _NAMED:
        names = ", ".join(json.dumps(name) for name in model.begins(count))
        arguments.append(f"stages=[{names}]")
    return f"{command}\nwith quorate.parallelize(model, {', '.join(arguments)})"


def _show_tried(tried: Sequence[Tried]) -> None:
    best = tried[0].seconds or 0.0
    foreseen = {head: (lambda trial, cell=cell: cell(trial.foreseen)) for head, cell in _COLUMNS}
    foreseen["foreseen"] = foreseen.pop("a step")
    columns: Columns[Tried] = [
        _numbered(tried),
        *((head, foreseen[head]) for head in _LAYOUT),
        ("measured", lambda trial: NOTHING if trial.seconds is None else seconds_in_words(trial.seconds)),
        ("to the best", lambda trial: NOTHING if trial.seconds is None else f"x{trial.seconds / best:.2f}"),
        *((head, foreseen[head]) for head in ("foreseen", "memory", "sent")),
    ]
    show_table(tried, columns, lambda trial: trial is tried[0])
    echo_text(f"First choice, as measured: {tried[0].foreseen.layout.in_words}")
    for trial in tried:
        if trial.why is not None:
            echo_text(f"failed: {trial.foreseen.layout.in_words}: {trial.why}")


def _show_costs(pricing: Pricing, model: Model, steps: Sequence[float]) -> None:
    """Print the costs of the first table's layouts, whose steps take these seconds."""
    for sentence in sentences(pricing):
        echo_text(sentence)
    show_table(list(enumerate((pricing.cost(seconds, model) for seconds in steps), start=1)), columns())


_LAYOUT = ("replicas", "stages", "shards", "tensor", "zero", "schedule", "micro-batches", "strategy")


def _schedule(prediction: Prediction) -> str:
    layout = prediction.layout
    return f"{layout.schedule} x{layout.chunks}" if layout.chunks > 1 else layout.schedule or NOTHING


_COLUMNS: Columns[Prediction] = (
    ("replicas", lambda prediction: str(prediction.layout.replicas)),
    ("stages", lambda prediction: str(prediction.layout.stages)),
    ("shards", lambda prediction: str(prediction.layout.shards)),
    ("tensor", lambda prediction: str(prediction.layout.tensor)),
    ("zero", lambda prediction: str(prediction.layout.zero or NOTHING)),
    ("schedule", _schedule),
    ("micro-batches", lambda prediction: str(prediction.layout.microbatches)),
    ("strategy", lambda prediction: prediction.layout.strategy or NOTHING),
    ("a step", lambda prediction: seconds_in_words(prediction.seconds)),
    ("memory", lambda prediction: bytes_in_words(prediction.memory)),
    ("sent", lambda prediction: bytes_in_words(prediction.sent)),
    ("bubble", lambda prediction: share_in_words(prediction.bubble) if prediction.layout.schedule else NOTHING),
)


def _numbered(rows: Sequence[_R]) -> tuple[str, Callable[[_R], str]]:
    """Return the column of ranks, 1 for the first of `rows`."""
    ranks = {id(row): str(rank) for rank, row in enumerate(rows, start=1)}
    return "#", lambda row: ranks[id(row)]


def _lines(losers: Sequence[Loser]) -> Iterator[str]:
    """Yield one line for each reason why layouts lose."""
    grouped: dict[str, list[Loser]] = {}
    for loser in losers:
        grouped.setdefault(loser.why, []).append(loser)
    lines = [f"lost: {', '.join(loser.what for loser in group)}: {why}" for why, group in grouped.items()]
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"lost: {len(lines) - _SHOWN} more, are in --json"
