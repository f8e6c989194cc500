"""The output of `quorate plan`: a table of the best layouts, and lines about the others."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import typer

from quorate.cli.planner.prices import Pricing
from quorate.cli.planner.strategies import Conditions
from quorate.cli.simulate.results import NOTHING, Columns
from quorate.cli.simulate.results import show as show_table
from quorate.cli.tables import echo_text
from quorate.planning.choice import Choice, may_need
from quorate.planning.cluster import Cluster
from quorate.planning.layouts import USUAL, Layout
from quorate.planning.model import Model
from quorate.planning.money import DAY, Cost
from quorate.planning.prediction import Prediction
from quorate.planning.search import Loser, Plan
from quorate.planning.search import as_json as of_one
from quorate.planning.tries import Tried
from quorate.report.wording import bytes_in_words, counted, listed, number_in_words, seconds_in_words, share_in_words

_R = TypeVar("_R")

_BEST = 5
"""Rows of a table."""
_FASTER = 0.99
"""A strategy is faster if its step takes less than this share."""
_NAMED = 16
"""Stages whose beginnings are listed."""
_SHOWN = 24
"""Lines about layouts that lose."""
_FROM_DAYS, _FROM_YEARS = 2 * DAY, 2 * 365.25 * DAY


@dataclass(frozen=True, kw_only=True)
class Searched:
    """The layouts of one number of workers, with strategies between replicas."""

    model: Model
    cluster: Cluster
    plan: Plan
    choices: Sequence[Choice]
    refused: Mapping[str, str]
    """By strategy, why it does not fit."""
    pricing: Pricing | None


@dataclass(frozen=True, kw_only=True)
class Shown:
    """All that is printed."""

    searched: Sequence[Searched]
    ranked: Sequence[Choice]
    """The best known first, then those of which the learning was not measured."""
    tried: Sequence[Tried] | None
    """Layouts that were run, the fastest first."""
    conditions: Conditions
    examples: float | None
    """Examples of the training; None if it was not said how long it is."""
    script: Sequence[str]
    """The script with its arguments; empty for `gpt:`."""
    is_timed: bool

    @property
    def tried_layouts(self) -> set[Layout]:
        """Layouts that were measured."""
        return {trial.foreseen.layout for trial in self.tried or () if trial.seconds is not None}

    @property
    def first(self) -> Choice:
        """The first choice: of the tried ones where there are any."""
        tried = [choice for choice in self.ranked if choice.prediction.layout in self.tried_layouts]
        return (tried or list(self.ranked))[0]


def as_json(shown: Shown) -> dict[str, Any]:
    """Return the plan as JSON."""
    first = shown.searched[0]
    conditions, pricing = shown.conditions, first.pricing
    runs = [
        of_one(trial.foreseen)
        | {"measured": trial.seconds, "taken": trial.taken, "steps": trial.steps, "turns": list(trial.turns)}
        | {"failed": trial.why}
        for trial in shown.tried or ()
    ]
    return {
        "model": first.model.name,
        "numbers": first.model.numbers,
        "batch": first.model.batch,
        "cluster": asdict(first.cluster),
        "looked_at": sum(searched.plan.looked_at for searched in shown.searched),
        "objective": conditions.objective,
        "critical_batch": conditions.critical,
        "learned": dict(conditions.learned),
        "best": [_choice_as_json(choice, shown) for choice in _best(shown.ranked)],
        "unmeasured": [_choice_as_json(choice, shown) for choice in _unmeasured(shown)],
        "lost": [asdict(loser) for searched in shown.searched for loser in searched.plan.losers],
        "refused": {name: why for searched in shown.searched for name, why in searched.refused.items()},
        **({} if shown.tried is None else {"tried": runs}),
        **({} if pricing is None else {"pricing": pricing.as_json()}),
    }


def _choice_as_json(choice: Choice, shown: Shown) -> dict[str, Any]:
    examples = shown.examples
    names = ("batch", "learning", "passes", "noise", "goodput", "staleness", "contributors")
    same = {name: getattr(choice, name) for name in names}
    return (
        of_one(choice.prediction)
        | same
        | {
            "to_target": None if examples is None else choice.to_target(examples),
            "may_need": may_need(choice, shown.first, shown.conditions.objective),
            **({} if choice.cost is None else {"cost": asdict(choice.cost)}),
        }
    )


def show(shown: Shown) -> None:
    """Print it; layouts that were tried are in a table of their own, before the others. Of a script also how it is
    started in the first layout."""
    first = shown.searched[0]
    counts = listed([f"{searched.cluster.workers:,}" for searched in shown.searched])
    workers = f"{counts} workers" if counts != "1" else "1 worker"
    looked_at = sum(searched.plan.looked_at for searched in shown.searched)
    echo_text(
        f"{first.model.name}, {first.model.numbers:,} parameters, {counted(first.model.batch, 'example')} a step, over "
        f"{workers} of {bytes_in_words(first.cluster.memory)}; {counted(looked_at, 'layout')} looked at"
    )
    if shown.tried is not None:
        _show_tried(shown.tried)
    best = _best(shown.ranked)
    if shown.tried is not None and best:
        typer.echo("With the steps that were measured, and others corrected by them:")
    if best:
        show_table(best, _columns(shown, best))
    unmeasured = _unmeasured(shown)
    if unmeasured:
        echo_text(
            "Strategies whose learning was not measured, and how many times the passes of the first choice they may "
            "need to be as good:"
        )
        show_table(unmeasured, [*_columns(shown, unmeasured), _may_need(shown)])
    pricing = first.pricing
    if pricing is not None and any(choice.cost is not None for choice in best):
        for sentence in list(_cost_sentences(pricing))[len(shown.searched) > 1 :]:  # the first says how many hosts
            echo_text(sentence)
        show_table([(place, choice.cost) for place, choice in enumerate(best, start=1) if choice.cost], _COST_COLUMNS)
    for line in _lines([loser for searched in shown.searched for loser in searched.plan.losers]):
        echo_text(line)
    choice = shown.first
    if shown.script:
        model = next(searched.model for searched in shown.searched if searched.model.batch == choice.batch)
        typer.echo(f"\nThe first choice: {how_to_run(choice.prediction.layout, model, shown.script)}")
    typer.echo("")
    for sentence in _origins(shown):
        echo_text(sentence)


def _best(ranked: Sequence[Choice]) -> list[Choice]:
    """Return the best with known passes; one for each mesh, and for each strategy.

    A strategy that does the same as all-reduce, and is not faster, is left out.
    """
    best: dict[Any, Choice] = {}
    usual = {
        choice.prediction.layout.mesh: choice.prediction.seconds
        for choice in reversed(ranked)
        if choice.prediction.layout.strategy == USUAL
    }
    for choice in ranked:
        layout = choice.prediction.layout
        is_same = choice.learning == "exact" and layout.strategy not in ("", USUAL)
        if choice.is_known and not (is_same and choice.prediction.seconds > _FASTER * usual.get(layout.mesh, math.inf)):
            best.setdefault((layout.mesh, layout.strategy), choice)
    return list(best.values())[:_BEST]


def _unmeasured(shown: Shown) -> list[Choice]:
    """Return those that would be better than the first choice if they learned as well; the best of each strategy."""
    best: dict[Any, Choice] = {}
    for choice in shown.ranked:
        needs = may_need(choice, shown.first, shown.conditions.objective)
        if (needs is not None and needs > 1.005) or not shown.first.is_known:
            best.setdefault(choice.prediction.layout.strategy, choice)
    return list(best.values())[:_BEST]


def _columns(shown: Shown, rows: Sequence[Choice]) -> Columns[Choice]:
    """Return the columns; axes that are 1 in all rows are left out."""
    several = len(shown.searched) > 1
    examples = shown.examples
    of_layout = [
        (head, lambda choice, cell=cell: cell(choice.prediction))
        for head, cell in _COLUMNS
        if head in _LAYOUT and (head not in _AXES or any(cell(row.prediction) != "1" for row in rows))
    ]
    of_step = [(head, lambda choice, cell=cell: cell(choice.prediction)) for head, cell in _COLUMNS if head in _STEP]
    return [
        _numbered(rows),
        *([("workers", lambda choice: f"{choice.prediction.layout.workers:,}")] if several else []),
        *of_layout,
        *of_step[:1],
        ("passes", _passes),
        ("learning", lambda choice: choice.learning if choice.learning == "measured" else NOTHING),
        ("goodput", lambda choice: NOTHING if choice.goodput is None else share_in_words(choice.goodput)),
        (
            "to the target",
            lambda choice: NOTHING if examples is None else _long_in_words(choice.to_target(examples)),
        ),
        *of_step[1:],
        ("stale", lambda choice: f"{choice.staleness:g}" if choice.staleness else NOTHING),
    ]


def _passes(choice: Choice) -> str:
    passes = choice.passes * choice.noise
    return NOTHING if passes == 1.0 else f"{passes:.3g}"


def _may_need(shown: Shown) -> tuple[str, Callable[[Choice], str]]:
    def words(choice: Choice) -> str:
        needs = may_need(choice, shown.first, shown.conditions.objective)
        return NOTHING if needs is None else f"x{needs:.2f}"

    return "may need", words


def _origins(shown: Shown) -> Iterator[str]:
    """Yield where the figures are from, and what was not measured."""
    conditions = shown.conditions
    yield (
        "Steps are predicted, not measured."
        if shown.tried is None
        else ("Steps in the first table are measured, all others are predicted.")
    )
    seconds = "Seconds of passes are timed on this machine" if shown.is_timed else "Seconds of passes are from sizes"
    if conditions.like:
        late = f"stragglers are those recorded in {conditions.like}"
    elif conditions.variation.imbalance:
        late = f"stragglers are as given ({conditions.variation.imbalance})"
    else:
        late = "stragglers are as the timed steps vary" if shown.is_timed else "nobody is late"
    network = f"the network is that of {conditions.like}" if conditions.link else "the network is as given"
    critical = "not known, so all batches count alike"
    if conditions.critical is not None:
        origin = f"recorded in {conditions.like}" if conditions.critical_is_recorded else "given"
        critical = f"{conditions.critical:,.0f} examples ({origin})"
    yield f"{seconds}; {late}; {network}. Critical batch: {critical}."
    if not conditions.learned:
        yield (
            "How well strategies learn was not measured: all that are not all-reduce are listed apart. "
            "quorate compare --target measures it; pass the comparison as --learned."
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
    foreseen = {head: (lambda trial, cell=cell: cell(trial.foreseen)) for head, cell in _COLUMNS}
    foreseen["foreseen"] = foreseen.pop("a step")
    columns: Columns[Tried] = [
        _numbered(tried),
        *((head, foreseen[head]) for head in _LAYOUT),
        ("measured", lambda trial: NOTHING if trial.seconds is None else seconds_in_words(trial.seconds)),
        ("to the best", lambda trial: NOTHING if trial.seconds is None else _over(trial, tried[0])),
        *((head, foreseen[head]) for head in ("foreseen", "memory", "sent")),
    ]
    show_table(tried, columns, lambda trial: trial is tried[0])
    echo_text(f"The fastest, as measured: {tried[0].foreseen.layout.in_words}")
    for trial in tried:
        if trial.why is not None:
            echo_text(f"failed: {trial.foreseen.layout.in_words}: {trial.why}")


def _over(trial: Tried, best: Tried) -> str:
    """Return `x1.12 (1.08 to 1.15)`: ratios of pairs."""
    if trial is best or not trial.turns:
        return "x1.00"
    middle, low, high = trial.over(best)
    return f"x{middle:.2f} ({low:.2f} to {high:.2f})"


_AXES = ("replicas", "stages", "shards", "tensor", "micro-batches")
_STEP = ("a step", "memory", "sent", "bubble")
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


_COST_COLUMNS: Columns[tuple[int, Cost]] = (
    ("#", lambda row: str(row[0])),
    ("the training", lambda row: _long_in_words(row[1].seconds)),
    ("rented", lambda row: _money(row[1].rented)),
    ("bought", lambda row: _money(row[1].bought)),
    ("rented, each PFLOP", lambda row: _money(row[1].each_petaflop(row[1].rented))),
    ("bought, each PFLOP", lambda row: _money(row[1].each_petaflop(row[1].bought))),
    ("energy", lambda row: _amount(row[1].kwh, "kWh")),
    ("CO2", lambda row: _amount(row[1].carbon, "kg")),
)
"""Columns of a table of places and costs; `show_table` leaves out those without figures."""


def _long_in_words(seconds: float) -> str:
    """`33.9 days`, `288 years`; shorter times as elsewhere."""
    if seconds >= _FROM_YEARS:
        return f"{number_in_words(seconds / (365.25 * DAY))} years"
    return f"{number_in_words(seconds / DAY)} days" if seconds >= _FROM_DAYS else seconds_in_words(seconds)


def _money(amount: float | None) -> str:
    return NOTHING if amount is None else number_in_words(amount)


def _amount(amount: float | None, unit: str) -> str:
    return NOTHING if amount is None else f"{number_in_words(amount)} {unit}"


def _cost_sentences(pricing: Pricing) -> Iterator[str]:
    """Yield whose prices they are, and whether to buy or to rent."""
    host, occupancy = pricing.host, pricing.occupancy
    kind = f"a host of {counted(pricing.workers, 'worker')}"
    yield f"Costs of {number_in_words(pricing.examples)} examples on {counted(pricing.hosts, 'host')}; each is {kind}."
    if host.price:
        yield f"Rented: {host.price:,.6g} for an hour of a host, only while it is used."
    if host.buy:
        upkeep = f", and {host.upkeep:,.6g} a year" if host.upkeep else ""
        yield (
            f"Bought: {host.buy:,.6g} for a host, over {host.years:g} years{upkeep}; it computes "
            f"{100 * occupancy:.3g}% of all hours."
        )
    if host.price and host.buy:
        even = host.even_occupancy
        if even is None:
            yield "Renting is cheaper, even of hosts that compute at all hours."
        else:
            choice = "buy" if occupancy >= even else "rent"
            yield (f"Buying is cheaper from an occupancy of {100 * even:.1f}% on; at {100 * occupancy:.3g}%, {choice}.")
