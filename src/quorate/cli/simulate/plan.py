"""The options of `quorate simulate`, and its plan, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from quorate.cli.choices import MOST_VIRTUAL, check_seed
from quorate.cli.compare.comparison import arms_from, check_plan, metric_from, subject_from, with_codec
from quorate.cli.config import read_config
from quorate.cli.learned import learned_from
from quorate.cli.listing import registry
from quorate.cli.names import known_as
from quorate.cli.options import CONFIG, DELAYS, NUMBER, PAIR, PRINT_CONFIG, TIME, N, flags_given, option
from quorate.compare.plan import Arm, Comparison
from quorate.core.errors import ConfigurationError, unknown
from quorate.report.wording import counted, listed
from quorate.simulation.codes import cost_from, measured, reduction_in
from quorate.simulation.grid import Grid, SimulatedArm
from quorate.simulation.links import USUAL, links_from
from quorate.simulation.models import times_of
from quorate.wire.virtual import parse_compute

if TYPE_CHECKING:
    from quorate.simulation.calibrated import Calibration


MOST_REAL = 1024
"""Workers whose gradients are computed: all in one process, one after the other."""
_MOST_STEPS, _MOST_PARAMETERS, _MOST_CELLS = 1_000_000, 10**13, 1000
_USUAL = ("all-reduce", "quorum")
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kMB]?)")
_UNITS = {"": 1, "k": 1000, "M": 10**6, "B": 10**9}


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """The options of `quorate simulate`."""

    strategies: list[str] = option(
        "NAME or NAME:key=value,…; may be repeated (default: all-reduce and quorum).",
        "--strategy",
        default=[],
        metavar="STRATEGY",
    )
    codecs: list[str] = option(
        "Simulate each strategy with this codec, or with none; may be repeated.",
        "--codec", default=[], metavar="CODEC",
    )  # fmt: skip
    sizes: str | None = option(
        "How many workers, or several numbers: 8,64,512 (default: 8).", "-n", "--workers", metavar="N,…"
    )
    steps: int | None = option("Steps of the fastest worker (default: 100).", metavar=N)
    compute: str | None = option("Time of a step: constant:10ms, lognormal:10ms:0.5, trace:FILE.", metavar=TIME)
    pace: str | None = option("The shortest time a step may take: 280ms, trace:NAME.", "--min-step-time", metavar=TIME)
    imbalances: list[str] = option(
        "Who is late: one-of:200ms, rank:3:x2, none; may be repeated.", "--imbalance", default=[], metavar=DELAYS
    )
    networks: list[str] = option(
        "The network, with :mesh, :halving or :per-host=8; may be repeated (default: 50us:10Gbit).",
        "--network",
        default=[],
        metavar="LATENCY:BANDWIDTH",
    )
    coding: str | None = option(
        "Numbers per second a worker encodes and decodes with compress: 200M:1B, or none (default: measured here).",
        metavar="ENCODE:DECODE",
    )
    parameters: str | None = option("Number of parameters, such as 25M (default: 1M).", metavar=N)
    batch: int | None = option("Examples per worker and step.", metavar=N)
    seed: int | None = option("The seed of everything drawn at random (default: 0).", metavar=N)
    failures: str | None = option(
        "How workers fail, for goodput and uptime: mtbf=1y,repair=30min,restart=5min,…", metavar="FAILURES"
    )
    recovery: str | None = option(
        "With --failures: how training recovers: detect=10s,reshard=20s,slice=64,…",
        metavar="RECOVERY",
        needs="--failures",
    )
    learners: str | None = option(
        "With --failures: number of learners, or several numbers: 1,2,8 (default: 8).",
        metavar="N,…",
        needs="--failures",
    )
    seconds: str | None = option(
        "With --failures: how long to simulate: 180 (seconds), 6h, 30d (default: 30d).",
        metavar=TIME,
        needs="--failures",
    )
    like: list[str] = option(
        "Take times from the records of a run; further runs give the cost of exchanges.", metavar="RUN", default=[]
    )
    check: bool = option(
        "With --like: exit with status 1 unless the run itself is predicted within 10%.", default=False
    )
    real: str | None = option("Train this workload with real gradients, in the virtual world.", metavar="WORKLOAD")
    epochs: float | None = option("With --real: epochs, over all workers.", metavar=NUMBER, needs="--real WORKLOAD")
    workload_settings: list[str] = option(
        "With --real: a setting of the workload; may be repeated.",
        "--workload-set",
        default=[],
        metavar=PAIR,
        needs="--real WORKLOAD",
    )
    records: bool = option("Only predict the published ResNet-50 ImageNet records, from data sheets.", default=False)
    name: str | None = option("Keep figures and picture in runs/NAME.", metavar="NAME")
    map: str | None = option("Draw which strategy is the best where, into this file.", metavar="FILE.png")
    learned: str | None = option(
        "With --map: a comparison that has measured the examples that strategies need.",
        metavar="COMPARISON", needs="--map",
    )  # fmt: skip
    picture: str | None = option("Write the picture to this file as well.", metavar="FILE.svg")
    config: str | None = option(CONFIG, metavar="FILE", eager=read_config)
    print_config: bool = option(PRINT_CONFIG, default=False)
    dry_run: bool = option("Print what would be simulated, and simulate nothing.", default=False)
    as_json: bool = option("Print simulate.json (with --dry-run, the plan).", "--json", default=False)


@dataclass(frozen=True, kw_only=True)
class SimulationPlan:
    """A checked simulation."""

    asked: SimulateOptions
    grid: Grid
    comparisons: Sequence[Comparison] = ()
    """With real gradients: one for each number of workers, imbalance and network."""
    learned: Mapping[str, float] = field(default_factory=dict)
    """By strategy, the measured passes over the data, over those of the baseline."""
    left_out: Sequence[str] = ()
    """Strategies with codecs that exclude each other."""

    @property
    def title(self) -> str:
        """Strategies and number of workers, in words."""
        workers = listed([f"{count:,}" for count in self.grid.workers])
        is_single = self.grid.workers == (1,)
        return f"{listed([arm.text for arm in self.grid.arms])} with {workers} worker{'' if is_single else 's'}"

    @property
    def about(self) -> str:
        """The choices besides strategies and workers."""
        grid = self.grid
        how = f"real gradients of {self.asked.real}" if self.asked.real else f"times alone, {grid.steps} steps"
        like = f", like {listed(self.asked.like)}" if self.asked.like else ""
        compute = f", compute: {self.asked.compute}" if self.asked.compute else ""
        pace = f", minimum step time: {grid.pace}" if grid.pace else ""
        late = [text or "nobody late" for text in grid.imbalances]
        imbalance = f", imbalance: {listed(late)}" if grid.imbalances != (None,) else ""
        return f"{how}{like}{compute}{pace}{imbalance}, network: {listed([links.text for links in grid.networks])}"

    @property
    def in_words(self) -> str:
        """The plan in one line."""
        return f"{self.title} ({self.about}): {counted(len(list(self.grid.cells())), 'row')}"

    @property
    def as_json(self) -> dict[str, Any]:
        grid, asked = self.grid, self.asked
        return {
            "strategies": [arm.text for arm in grid.arms],
            "workers": list(grid.workers),
            "imbalances": list(grid.imbalances),
            "networks": [links.text for links in grid.networks],
            "steps": grid.steps,
            "parameters": grid.parameters,
            "seed": grid.seed,
            "pace": grid.pace,
            "compute": asked.compute,
            "batch": grid.examples,
            "coding": {
                arm.text: {"encode": arm.cost.encode, "decode": arm.cost.decode, "is_measured": arm.cost.is_measured}
                for arm in grid.arms
                if arm.reduction is not None
            },
            "like": list(asked.like),
            "real": asked.real,
            "rows": len(list(grid.cells())),
        }


def planned(asked: SimulateOptions) -> SimulationPlan:
    """Return the plan. Raises `ConfigurationError` for the first fault."""
    _check(asked)
    check_seed("--seed", asked.seed)
    recorded = _like(asked) if asked.like else ()
    like = recorded[0] if recorded else None
    arms, left_out = _arms(asked, like)
    if like is not None and not asked.strategies and not asked.codecs:
        times = like.times
        arms = (SimulatedArm(text=times.name, strategy=times.name, settings=like.settings, times=times),)
    usual_steps = (100 if asked.map is None else 40) if like is None else like.steps
    grid = Grid(
        arms=arms,
        workers=_workers(asked, like),
        imbalances=tuple(None if text == "none" else text for text in asked.imbalances) or (None,),
        networks=tuple(map(links_from, asked.networks))
        or ((links_from(USUAL if not asked.real else f"{USUAL}:mesh"),) if like is None else (like.links,)),
        steps=_within("--steps", asked.steps, 1, _MOST_STEPS) or usual_steps,
        parameters=parameters_from(asked.parameters) or (10**6 if like is None else like.parameters),
        seed=asked.seed or (0 if like is None or asked.seed == 0 else like.seed),
        pace=asked.pace,
        compute=None if like is not None else parse_compute(asked.compute or "constant:10ms", seed=asked.seed or 0),
        examples=_within("--batch", asked.batch, 1, 2**31) or (None if like is None else like.examples),
        like=like,
        measured={calibration.times.kind: calibration.links for calibration in reversed(recorded)}
        if not asked.networks
        else {},
    )
    _check_cells(grid)
    grid.check()
    learned = {} if asked.learned is None else learned_from(asked.learned)
    plan = SimulationPlan(asked=asked, grid=grid, learned=learned, left_out=left_out)
    return replace(plan, comparisons=comparisons_of(asked, grid)) if asked.real else plan


def _arms(asked: SimulateOptions, like: Calibration | None) -> tuple[tuple[SimulatedArm, ...], list[str]]:
    """Return the strategies, with each codec where there are any, and those combinations that exclude each other."""
    arms, left_out = [], list[str]()
    for text in asked.strategies or (_USUAL if like is None else [like.times.name]):
        for codec in asked.codecs or ["none"]:
            (arm,) = arms_from([with_codec(text, codec)], None)
            try:
                arms.append(_arm(asked, arm))
            except ConfigurationError:
                if codec == "none" or known_as(codec, "codecs") not in registry("codecs"):
                    raise
                left_out.append(arm.name)
    return tuple(arms), left_out


def comparisons_of(asked: SimulateOptions, grid: Grid) -> tuple[Comparison, ...]:
    """Return a checked comparison for each number of workers, imbalance and network. Raises `ConfigurationError`."""
    assert asked.real is not None
    subject = subject_from(asked.real, (), asked.workload_settings)
    wrong = next((text for text in asked.networks if not text.endswith(":mesh")), None)
    if wrong is not None:
        raise ConfigurationError(
            f'--network "{wrong}": in the virtual world every two workers have a link of their own; write it as '
            "LATENCY:BANDWIDTH:mesh, such as 50us:10Gbit:mesh"
        )
    comparisons = [
        Comparison(
            subject=subject,
            metric=metric_from(subject, None, None),
            workers=workers,
            world="virtual",
            arms=[Arm(name=arm.text, strategy=arm.strategy, settings=arm.settings) for arm in grid.arms],
            seeds=(grid.seed,),
            epochs=asked.epochs,
            imbalance=imbalance,
            pace=grid.pace,
            compute=asked.compute,
            latency=links.latency,
            bandwidth=links.bandwidth,
            batch=asked.batch,
            evaluations=1,
        )
        for links in grid.networks
        for imbalance in grid.imbalances
        for workers in grid.workers
    ]
    for plan in comparisons:
        check_plan(plan)
    return tuple(comparisons)


def _arm(asked: SimulateOptions, arm: Arm) -> SimulatedArm:
    name = arm.strategy or ""
    if asked.real:
        return SimulatedArm(text=arm.name, strategy=name, settings=arm.settings, times=None)
    settings, reduction = reduction_in(name, arm.settings)
    times = times_of(name, settings)
    if reduction is None:
        return SimulatedArm(text=arm.name, strategy=name, settings=arm.settings, times=times)
    if asked.like and not asked.networks:
        raise ConfigurationError(
            f"{arm.name}: a recorded run has times for messages of its own size only, not for shorter ones; "
            "give --network as well, or leave out compress"
        )
    codec: Any = reduction.codec
    cost = cost_from(asked.coding) or measured(codec)
    return SimulatedArm(
        text=arm.name, strategy=name, settings=arm.settings, times=times, reduction=reduction, cost=cost
    )


def _check(asked: SimulateOptions) -> None:
    cost_from(asked.coding)
    if asked.check and not asked.like:
        raise ConfigurationError("--check compares a recorded run with its simulation; name the run with --like")
    if asked.like and asked.compute is not None:
        raise ConfigurationError("--like and --compute cannot be combined: times come from the run or from a model")
    if asked.like and asked.real is not None:
        raise ConfigurationError("--like and --real cannot be combined: recorded times have no gradients")
    if asked.real is not None and (asked.map is not None or asked.codecs):
        raise ConfigurationError("--map and --codec are of times alone; leave out --real")
    of_times = flags_given(asked, "steps", "parameters")
    if of_times and asked.real is not None:
        raise ConfigurationError(f"with --real the workload sets the amount of work; leave out {listed(of_times)}")
    if asked.real is not None and known_as(asked.real, "workloads") not in registry("workloads"):
        raise unknown("workload", asked.real, registry("workloads"))


def _like(asked: SimulateOptions) -> tuple[Calibration, ...]:
    from quorate.simulation.calibrated import calibrated

    calibrations = tuple(calibrated(name, asked.seed) for name in asked.like)
    folders = [calibration.folder.resolve() for calibration in calibrations]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"--like {twice.name} is given twice; give each run once")
    return calibrations


def _workers(asked: SimulateOptions, like: Calibration | None) -> tuple[int, ...]:
    if asked.sizes is None:
        return (8 if like is None else like.workers,)
    with_real = " with real gradients" if asked.real else ""
    most = MOST_VIRTUAL if asked.real is None else MOST_REAL
    return numbers_from("--workers", asked.sizes, most, f"workers are simulated{with_real}")


def numbers_from(option: str, text: str, most: int, ending: str) -> tuple[int, ...]:
    """Return the numbers in `text`, from 1 to `most`; `ending` closes the sentence of the error."""
    written = [part.strip() for part in text.split(",") if part.strip()]
    if not written or not all(re.fullmatch("[0-9]{1,9}", part) for part in written):
        raise ConfigurationError(f'{option} "{text}": give a number, or several such as 8,64,512')
    wrong = next((part for part in written if not 1 <= int(part) <= most), None)
    if wrong is not None:
        raise ConfigurationError(f"{option} {wrong}: from 1 to {most:,} {ending}")
    return tuple(map(int, written))


def _within(option: str, value: int | None, least: int, most: int) -> int | None:
    if value is not None and not least <= value <= most:
        raise ConfigurationError(f"{option} {value}: it must be a whole number from {least} to {most:,}")
    return value


def parameters_from(text: str | None) -> int | None:
    """Return the number in `8193` or `25M`; None for None."""
    if text is None:
        return None
    match = _COUNT.fullmatch(text.strip())
    count = round(float(match[1]) * _UNITS[match[2]]) if match is not None else math.inf
    if not 1 <= count <= _MOST_PARAMETERS:
        raise ConfigurationError(f'--parameters "{text}": write a number (at least 1), such as 8193, 25M or 7B')
    return int(count)


def check_twice(several: Mapping[str, Sequence[object]]) -> None:
    """Raise `ConfigurationError` for a value given twice; keys are the nouns of the values."""
    for noun, values in several.items():
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ConfigurationError(f"the {noun} {twice} is given twice; give each one once")


def _check_cells(grid: Grid) -> None:
    check_twice(
        {
            "number of workers": grid.workers,
            "imbalance": grid.imbalances,
            "network": [links.text for links in grid.networks],
            "strategy": [arm.text for arm in grid.arms],
        }
    )
    cells = len(list(grid.cells()))
    if cells > _MOST_CELLS:
        raise ConfigurationError(f"that would be {cells:,} rows; at most {_MOST_CELLS:,} are simulated at once")
