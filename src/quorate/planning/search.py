"""The best layouts of a model over the workers of a cluster, and why the others lose."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.planning.cluster import Cluster
from quorate.planning.layouts import AXES, WAYS, Layout, axes_of, layouts_with, refusal_of
from quorate.planning.model import Model
from quorate.planning.prediction import Prediction, predict

_LOOKED_AT = 60
"""Layouts, of the first choice by formula, whose pipelines are played; and of each lesson at least one."""
_FIELDS = (*AXES, "zero", "schedule", "strategy")


@dataclass(frozen=True)
class Loser:
    """What some layouts have in common, and why none of them is the best: refused, too large, or slower."""

    what: str
    why: str
    layouts: int = 0


@dataclass(frozen=True)
class Plan:
    """What was found."""

    best: Sequence[Prediction]
    """From the fastest on; all of them fit."""
    losers: Sequence[Loser]
    looked_at: int
    """Layouts that were foreseen."""
    smallest: Prediction | None
    """Of all, fitting or not."""


def plan(
    model: Model,
    cluster: Cluster,
    *,
    ways: Sequence[str] = WAYS,
    longest: dict[str, int] | None = None,
    best: int = 5,
    as_fast: float = 0.0,
    begins: Callable[[int], None] = lambda number: None,
) -> Plan:
    """Foresee all layouts, first by formula, then the better ones played.

    `ways` are strategies between replicas; `longest` limits axes by name; `begins` is told how many were looked at. Of
    layouts whose seconds are within `as_fast` (a share) of the least, the one with the fewest pieces comes first.
    Raises `ConfigurationError` where every layout is refused.
    """
    refused: Counter[tuple[str, str]] = Counter()
    fitting: list[Prediction] = []
    too_large: list[Prediction] = []
    looked_at = 0
    for axes in axes_of(cluster.workers, longest):
        found = refusal_of(axes, model)
        if found is not None:
            refused[found.what, found.why] += 1
            continue
        for layout in layouts_with(axes, model, ways):
            foreseen = predict(layout, model, cluster, exact=False)
            (fitting if foreseen.memory <= cluster.memory else too_large).append(foreseen)
            looked_at += 1
            begins(looked_at)
    if not fitting and not too_large:
        raise ConfigurationError(
            f"{model.name} can be laid out over {cluster.workers} workers in no way: "
            + "; ".join(f"{what}: {why}" for what, why in list(refused)[:3])
        )
    chosen = _first_choice(fitting)
    exact = [predict(one.layout, model, cluster) for one in chosen]
    ranked = _simplest_first(sorted(exact, key=_rank), as_fast)
    smallest = min([*fitting, *too_large], key=lambda one: (one.memory, _rank(one)), default=None)
    losers = [Loser(what, why, number) for (what, why), number in refused.items()]
    if ranked:
        losers += [*_too_large(fitting, too_large, cluster), *_slower(ranked)]
    return Plan(_different(ranked)[:best], losers, looked_at, smallest)


def _simplest_first(ranked: list[Prediction], as_fast: float) -> list[Prediction]:
    if not as_fast or not ranked:
        return ranked
    learns = {"", WAYS[0], ranked[0].layout.strategy}  # a step as much as that of the fastest
    near = [one for one in ranked if one.seconds <= (1 + as_fast) * ranked[0].seconds and one.layout.strategy in learns]
    first = min(near, key=lambda one: _pieces(one.layout))
    return [first, *(one for one in ranked if one is not first)]


def _pieces(layout: Layout) -> tuple[int, ...]:
    """Of a pipeline, then of layers, then of state."""
    return layout.stages * layout.chunks, layout.tensor, layout.shards


def _different(ranked: Sequence[Prediction]) -> list[Prediction]:
    """The best of each mesh and strategy."""
    found: dict[Any, Prediction] = {}
    for one in ranked:
        layout = one.layout
        found.setdefault((*(getattr(layout, name) for name in AXES), layout.strategy), one)
    return list(found.values())


def _rank(one: Prediction) -> Any:
    """Seconds to three digits, and among equals the bytes sent."""
    layout = one.layout
    ways = WAYS.index(layout.strategy) if layout.strategy in WAYS else 0
    return float(f"{one.seconds:.3g}"), one.sent, ways, one.seconds, one.memory, layout.chunks, layout.microbatches


def _first_choice(fitting: Sequence[Prediction]) -> list[Prediction]:
    """The fastest by formula, and the fastest with each value of each field."""
    chosen = {one.layout: one for one in heapq.nsmallest(_LOOKED_AT, fitting, key=_rank)}
    for name in _FIELDS:
        best: dict[Any, Prediction] = {}
        for one in fitting:
            value = getattr(one.layout, name)
            if value not in best or _rank(one) < _rank(best[value]):
                best[value] = one
        chosen |= {one.layout: one for one in best.values()}
    return list(chosen.values())


def _too_large(fitting: Iterable[Prediction], too_large: Sequence[Prediction], cluster: Cluster) -> list[Loser]:
    """Values of a field that fit in no layout."""
    found = []
    for name in _FIELDS:
        fits = {getattr(one.layout, name) for one in fitting}
        least: dict[Any, float] = {}
        count: Counter[Any] = Counter()
        for one in too_large:
            value = getattr(one.layout, name)
            count[value] += 1
            least[value] = min(least.get(value, one.memory), one.memory)
        for value in sorted(set(least) - fits, key=str):
            why = f"at least {least[value] / 1e9:.3g} GB on a worker that has {cluster.memory / 1e9:.3g} GB"
            found.append(Loser(_told(name, value), why, count[value]))
    return found


def _slower(ranked: Sequence[Prediction]) -> list[Loser]:
    """Values of a field that the best layout has not, and what costs the best layout with them most."""
    first, found = ranked[0], []
    for name in _FIELDS:
        best: dict[Any, Prediction] = {}
        for one in ranked:
            best.setdefault(getattr(one.layout, name), one)
        best.pop(getattr(first.layout, name), None)
        for value, one in sorted(best.items(), key=lambda item: _rank(item[1])):
            more = {part: seconds - first.parts[part] for part, seconds in one.parts.items()}
            worst = max(more, key=more.__getitem__)
            times = one.seconds / first.seconds
            if times < 0.9995:
                why = f"hardly faster: at best {one.seconds:.4g} s a step, and it has more pieces"
            elif more[worst] <= 0 or times < 1.0005:
                why = f"no faster: at best {one.seconds:.4g} s a step"
            else:
                why = (
                    f"at best {one.seconds:.4g} s a step, {times:.2f} times as long; {_COST[worst]} {more[worst]:.3g} s"
                )
            found.append(Loser(_told(name, value), why))
    return found


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


def _told(name: str, value: object) -> str:
    return (
        {"schedule": "no pipeline", "strategy": "one replica"}.get(name, f"{name}=0")
        if value in ("", 0)
        else (str(value) if name in ("schedule", "strategy") else f"{name}={value}")
    )


def as_json(one: Prediction) -> dict[str, Any]:
    """A prediction."""
    layout = one.layout
    return {
        **{name: getattr(layout, name) for name in AXES},
        "zero": layout.zero,
        "schedule": layout.schedule or None,
        "chunks": layout.chunks,
        "microbatches": layout.microbatches,
        "strategy": layout.strategy or None,
        "seconds": one.seconds,
        "memory": one.memory,
        "sent": one.sent,
        "bubble": one.bubble,
        "parts": one.parts,
    }
