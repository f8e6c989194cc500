"""`quorate plan`: which layout of a model over workers is the fastest that fits, and why the others lose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from quorate.cli.names import known_as
from quorate.cli.options import ARGUMENTS, NUMBER, RATE, SIZE, TIME, N, argument, command, flags_given, option
from quorate.cli.planner.prices import PriceOptions, pricing_from
from quorate.cli.scripts import check_script
from quorate.core.errors import ConfigurationError, unknown
from quorate.core.quantities import bytes_from, bytes_per_second_from, count_from, seconds_from
from quorate.core.resources import available_memory, usable_cores
from quorate.core.telling import tell
from quorate.report.wording import bytes_in_words, counted, listed

if TYPE_CHECKING:
    from quorate.launch.warm.run_server import RunServer
    from quorate.planning.cluster import Cluster, Way
    from quorate.planning.model import Model

_MOST_WORKERS = 1 << 16
_USUAL_LATENCY = 50e-6
_USUAL_EFFICIENCY = 0.5
_PREFIX = "gpt:"
_OF_SIZES = ("flops", "efficiency", "memory_bandwidth")
_TOLD_EVERY = 5000
_SHOWN, _RANKED = 5, 1000
"""Layouts in the table, and those from which `--try` chooses."""
_AS_FAST = 0.05
"""Layouts of a script whose steps differ by less are as fast as each other: what was timed is not more exact."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PriceOptions):
    """The options of `quorate plan`."""

    model: str = argument("A training script, or gpt:hidden=H,layers=L,heads=A,sequence=S,vocabulary=V.", "MODEL")
    arguments: list[str] = argument(ARGUMENTS, "[ARGS]...", default=[])
    workers: int | None = option("Number of workers.", "-n", "--workers", metavar=N)
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
    strategies: list[str] = option(
        "Between replicas: all-reduce, quorum, local-sgd, d-psgd; may be repeated (default: all four).",
        "--strategy",
        default=[],
        metavar="STRATEGY",
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
    """Find the five fastest layouts of MODEL over the workers that fit into memory, and say why others lose.

    A layout combines replicas, pipeline stages, shards, tensor parallelism, ZeRO, schedules, micro-batches and
    strategies. A script is run by one worker for some seconds, in which its blocks are timed; gpt: needs sizes only.
    The rest is predicted by formulas. With --try N the most promising layouts are run on this machine, and the fastest
    of them is the first choice. With --examples and --price, --buy or --power, it says what the training costs.
    """
    from quorate.launch.warm.run_server import RunServer

    with RunServer() as server:
        return _planned(options, server)


def _planned(options: PlanOptions, server: RunServer) -> int:
    from quorate.planning.layouts import AXES, WAYS
    from quorate.planning.search import plan as search

    cluster, batch = _cluster(options), options.batch
    if options.tries is not None:
        _check_tries(options)
    if batch is not None and batch < 1:
        raise ConfigurationError(f"--batch {batch}: a step needs at least one example")
    strategies = [known_as(name, "strategies") for name in options.strategies] or list(WAYS)
    for strategy in strategies:
        if strategy not in WAYS:
            raise ConfigurationError(unknown("strategy that is planned for", strategy, WAYS))
    longest = {}
    for text in options.limits:
        name, _, number = text.partition("=")
        if name not in AXES or not number.isdecimal() or not 0 < int(number) <= _MOST_WORKERS:
            raise ConfigurationError(
                f'--max-axis "{text}": write AXIS=N, where AXIS is one of {listed(AXES)} and N is at least 1'
            )
        longest[name] = int(number)
    pricing = pricing_from(options, cluster, _sequence(options))
    model, examples = (
        (_by_sizes(options), 0) if options.model.startswith(_PREFIX) else _by_script(options, longest, server)
    )
    tell(f"quorate: looking for layouts of {model.name} over {cluster.workers} workers\n")

    def begins(number: int) -> None:
        if number % _TOLD_EVERY == 0:
            tell(f"quorate: {number:,} layouts\n")

    layout_plan = search(
        model,
        cluster,
        ways=strategies,
        longest=longest,
        best=_RANKED,
        as_fast=0.0 if examples == 0 else _AS_FAST,
        begins=begins,
    )
    ranked, layout_plan = layout_plan.best, replace(layout_plan, best=layout_plan.best[:_SHOWN])
    if not layout_plan.best:
        assert layout_plan.smallest is not None
        raise ConfigurationError(
            f"nothing fits: the smallest, {layout_plan.smallest.layout.in_words}, needs "
            f"{bytes_in_words(layout_plan.smallest.memory)}, and a worker has {bytes_in_words(cluster.memory)}"
        )
    from quorate.cli.planner.table import as_json, show

    tried = None
    if options.tries is not None:
        from quorate.cli.planner.trials import tries

        tried = tries(server, ranked, options.tries, options.model, options.arguments, model, examples)
    if options.as_json:
        typer.echo(json.dumps(as_json(model, cluster, layout_plan, tried, pricing), indent=2, ensure_ascii=False))
    else:
        script = [options.model, *options.arguments] if examples else ()
        show(model, cluster, layout_plan, tried, script, pricing)
    return 0


def _check_tries(options: PlanOptions) -> None:
    """Raise `ConfigurationError` where this machine cannot run the workers of the plan."""
    count, workers = options.tries, options.workers
    assert count is not None and workers is not None and options.memory is not None
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


def _cluster(options: PlanOptions) -> Cluster:
    from quorate.planning.cluster import Cluster

    needed = {"--workers": options.workers, "--memory": options.memory, "--bandwidth": options.bandwidth}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise ConfigurationError(f"quorate plan needs {listed(missing)}")
    assert options.workers is not None and options.memory is not None and options.bandwidth is not None
    if not 1 <= options.workers <= _MOST_WORKERS:
        raise ConfigurationError(f"--workers {options.workers}: a plan is for 1 to {_MOST_WORKERS:,} workers")
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
        workers=options.workers,
        memory=options.memory,
        bandwidth=options.bandwidth,
        latency=_USUAL_LATENCY if options.latency is None else options.latency,
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


def _by_sizes(options: PlanOptions) -> Model:
    from quorate.planning.gpt import Speed, model_of, transformer_from

    sizes = transformer_from(options.model)
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
    assert options.workers is not None
    speed = Speed(flops=options.flops, efficiency=efficiency, memory_bandwidth=options.memory_bandwidth or 0.0)
    return model_of(sizes, options.batch, speed, options.workers)


def _by_script(options: PlanOptions, longest: Mapping[str, int], server: RunServer) -> tuple[Model, int]:
    from quorate.cli.planner.trials import timed
    from quorate.planning.measured import TIMED_SECONDS, model_from

    only = flags_given(options, *_OF_SIZES)
    if only:
        raise ConfigurationError(f"{listed(only)} can be given with gpt: only; the blocks of a script are timed")
    check_script(options.model)
    assert options.workers is not None
    tell(f"quorate: running {options.model} alone, {TIMED_SECONDS:g} s of its steps\n")
    axes = [axis for axis in ("shards", "tensor") if longest.get(axis, options.workers) > 1]
    here = options.per_host or options.workers
    at_once = min(options.cores or 1, here)
    crowd = here / options.cores if options.cores else 1.0
    answer = timed(options.model, options.arguments, axes, at_once, crowd, server=server)
    return model_from(answer, options.batch, options.workers), max(1, answer["times"]["examples"])
