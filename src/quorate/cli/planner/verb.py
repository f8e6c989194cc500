"""`quorate plan`: which layout of a model over workers is the fastest that fits, and why the others lose."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from quorate.cli.options import ARGUMENTS, NUMBER, RATE, SIZE, TIME, N, argument, command, flags_given, option
from quorate.cli.planner.prices import pricing_from
from quorate.cli.planner.strategies import Conditions, StrategyOptions, choices_of, conditions_from
from quorate.cli.scripts import check_script
from quorate.cli.simulate.plan import numbers_from
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import bytes_from, bytes_per_second_from, count_from, seconds_from
from quorate.core.resources import available_memory, usable_cores
from quorate.core.telling import tell
from quorate.planning.choice import ranked as by_objective
from quorate.report.wording import bytes_in_words, counted, listed

if TYPE_CHECKING:
    from quorate.cli.planner.prices import Pricing
    from quorate.cli.planner.table import Searched
    from quorate.launch.warm.run_server import RunServer
    from quorate.planning.cluster import Cluster, Way
    from quorate.planning.model import Model

_MOST_WORKERS = 1 << 16
_USUAL_LATENCY = 50e-6
_USUAL_EFFICIENCY = 0.5
_PREFIX = "gpt:"
_OF_SIZES = ("flops", "efficiency", "memory_bandwidth", "attention")
_TOLD_EVERY = 5000
_RANKED = 1000
"""Layouts from which strategies and `--try` choose."""
_AS_FAST = 0.05
"""Layouts of a script whose steps differ by less are as fast as each other: what was timed is not more exact."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(StrategyOptions):
    """The options of `quorate plan`."""

    model: str = argument("A training script, or gpt:hidden=H,layers=L,heads=A,sequence=S,vocabulary=V.", "MODEL")
    arguments: list[str] = argument(ARGUMENTS, "[ARGS]...", default=[])
    workers: str | None = option(
        "Number of workers, or several numbers to choose from: 8,16,32.", "-n", "--workers", metavar="N,…"
    )
    memory: int | None = option("Memory of each worker, such as 80GB.", reads=bytes_from, metavar=SIZE)
    bandwidth: float | None = option(
        "Bandwidth of a host's port, or of a worker's without --per-host, such as 10Gbit.",
        reads=bytes_per_second_from,
        metavar=RATE,
    )
    latency: float | None = option("Latency of a message there (default: 50us).", reads=seconds_from, metavar=TIME)
    per_host: int | None = option("Workers of each host, which share its port.", metavar=N)
    host_network: str | None = option(
        "With --per-host: latency and bandwidth between workers of a host.", metavar="LATENCY:BANDWIDTH"
    )
    ways: list[str] = option(
        "Latency and bandwidth between workers of a host along AXIS, where its bytes go another way; may be repeated.",
        "--axis-network",
        default=[],
        metavar="AXIS=LATENCY:BANDWIDTH",
    )
    cores: int | None = option(
        "How many workers of a host compute at the same time, if they share cores (default: all).", metavar=N
    )
    batch: int | None = option(
        "Examples per step over all workers (default: the script's batch times the workers).", metavar=N
    )
    flops: float | None = option(
        "With gpt: operations per second of a worker, such as 312T.", reads=count_from, metavar=NUMBER
    )
    efficiency: float | None = option(
        "With gpt: the share of them that matrix products reach (default: 0.5).", metavar=NUMBER
    )
    memory_bandwidth: float | None = option(
        "With gpt: bandwidth of a worker's memory, such as 2000GB (default: no limit).",
        reads=bytes_per_second_from,
        metavar=RATE,
    )
    attention: str | None = option(
        "With gpt: a pattern of sparse attention, such as longformer:width=3; a script is measured with its own.",
        metavar="PATTERN",
    )
    limits: list[str] = option(
        "The largest size of an axis; may be repeated.", "--max-axis", default=[], metavar="AXIS=N"
    )
    no_overlap: bool = option("Assume that exchange and computation do not overlap.", default=False)
    tries: int | None = option(
        "Run N of the most promising layouts of a script on this machine, and put the fastest first.",
        "--try",
        metavar=N,
    )
    as_json: bool = option("Print one JSON object.", "--json", default=False)


