"""The strategies, codecs, stragglers and failures of `quorate plan`, and the choices that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from quorate.cli.compare.comparison import arms_from, with_codec
from quorate.cli.learned import learned_from, passes_of
from quorate.cli.options import DELAYS, option
from quorate.cli.planner.prices import PriceOptions, Pricing
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import count_from
from quorate.inject.failures import failures_from
from quorate.planning.choice import OBJECTIVES, Choice, Learning, noise_of
from quorate.simulation.between_replicas import Agreed, BetweenReplicas, Variation, in_all
from quorate.simulation.codes import CodingCost, cost_from, measured, reduction_in
from quorate.simulation.failing.recovery import Recovery, recovery_from
from quorate.simulation.grid import SimulatedArm
from quorate.simulation.models import known, times_of
from quorate.strategies import strategies

if TYPE_CHECKING:
    from quorate.inject.failures import Failures
    from quorate.planning.cluster import Cluster
    from quorate.planning.model import Model
    from quorate.planning.prediction import Prediction

_MESHES = 6
"""Layouts, the best of each mesh, with which strategies are simulated: so many twice."""
_LEFT_OUT = ("ddp",)
"""Not proposed, as all-reduce is the same."""
_MONTH = 30 * 86_400.0
_MOST_LEARNERS = 4096


@dataclass(frozen=True, kw_only=True)
class StrategyOptions(PriceOptions):
    """The options about strategies between replicas, and what disturbs them."""

    strategies: list[str] = option(
        "Between replicas: NAME or NAME:key=value,…; may be repeated (default: all that can be simulated).",
        "--strategy",
        default=[],
        metavar="STRATEGY",
    )
    codecs: list[str] = option(
        "Each strategy also with this codec; may be repeated.", "--codec", default=[], metavar="CODEC"
    )
    coding: str | None = option(
        "Numbers per second a worker encodes and decodes: 200M:1B, or none (default: measured here).",
        metavar="ENCODE:DECODE",
    )
    imbalance: str | None = option("Who is late: one-of:200ms, rank:3:x2, trace:FILE.", metavar=DELAYS)
    like: str | None = option(
        "Take stragglers, the critical batch and, without --bandwidth, the network from the records of a run.",
        metavar="RUN",
    )
    learned: str | None = option(
        "A comparison that has measured the examples that strategies need.", metavar="COMPARISON"
    )
    critical: float | None = option(
        "The critical batch, in examples: a batch of so many takes twice the fewest passes.",
        "--critical-batch",
        reads=count_from,
        metavar="EXAMPLES",
    )
    failures: str | None = option("How workers fail: mtbf=1y,repair=30min,restart=5min,…", metavar="FAILURES")
    recovery: str | None = option(
        "With --failures: how training recovers: detect=10s,reshard=20s,…", metavar="RECOVERY", needs="--failures"
    )
    objective: str = option("What the first choice is to need least of: time, cost, energy.", default="time")


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The strategies, and the conditions that they meet, checked."""

    arms: Sequence[SimulatedArm]
    variation: Variation
    learned: Mapping[str, float]
    critical: float | None
    """The critical batch, in examples."""
    failures: Failures | None
    recovery: Recovery
    objective: str
    like: str = ""
    """The folder of the run from which stragglers are."""
    link: tuple[float, float] | None = None
    """Latency and bandwidth from the records of that run."""
    critical_is_recorded: bool = False
    goodputs: dict[Any, float | None] = field(default_factory=dict, repr=False, compare=False)

    def varying(self, spread: Sequence[float]) -> Variation:
        """Return the variation of workers, from timed steps where neither a run nor an imbalance is given."""
        is_given = self.variation.recorded or self.variation.imbalance
        return self.variation if is_given else replace(self.variation, spread=spread)


def conditions_from(options: StrategyOptions) -> Conditions:
    """Return the checked options. Raises `ConfigurationError` for the first fault."""
    if options.objective not in OBJECTIVES:
        raise ConfigurationError(f"--objective {options.objective}: it is time, cost or energy")
    if options.objective == "cost" and options.price is None and options.buy is None:
        raise ConfigurationError("--objective cost needs prices; give --price or --buy, and --examples")
    if options.objective == "energy" and options.power is None:
        raise ConfigurationError("--objective energy needs the power of a host; give --power and --examples")
    if options.imbalance is not None and options.like is not None:
        raise ConfigurationError("--imbalance and --like both say who is late; leave one of them out")
    if options.critical is not None and not options.critical > 0:
        raise ConfigurationError("--critical-batch must be above 0")
    conditions = Conditions(
        arms=_arms(options),
        variation=Variation(imbalance=options.imbalance),
        learned={} if options.learned is None else learned_from(options.learned),
        critical=options.critical,
        failures=None if options.failures is None else failures_from(options.failures),
        recovery=Recovery() if options.recovery is None else recovery_from(options.recovery),
        objective=options.objective,
    )
    return conditions if options.like is None else _recorded(conditions, options.like)


