"""The best layouts of a model over the workers of a cluster, and reasons why the others lose."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.planning.cluster import Cluster
from quorate.planning.layouts import AXES, Layout, axes_of, layouts_with, refusal_of
from quorate.planning.model import Model
from quorate.planning.prediction import Prediction, predict

_LOOKED_AT = 60
"""Layouts, the best by formula, whose pipelines are simulated, besides the best with each value of a field."""
_FIELDS = (*AXES, "zero", "schedule")


@dataclass(frozen=True)
class Loser:
    """A setting of some layouts, and why none of them is the best: refused, too large, or slower."""

    what: str
    why: str
    layouts: int = 0


@dataclass(frozen=True)
class Plan:
    """The result of a search."""

    best: Sequence[Prediction]
    """From the fastest on; all of them fit."""
    losers: Sequence[Loser]
    looked_at: int
    """Layouts that were predicted."""
    smallest: Prediction | None
    """The smallest of all layouts, fitting or not."""


def plan(
    model: Model,
    cluster: Cluster,
    *,
    longest: dict[str, int] | None = None,
    best: int = 5,
    as_fast: float = 0.0,
    begins: Callable[[int], None] = lambda number: None,
) -> Plan:
    """Predict all layouts, first by formula; then simulate the better ones.

    `longest` limits axes by name; `begins` is called with the number of layouts so far. Among layouts within `as_fast`
    (a share) of the least seconds, the one with the fewest pieces comes first.
    Raises `ConfigurationError` where every layout is refused.
    """
    refused: Counter[tuple[str, str]] = Counter()
    fitting: list[Prediction] = []
    too_large: list[Prediction] = []
    looked_at = 0
    for axes in axes_of(cluster.workers, longest):
        refusal = refusal_of(axes, model)
        if refusal is not None:
            refused[refusal.axes, refusal.why] += 1
            continue
        for layout in layouts_with(axes, model):
            foreseen = predict(layout, model, cluster, exact=False)
            (fitting if foreseen.memory <= cluster.memory else too_large).append(foreseen)
            looked_at += 1
            begins(looked_at)
    if not fitting and not too_large:
        raise ConfigurationError(
            f"{model.name} can be laid out over {cluster.workers} workers in no way: "
            + "; ".join(f"{setting}: {why}" for setting, why in list(refused)[:3])
        )
    chosen = _first_choice(fitting)
    exact = [predict(prediction.layout, model, cluster) for prediction in chosen]
    ranked = _simplest_first(sorted(exact, key=_rank), as_fast)
    smallest = min([*fitting, *too_large], key=lambda prediction: (prediction.memory, _rank(prediction)), default=None)
    losers = [Loser(setting, why, number) for (setting, why), number in refused.items()]
    if ranked:
        losers += [*_too_large(fitting, too_large, cluster), *_slower(ranked)]
    return Plan(_different(ranked)[:best], losers, looked_at, smallest)


def _simplest_first(ranked: list[Prediction], as_fast: float) -> list[Prediction]:
    if not as_fast or not ranked:
        return ranked
    near = [prediction for prediction in ranked if prediction.seconds <= (1 + as_fast) * ranked[0].seconds]
    first = min(near, key=lambda prediction: _pieces(prediction.layout))
    return [first, *(prediction for prediction in ranked if prediction is not first)]


def _pieces(layout: Layout) -> tuple[int, ...]:
    """Return pieces of the pipeline, then of layers, then of state."""
    return layout.stages * layout.chunks, layout.tensor, layout.shards


def _different(ranked: Sequence[Prediction]) -> list[Prediction]:
    """Return the best of each mesh."""
    best: dict[Any, Prediction] = {}
    for prediction in ranked:
        layout = prediction.layout
        best.setdefault(tuple(getattr(layout, name) for name in AXES), prediction)
    return list(best.values())


def _rank(prediction: Prediction) -> Any:
    """Return seconds to three digits, and for equal ones the bytes sent."""
    layout = prediction.layout
    return (
        float(f"{prediction.seconds:.3g}"),
        prediction.sent,
        prediction.seconds,
        prediction.memory,
        layout.chunks,
        layout.microbatches,
    )


def _first_choice(fitting: Sequence[Prediction]) -> list[Prediction]:
    """Return the fastest by formula, and the fastest with each value of each field."""
    chosen = {prediction.layout: prediction for prediction in heapq.nsmallest(_LOOKED_AT, fitting, key=_rank)}
    for name in _FIELDS:
        best: dict[Any, Prediction] = {}
        for prediction in fitting:
            value = getattr(prediction.layout, name)
            if value not in best or _rank(prediction) < _rank(best[value]):
                best[value] = prediction
        chosen |= {prediction.layout: prediction for prediction in best.values()}
    return list(chosen.values())


def _too_large(fitting: Iterable[Prediction], too_large: Sequence[Prediction], cluster: Cluster) -> list[Loser]:
    """Return the values of a field that fit in no layout."""
    losers = []
    for name in _FIELDS:
        fits = {getattr(prediction.layout, name) for prediction in fitting}
        least: dict[Any, float] = {}
        count: Counter[Any] = Counter()
        for prediction in too_large:
            value = getattr(prediction.layout, name)
            count[value] += 1
            least[value] = min(least.get(value, prediction.memory), prediction.memory)
        for value in sorted(set(least) - fits, key=str):
            why = f"at least {least[value] / 1e9:.3g} GB on a worker that has {cluster.memory / 1e9:.3g} GB"
            losers.append(Loser(_setting(name, value), why, count[value]))
    return losers


def _slower(ranked: Sequence[Prediction]) -> list[Loser]:
    """Return other values of a field than the best layout's, with the largest additional cost of each."""
    first, losers = ranked[0], []
    for name in _FIELDS:
        best: dict[Any, Prediction] = {}
        for prediction in ranked:
            best.setdefault(getattr(prediction.layout, name), prediction)
        best.pop(getattr(first.layout, name), None)
        for value, prediction in sorted(best.items(), key=lambda item: _rank(item[1])):
            more = {part: seconds - first.parts[part] for part, seconds in prediction.parts.items()}
            worst = max(more, key=more.__getitem__)
            times = prediction.seconds / first.seconds
            if times < 0.9995:
                why = f"hardly faster: at best {prediction.seconds:.4g} s a step, and it has more pieces"
            elif more[worst] <= 0 or times < 1.0005:
                why = f"no faster: at best {prediction.seconds:.4g} s a step"
            else:
                at_best = f"at best {prediction.seconds:.4g} s a step, {times:.2f} times as long"
                why = f"{at_best}; {_COST[worst]} {more[worst]:.3g} s"
            losers.append(Loser(_setting(name, value), why))
    return losers


_COST = {
    "computing": "computing takes longer by",
    "bubble": "workers of the pipeline idle longer by",
    "tensor": "sums over the tensor axis take",
    "stages": "messages between stages take",
    "shards": "gathering and reducing over shards takes longer by",
    "replicas": "replicas wait for each other longer by",
    "updating": "the optimizer takes longer by",
    "cores": "workers wait for cores longer by",
    "waiting": "workers wait for slower ones longer by",
}


def _setting(name: str, value: object) -> str:
    return (
        {"schedule": "no pipeline"}.get(name, f"{name}=0")
        if value in ("", 0)
        else (str(value) if name == "schedule" else f"{name}={value}")
    )


def as_json(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as plain JSON."""
    layout = prediction.layout
    return {
        **{name: getattr(layout, name) for name in AXES},
        "zero": layout.zero,
        "schedule": layout.schedule or None,
        "chunks": layout.chunks,
        "microbatches": layout.microbatches,
        "strategy": layout.strategy or None,
        "seconds": prediction.seconds,
        "memory": prediction.memory,
        "sent": prediction.sent,
        "bubble": prediction.bubble,
        "parts": prediction.parts,
    }