@command
def plan(context: typer.Context, options: PlanOptions) -> int:
    """Find the best layouts and strategies of MODEL over the workers that fit into memory, and say why others lose.

    A layout combines replicas, pipeline stages, shards, tensor parallelism, ZeRO, schedules and micro-batches. A script
    is run by one worker for some seconds, in which its blocks are timed; gpt: needs sizes only. Strategies and codecs
    between replicas are simulated. The order is that of --objective: time to the target, cost or energy. With --try N
    the most promising layouts are run on this machine, in turns, and correct what was predicted.
    """
    from quorate.launch.warm.run_server import RunServer

    with RunServer() as server:
        return _planned(options, server)


def _planned(options: PlanOptions, server: RunServer) -> int:
    from quorate.planning.layouts import AXES

    conditions = conditions_from(options)
    _check_given(options, conditions)
    numbers = numbers_from("--workers", options.workers or "", _MOST_WORKERS, "workers are planned for")
    clusters = [_cluster(options, number, conditions) for number in numbers]
    if options.tries is not None:
        _check_tries(options, clusters)
    if options.batch is not None and options.batch < 1:
        raise ConfigurationError(f"--batch {options.batch}: a step needs at least one example")
    longest = {}
    for text in options.limits:
        name, _, number = text.partition("=")
        if name not in AXES or not number.isdecimal() or not 0 < int(number) <= _MOST_WORKERS:
            raise ConfigurationError(
                f'--max-axis "{text}": write AXIS=N, where AXIS is one of {listed(AXES)} and N is at least 1'
            )
        longest[name] = int(number)
    pricings = [pricing_from(options, cluster, _sequence(options)) for cluster in clusters]
    if conditions.objective != "time" and pricings[0] is None:
        raise ConfigurationError(f"--objective {conditions.objective} needs --examples, the length of the training")
    if options.model.startswith(_PREFIX):
        models, examples = [_by_sizes(options, cluster.workers) for cluster in clusters], 0
    else:
        models, examples = _by_script(options, clusters, longest, server)
    plans = [
        _searched(model, cluster, longest, conditions, pricing, is_timed=examples > 0)
        for model, cluster, pricing in zip(models, clusters, pricings, strict=True)
    ]
    plans = [searched for searched in plans if searched.plan.best] or plans[:1]
    if not plans[0].plan.best:
        smallest = plans[0].plan.smallest
        assert smallest is not None
        raise ConfigurationError(
            f"nothing fits: the smallest, {smallest.layout.in_words}, needs "
            f"{bytes_in_words(smallest.memory)}, and a worker has {bytes_in_words(clusters[0].memory)}"
        )
    as_good = _AS_FAST if examples else 0.0
    choices = [choice for searched in plans for choice in searched.choices]
    ranked = by_objective(choices, conditions.objective, as_good)
    from quorate.cli.planner.table import Shown, as_json, show

    tried = None
    if options.tries is not None:
        from quorate.cli.planner.trials import tries
        from quorate.planning.tries import corrected

        tried = tries(server, ranked, options.tries, options.model, options.arguments, models[0], examples)
        ranked = by_objective(corrected(ranked, tried), conditions.objective, 0.0)
    shown = Shown(
        searched=plans,
        ranked=ranked,
        tried=tried,
        conditions=conditions,
        examples=None if pricings[0] is None else pricings[0].examples,
        script=[options.model, *options.arguments] if examples else (),
        is_timed=examples > 0,
    )
    if options.as_json:
        typer.echo(json.dumps(as_json(shown), indent=2, ensure_ascii=False))
    else:
        show(shown)
    return 0