def _arms(options: StrategyOptions) -> list[SimulatedArm]:
    coding = cost_from(options.coding)
    arms = dict[str, SimulatedArm]()
    for text in options.strategies or [name for name in known() if name not in _LEFT_OUT]:
        for codec in ("none", *options.codecs):
            (arm,) = arms_from([with_codec(text, codec)], None)
            strategy = arm.strategy or ""
            try:
                settings, reduction = reduction_in(strategy, arm.settings)
                times = times_of(strategy, settings)
            except ConfigurationError:
                if options.strategies and codec == "none":
                    raise
                continue
            cost = CodingCost() if reduction is None else coding or measured(cast(Any, reduction.codec))
            _, colon, written = with_codec(text, codec).partition(":")
            name = f"{strategy}{colon}{written}"
            arms[name] = SimulatedArm(
                text=name, strategy=strategy, settings=arm.settings, times=times, reduction=reduction, cost=cost
            )
    return list(arms.values())


def _recorded(conditions: Conditions, name: str) -> Conditions:
    """Return the conditions with stragglers, network and critical batch of a run."""
    import statistics

    from quorate.report.topics.noise import FEW, noise_figures, noise_summary
    from quorate.simulation.calibrated import calibrated

    like = calibrated(name)
    usual = statistics.median(seconds for own in like.busy.first for seconds in own)
    factors = [[seconds / usual for seconds in own[1:]] for own in like.busy.first] if usual > 0 else []
    run = like.run
    noises = sorted((row for rank in run.ranks for row in rank.noises), key=lambda row: row.time)
    figures = noise_figures(noises, [step for rank in run.ranks for step in rank.steps], lambda time: time)
    noise = noise_summary([figures]) if figures is not None else None
    critical, is_recorded = conditions.critical, False
    if critical is None and noise is not None and noise.scale and noise.examples and noise.count >= FEW:
        critical, is_recorded = noise.scale * noise.examples, True
    link = None
    if like.links.latency > 0:
        pieces = like.workers if like.times.kind == "meetings" else 1
        link = 0.0, 4 * like.parameters / pieces / like.links.latency
    return replace(
        conditions,
        variation=replace(conditions.variation, recorded=factors, seed=like.seed),
        critical=critical, critical_is_recorded=is_recorded, like=str(like.folder), link=link,
    )  # fmt: skip


def choices_of(
    predictions: Sequence[Prediction], model: Model, cluster: Cluster, conditions: Conditions, pricing: Pricing | None
) -> tuple[list[Choice], dict[str, str]]:
    """Return layouts with strategies, the best known first, and by strategy why some do not fit."""
    between = BetweenReplicas(cluster=cluster, variation=conditions.varying(model.spread), bytes_each=model.bytes_each)
    agreed, refused = in_all(_candidates(predictions), conditions.arms, between, _acting_on_pieces(conditions.arms))
    choices = [_choice(each, model, conditions, pricing) for each in agreed]
    return choices, refused


def _candidates(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the best with a mean in each step, and the best if exchanges between replicas took no time."""
    free = sorted(predictions, key=lambda prediction: prediction.seconds - prediction.parts["replicas"])
    chosen = {prediction.layout: prediction for prediction in (*predictions[:_MESHES], *free[:_MESHES])}
    return list(chosen.values())


def _choice(agreed: Agreed, model: Model, conditions: Conditions, pricing: Pricing | None) -> Choice:
    prediction = agreed.prediction
    text = prediction.layout.strategy
    name = text.partition(":")[0]
    passes = passes_of(text, name, conditions.learned)
    learning: Learning = "exact" if agreed.is_exact else "not measured" if passes is None else "measured"
    choice = Choice(
        prediction=prediction,
        batch=model.batch,
        learning=learning,
        passes=1.0 if agreed.is_exact or passes is None else passes,
        noise=noise_of(model.batch, conditions.critical),
        goodput=_goodput(agreed, conditions),
        staleness=agreed.staleness,
        contributors=agreed.contributors,
    )
    if pricing is None:
        return choice
    return replace(choice, cost=pricing.cost(choice.each * model.batch, model))


def _goodput(agreed: Agreed, conditions: Conditions) -> float | None:
    """Return the share of steps that count; None without failures."""
    if conditions.failures is None:
        return None
    from quorate.simulation.failing.playing import play

    layout, step = agreed.prediction.layout, agreed.prediction.seconds
    arm = next((arm for arm in conditions.arms if arm.text == layout.strategy), None)
    key = layout.workers, layout.replicas, layout.strategy, float(f"{step:.2g}")
    if key not in conditions.goodputs:
        strategy, settings = ("all-reduce", {}) if arm is None else (arm.strategy, arm.settings)
        learners = min(layout.replicas, _MOST_LEARNERS)
        try:
            goodput = play(
                conditions.failures, layout.workers, learners=learners if strategy != "all-reduce" else 1,
                strategy=strategy, settings={} if strategy == "all-reduce" else reduction_in(strategy, settings)[0],
                seconds=_MONTH, step=step, recovery=conditions.recovery,
            )  # fmt: skip
        except ConfigurationError:  # a strategy of which failures are not simulated: all wait, as under all-reduce
            goodput = play(conditions.failures, layout.workers, seconds=_MONTH, step=step, recovery=conditions.recovery)
        conditions.goodputs[key] = goodput.goodput
    return conditions.goodputs[key]


def _acting_on_pieces(arms: Sequence[SimulatedArm]) -> dict[str, bool]:
    names = {arm.strategy for arm in arms}
    return {name: name in strategies and bool(strategies.get(name)().acts_on_pieces) for name in names}
