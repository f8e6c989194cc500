"""The predicted layouts that are tried for real, and the comparison of their steps. Pure.

Predictions are too low for some kinds of meshes more than for others: the hooks of sharded and cut layers are not among
the measured costs. So the tried layouts are not the first ones of the ranking, which may all be of one kind. The first
choice is tried, then plain replicas, then the best of each further kind, then the next ones of the ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median

from quorate.planning.choice import Choice
from quorate.planning.layouts import Layout
from quorate.planning.prediction import Prediction

WARM_UP = 2
"""Untimed steps of each turn."""
STEPS = 4
"""Timed steps of each turn."""
TURNS = 3
"""Turns of each layout, one after the other (A B C A B C), so that changes on the machine affect all alike."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The result of trying a layout."""

    foreseen: Prediction
    seconds: float | None = None
    """Seconds for the plan's batch, in as many steps as it takes; None where it failed."""
    steps: int = 0
    """Number of timed steps."""
    taken: float | None = None
    """Seconds of a step of the script's batch in this layout."""
    turns: Sequence[float] = ()
    """Seconds for the plan's batch in each turn: those of two layouts in one turn are a pair."""
    why: str | None = None
    """Why it failed: one line."""

    def over(self, other: Tried) -> tuple[float, float, float]:
        """Return the seconds over those of `other`, as ratios of pairs: the median, the lowest and the greatest."""
        ratios = sorted(own / its for own, its in zip(self.turns, other.turns, strict=False))
        return median(ratios), ratios[0], ratios[-1]


def kind_of(layout: Layout) -> str:
    """Return the names of the axes, other than that of replicas, that are longer than 1."""
    return " ".join(name for name in ("stages", "shards", "tensor") if getattr(layout, name) > 1) or "replicas"


def as_run(layout: Layout) -> Layout:
    """Return the layout as a script runs in it: gradients are accumulated in a pipeline only."""
    return layout if layout.schedule else replace(layout, microbatches=1)


def candidates(ranked: Sequence[Prediction]) -> list[Prediction]:
    """Return `ranked`, which begins with the fastest, in the order in which layouts are tried.

    The first choice is first, then plain replicas. Then follows the best layout with each axis (`stages`, `shards`,
    `tensor`) that no earlier one has, the fastest first, and then the others as they are ranked. Of layouts that run
    alike (a script does not accumulate gradients because a plan does) only the fastest is kept.
    """
    alike = dict[Layout, Prediction]()
    for prediction in ranked:
        alike.setdefault(as_run(prediction.layout), prediction)
    ranked = list(alike.values())
    if not ranked:
        return []
    chosen = [ranked[0]]
    chosen += [prediction for prediction in ranked if kind_of(prediction.layout) == "replicas"][:1]
    seen = set(" ".join(kind_of(prediction.layout) for prediction in chosen).split())
    for prediction in ranked:
        axes = set(kind_of(prediction.layout).split())
        if axes - seen:
            chosen.append(prediction)
            seen |= axes
    return list({id(prediction): prediction for prediction in (*chosen, *ranked)}.values())


def steps_of_a_batch(layout: Layout, batch: int, examples: int) -> float:
    """Return how many steps of the script make the plan's `batch` in this layout.

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
    """Run `count` layouts that work, in turns; return the measured ones first, from the fastest on.

    `run(layout, turn)` returns the seconds of steps, or one line on why there are none. A layout that fails in its
    first turn is replaced by the next candidate; one that fails later is not. `steps_for(layout)` returns how many of
    its steps make the plan's batch.
    """
    waiting = candidates(ranked)
    taken: dict[Layout, list[float]] = {}
    by_turn: dict[Layout, list[float]] = {}
    foreseen: dict[Layout, Prediction] = {}
    failed: list[Tried] = []
    while waiting and len(taken) < count:
        candidate = waiting.pop(0)
        seconds_or_error = run(candidate.layout, 0)
        if isinstance(seconds_or_error, str):
            failed.append(Tried(foreseen=candidate, why=seconds_or_error))
        else:
            taken[candidate.layout], foreseen[candidate.layout] = list(seconds_or_error), candidate
            by_turn[candidate.layout] = [median(seconds_or_error)]
    for turn in range(1, turns):
        for layout in list(taken):
            seconds_or_error = run(layout, turn)
            if isinstance(seconds_or_error, str):
                failed.append(Tried(foreseen=foreseen[layout], why=seconds_or_error))
                del taken[layout]
            else:
                taken[layout] += seconds_or_error
                by_turn[layout].append(median(seconds_or_error))
    measured = [
        Tried(
            foreseen=foreseen[layout],
            seconds=median(seconds) * steps_for(layout),
            steps=len(seconds),
            taken=median(seconds),
            turns=[turn * steps_for(layout) for turn in by_turn[layout]],
        )
        for layout, seconds in taken.items()
    ]
    return [*sorted(measured, key=lambda attempt: attempt.seconds or 0.0), *failed]


def corrected(choices: Sequence[Choice], tried: Sequence[Tried]) -> list[Choice]:
    """Return the choices with the seconds that tries suggest.

    A layout that was tried has its measured seconds. Others are multiplied by measured over predicted seconds: of the
    same kind and strategy where such a layout was tried, else of the same kind, else of all.
    """
    measured = [trial for trial in tried if trial.seconds is not None]
    seconds = {trial.foreseen.layout: trial.seconds for trial in measured}
    ratios = [(trial.foreseen.layout, (trial.seconds or 0.0) / trial.foreseen.seconds) for trial in measured]

    def factor(layout: Layout) -> float:
        alike = [ratio for other, ratio in ratios if kind_of(other) == kind_of(layout)]
        same = [
            ratio for other, ratio in ratios if kind_of(other) == kind_of(layout) and other.strategy == layout.strategy
        ]
        return geometric_mean(same or alike or [ratio for _, ratio in ratios])

    if not ratios:
        return list(choices)
    result = []
    for choice in choices:
        prediction = choice.prediction
        now = seconds.get(prediction.layout) or prediction.seconds * factor(prediction.layout)
        result.append(replace(choice, prediction=replace(prediction, seconds=now)))
    return result