def _check_given(options: PlanOptions, conditions: Conditions) -> None:
    """Raise `ConfigurationError` where an option is missing that every plan needs."""
    bandwidth = options.bandwidth if conditions.link is None else conditions.link[1]
    needed = {
        "-n 8 (the number of workers)": options.workers,
        "--memory 24GB (of a worker)": options.memory,
        "--bandwidth 10Gbit (of the network; quorate bench measures it)": bandwidth,
    }
    missing = [example for example, value in needed.items() if value is None]
    if missing:
        raise ConfigurationError(f"quorate plan needs {listed(missing)}, with values of your own")


def _searched(
    model: Model, cluster: Cluster, longest: Mapping[str, int], conditions: Conditions, pricing: Pricing | None,
    *, is_timed: bool,
) -> Searched:  # fmt: skip
    """Return the layouts for one number of workers, with strategies between their replicas."""
    from quorate.cli.planner.table import Searched
    from quorate.planning.search import plan as search

    tell(f"quorate: looking for layouts of {model.name} over {cluster.workers} workers\n")

    def begins(number: int) -> None:
        if number % _TOLD_EVERY == 0:
            tell(f"quorate: {number:,} layouts\n")

    layout_plan = search(
        model, cluster, longest=dict(longest), best=_RANKED, as_fast=_AS_FAST if is_timed else 0.0, begins=begins
    )
    choices, refused = choices_of(layout_plan.best, model, cluster, conditions, pricing)
    return Searched(model=model, cluster=cluster, plan=layout_plan, choices=choices, refused=refused, pricing=pricing)


def _check_tries(options: PlanOptions, clusters: Sequence[Cluster]) -> None:
    """Raise `ConfigurationError` where this machine cannot run the workers of the plan."""
    count, workers = options.tries, clusters[0].workers
    assert count is not None and options.memory is not None
    if len(clusters) > 1:
        raise ConfigurationError("--try runs layouts of one number of workers; give one to --workers")
    if count < 1:
        raise ConfigurationError(f"--try {count}: at least one layout is tried")
    if options.model.startswith(_PREFIX):
        raise ConfigurationError("--try runs a script, and gpt: is none; leave --try out")
    if options.per_host is not None:
        raise ConfigurationError(
            "--try runs the layouts on this machine, and --per-host plans for several hosts; leave one of them out"
        )
    cores = usable_cores()
    if options.cores is not None and options.cores != cores:
        raise ConfigurationError(
            f"--try runs the layouts on this machine, which has {counted(cores, 'core')}, and the plan is for "
            f"--cores {options.cores}"
        )
    if workers > cores and options.cores is None:
        raise ConfigurationError(
            f"--try: {workers} workers do not fit on this machine's {counted(cores, 'core')}; plan for fewer workers, "
            f"or say --cores {cores} if they are to share them"
        )
    _, here = available_memory()
    if workers * options.memory > here:
        raise ConfigurationError(
            f"--try: {workers} workers of {bytes_in_words(options.memory)} need more memory than this machine's "
            f"{bytes_in_words(here)}; give each worker at most {bytes_in_words(here / workers)}"
        )


def _cluster(options: PlanOptions, workers: int, conditions: Conditions) -> Cluster:
    from quorate.planning.cluster import Cluster

    recorded = None if options.bandwidth is not None else conditions.link
    usual = _USUAL_LATENCY if recorded is None else recorded[0]
    port = options.bandwidth if recorded is None else recorded[1]
    assert options.memory is not None and port is not None
    if (options.per_host is None) != (options.host_network is None):
        raise ConfigurationError(
            "--per-host and --host-network must be given together: workers of a host, and the network between them"
        )
    inside = (0.0, 0.0)
    if options.per_host is not None and options.host_network is not None:
        latency, colon, bandwidth = options.host_network.partition(":")
        if options.per_host < 1 or not colon:
            raise ConfigurationError(
                "write --per-host 8 --host-network 5us:300GB: at least one worker, latency and bandwidth"
            )
        inside = seconds_from(latency, options.host_network), bytes_per_second_from(bandwidth)
    if options.cores is not None and options.cores < 1:
        raise ConfigurationError(f"--cores {options.cores}: a host needs at least one core")
    return Cluster(
        workers=workers,
        memory=options.memory,
        bandwidth=port,
        latency=usual if options.latency is None else options.latency,
        per_host=options.per_host or 0,
        inside_latency=inside[0],
        inside_bandwidth=inside[1],
        cores=options.cores or 0,
        overlaps=not options.no_overlap,
        ways=dict(map(_way_from, options.ways)),
    )


