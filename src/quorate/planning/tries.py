"""Which of the layouts that were foreseen are tried for real, and what their steps are compared by. Pure.

Foreseen seconds are too low for some kinds of meshes more than for others: what hooks of sharded and cut layers cost is
not among the costs that are measured. So the tried layouts are not the first ones of the ranking, which may all be of
one kind: the first choice is tried, then plain replicas, and then the best of each further kind, and only then the next
ones of the ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from quorate.planning.layouts import Layout
from quorate.planning.prediction import Prediction

WARM_UP = 2
"""Steps of each turn that are not timed."""
STEPS = 4
"""Steps of each turn that are."""
TURNS = 3
"""Of each layout, one after the other (A B C A B C), so that what changes on the machine meets all alike."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What came of a layout."""

    foreseen: Prediction
    seconds: float | None = None
    """For the plan's batch, in as many steps as make it; None where it failed."""
    steps: int = 0
    """That were timed."""
    taken: float | None = None
    """Seconds of a step of the batch that the script has in this layout."""
    why: str | None = None
    """It failed: one line."""


def kind_of(layout: Layout) -> str:
    """Which axes, other than that of replicas, are longer than 1."""
    return " ".join(name for name in ("stages", "shards", "tensor") if getattr(layout, name) > 1) or "replicas"


def as_run(layout: Layout) -> Layout:
    """The layout as a script runs in it: gradients are accumulated in a pipeline only."""
    return layout if layout.schedule else replace(layout, microbatches=1)


def candidates(ranked: Sequence[Prediction]) -> list[Prediction]:
    """All of `ranked`, which begins with the fastest, in the order in which they are tried.

    First the first choice, then plain replicas, then the best with each axis (`stages`, `shards`, `tensor`) that no
    earlier one has, the fastest first, then the others as they are ranked. Of those that run alike, as a script does
    not accumulate gradients because a plan does, only the fastest.
    """
    alike = dict[Layout, Prediction]()
    for one in ranked:
        alike.setdefault(as_run(one.layout), one)
    ranked = list(alike.values())
    if not ranked:
        return []
    chosen = [ranked[0]]
    chosen += [one for one in ranked if kind_of(one.layout) == "replicas"][:1]
    seen = set(" ".join(kind_of(one.layout) for one in chosen).split())
    for one in ranked:
        axes = set(kind_of(one.layout).split())
        if axes - seen:
            chosen.append(one)
            seen |= axes
    return list({id(one): one for one in (*chosen, *ranked)}.values())


def steps_of_a_batch(layout: Layout, batch: int, examples: int) -> float:
    """How many steps of the script make the plan's `batch` in this layout.

    The script has `examples` for each replica and shard: where layers are cut, fewer workers have batches of their own.
    """
    return batch / (examples * layout.replicas * layout.shards)


def tried(
    ranked: Sequence[Prediction],
    count: int,
    run: Callable[[Layout, int], Sequence[float] | str],
    steps_for: Callable[[Layout], float],
    turns: int = TURNS,
) -> list[Tried]:
    """Run `count` layouts that work, in turns; the measured ones first, the fastest before the others.

    `run(layout, turn)` gives the seconds of steps, or one line that says why there are none. A layout that fails in its
    first turn is replaced by the next candidate; one that fails later is not. `steps_for(layout)`: how many of its
    steps make the plan's batch.
    """
    waiting = candidates(ranked)
    taken: dict[Layout, list[float]] = {}
    foreseen: dict[Layout, Prediction] = {}
    failed: list[Tried] = []
    while waiting and len(taken) < count:
        one = waiting.pop(0)
        found = run(one.layout, 0)
        if isinstance(found, str):
            failed.append(Tried(foreseen=one, why=found))
        else:
            taken[one.layout], foreseen[one.layout] = list(found), one
    for turn in range(1, turns):
        for layout in list(taken):
            found = run(layout, turn)
            if isinstance(found, str):
                failed.append(Tried(foreseen=foreseen[layout], why=found))
                del taken[layout]
            else:
                taken[layout] += found
    measured = [
        Tried(
            foreseen=foreseen[layout],
            seconds=median(seconds) * steps_for(layout),
            steps=len(seconds),
            taken=median(seconds),
        )
        for layout, seconds in taken.items()
    ]
    return [*sorted(measured, key=lambda one: one.seconds or 0.0), *failed]
