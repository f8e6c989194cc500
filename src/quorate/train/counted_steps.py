"""Steps whose weight follows from the counts of their losses, under each strategy and in a world of one."""

from __future__ import annotations

from functools import partial

from quorate.core.errors import ConfigurationError
from quorate.observe.step_observer import Observers
from quorate.sharding.mesh import Coordinates
from quorate.train.loss_counts import LossCounts
from quorate.train.worker import StrategyWorker

NOT_COUNTED = (
    "a backward pass counts differently for two optimizers of a model in shards; call weight() of both with the same "
    "counts before the same backward passes"
)


def counting(worker: StrategyWorker) -> LossCounts:
    """Let the counts of losses be the weights of the worker's steps, from the next backward pass on."""
    strategy, coordinates = worker.strategy, worker.coordinates
    if worker.step_weight.varies:
        raise ConfigurationError(
            "optimizer.weight() and weight= of quorate.distribute both give weights to the steps; leave one of them out"
        )
    is_divided = coordinates is not None and coordinates.axes.shards > 1
    has_no_weights = strategy.meets in ("neighbours", "asks", "nobody")
    counts = LossCounts(
        lambda: worker.replica.all_trained,
        is_scaled=has_no_weights or (strategy.meets == "servers" and strategy.replicas == "differ"),
        averages_replicas=strategy.meets != "servers" and strategy.replicas != "equal",
        shares=coordinates.axes.shards if coordinates is not None else 1,
        joined=partial(_joined, coordinates) if coordinates is not None and is_divided else None,
    )
    worker.step_weight = counts
    return counts


def _joined(coordinates: Coordinates, count: float) -> float:
    counts: list[float] = coordinates.beside.tell_all("counts of losses", count).wait()
    return sum(counts)


def agrees_on_means(worker: StrategyWorker) -> bool:
    """Return whether a mean of all gradients is formed at the end of a backward pass now."""
    ready = worker.means.ready
    return ready.hands_on and not ready.is_alone


def begin_counted(counts: LossCounts, worker: StrategyWorker, observers: Observers) -> None:
    """Begin a backward pass whose gradient counts, after the gradient has begun."""
    if counts.put_aside() and not worker.means.ready.holds_parts:
        worker.means.ready.holds_parts = counts.holds_parts = True
    if counts.loss_factor != 1.0:
        if observers.loss_factor not in (1.0, counts.loss_factor):
            raise ConfigurationError(NOT_COUNTED)
        observers.loss_factor = counts.loss_factor


def end_counted(counts: LossCounts, worker: StrategyWorker) -> None:
    """End a backward pass, before its gradient is agreed on."""
    ready = worker.means.ready
    counts.pass_ended()
    if counts.holds_parts:
        ready.holds_parts = counts.holds_parts = False
    if ready.paused:
        return
    if not agrees_on_means(worker):
        counts.settle()
    elif ready.fired:
        counts.check_given()


def settle_counted(counts: LossCounts, worker: StrategyWorker) -> None:
    """Let `.grad` and the weight of the worker be those of a whole step, which begins."""
    if worker.arguments.closure is not None:
        return  # the gradient comes inside
    if not agrees_on_means(worker):  # else `.grad` is the mean
        counts.check_given()
        counts.settle()
    if worker.is_served and not counts.is_scaled:
        worker.weight = counts.total / counts.full