def _way_from(text: str) -> tuple[str, Way]:
    """Return the axis and the way of its bytes in `tensor=30us:20GB`."""
    from quorate.planning.cluster import Way
    from quorate.planning.layouts import AXES

    axis, _, network = text.partition("=")
    latency, colon, bandwidth = network.partition(":")
    if axis not in AXES or not colon:
        raise ConfigurationError(
            f'--axis-network "{text}": write AXIS=LATENCY:BANDWIDTH, such as tensor=30us:20GB, where AXIS is one of '
            f"{listed(AXES)}"
        )
    way = Way(seconds_from(latency, text), bytes_per_second_from(bandwidth))
    if not way.bandwidth > 0:
        raise ConfigurationError(f'--axis-network "{text}": the bandwidth must be above 0')
    return axis, way


def _sequence(options: PlanOptions) -> int:
    """Return the tokens of an example of `gpt:`; 0 for a script."""
    from quorate.planning.gpt import transformer_from

    return transformer_from(options.model).sequence if options.model.startswith(_PREFIX) else 0


def _by_sizes(options: PlanOptions, workers: int) -> Model:
    from quorate.planning.gpt import Speed, model_of, transformer_from

    sizes = transformer_from(options.model, options.attention)
    if options.flops is None or options.batch is None:
        raise ConfigurationError(
            "gpt: needs --flops, operations a second of a worker (312T), and --batch, sequences of a step"
        )
    if options.arguments:
        raise ConfigurationError(f'gpt: is not a script, and takes no "{options.arguments[0]}"')
    efficiency = _USUAL_EFFICIENCY if options.efficiency is None else options.efficiency
    if not 0 < efficiency <= 1:
        raise ConfigurationError(f"--efficiency {efficiency:g}: it must be a share above 0 and at most 1")
    if not options.flops > 0:
        raise ConfigurationError("--flops: the operations per second must be above 0")
    speed = Speed(flops=options.flops, efficiency=efficiency, memory_bandwidth=options.memory_bandwidth or 0.0)
    return model_of(sizes, options.batch, speed, workers)


def _by_script(
    options: PlanOptions, clusters: Sequence[Cluster], longest: Mapping[str, int], server: RunServer
) -> tuple[list[Model], int]:
    """Return the model for each number of workers, and the examples of a batch of the script."""
    from quorate.cli.planner.trials import timed
    from quorate.planning.measured import TIMED_SECONDS, model_from

    only = flags_given(options, *_OF_SIZES)
    if only:
        raise ConfigurationError(f"{listed(only)} can be given with gpt: only; the blocks of a script are timed")
    check_script(options.model)
    tell(f"quorate: running {options.model} alone, {TIMED_SECONDS:g} s of its steps\n")
    most = max(cluster.workers for cluster in clusters)
    axes = [axis for axis in ("shards", "tensor") if longest.get(axis, most) > 1]
    here = options.per_host or most
    at_once = min(options.cores or 1, here)
    crowd = here / options.cores if options.cores else 1.0
    answer = timed(options.model, options.arguments, axes, at_once, crowd, server=server)
    models = [model_from(answer, options.batch, cluster.workers) for cluster in clusters]
    return models, max(1, answer["times"]["examples"])
