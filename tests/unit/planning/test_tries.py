"""Which layouts are tried for real, in which order, and what becomes of those that fail."""

from __future__ import annotations

import pytest

from quorate.planning.choice import Choice
from quorate.planning.layouts import Layout
from quorate.planning.prediction import Prediction
from quorate.planning.tries import Tried, candidates, corrected, steps_of_a_batch, tried

TWO = Layout(replicas=2, strategy="all-reduce")
TENSOR, SHARDS, STAGES = Layout(tensor=2), Layout(shards=2, zero=2), Layout(stages=2, schedule="1f1b", microbatches=4)


def ranked(*layouts: Layout) -> list[Prediction]:
    return [
        Prediction(layout=layout, seconds=1.0 + place, memory=0.0, sent=0.0, bubble=0.0, parts={})
        for place, layout in enumerate(layouts)
    ]


def layouts(predictions: list[Prediction]) -> list[Layout]:
    return [prediction.layout for prediction in predictions]


def test_one_of_each_kind_comes_before_the_next_of_the_ranking() -> None:
    second, both = Layout(shards=2, zero=3), Layout(shards=2, tensor=2, zero=2)
    order = candidates(ranked(SHARDS, second, both, TENSOR, TWO, STAGES))
    assert layouts(order) == [SHARDS, TWO, both, STAGES, second, TENSOR]
    assert candidates([]) == []


def test_what_runs_alike_is_tried_once() -> None:
    accumulates, interleaved = Layout(tensor=2, microbatches=8), Layout(stages=2, schedule="interleaved", chunks=2)
    order = candidates(ranked(accumulates, TENSOR, STAGES, interleaved))
    assert layouts(order) == [accumulates, STAGES, interleaved]


def test_a_step_of_fewer_batches_is_made_more_often() -> None:
    assert steps_of_a_batch(TWO, 20, 10) == 1
    assert steps_of_a_batch(TENSOR, 20, 10) == 2
    assert steps_of_a_batch(Layout(replicas=2, shards=2), 20, 10) == 0.5


def test_layouts_take_turns_and_the_fastest_measured_is_first() -> None:
    calls = list[tuple[Layout, int]]()

    def run(layout: Layout, turn: int) -> list[float] | str:
        calls.append((layout, turn))
        return "broken" if layout == SHARDS else [{TWO: 5.0, TENSOR: 2.0}[layout] + turn] * 3

    results = tried(
        ranked(SHARDS, TWO, TENSOR, STAGES), 2, run, lambda layout: 2.0 if layout == TENSOR else 1.0, turns=3
    )
    assert calls == [(SHARDS, 0), *((layout, turn) for turn in range(3) for layout in (TWO, TENSOR))]
    assert [(result.foreseen.layout, result.seconds, result.taken, result.steps) for result in results[:2]] == [
        (TWO, 6.0, 6.0, 9),
        (TENSOR, pytest.approx(6.0), 3.0, 9),
    ]
    assert results[0].turns == [5.0, 6.0, 7.0] and results[1].turns == [4.0, 6.0, 8.0]
    assert results[1].over(results[0]) == (1.0, 0.8, pytest.approx(8 / 7))
    assert results[2] == Tried(foreseen=results[2].foreseen, why="broken") and results[2].foreseen.layout == SHARDS


def test_what_fails_in_a_later_turn_has_failed() -> None:
    results = tried(
        ranked(TWO, TENSOR), 2, lambda layout, turn: "gone" if turn and layout == TWO else [1.0], lambda _: 1.0, turns=2
    )
    assert [(result.foreseen.layout, result.why) for result in results] == [(TENSOR, None), (TWO, "gone")]


def test_layouts_that_were_not_tried_are_corrected_by_those_that_were() -> None:
    """By the same kind and strategy, else by the same kind, else by all."""
    solo, again = Layout(replicas=2, strategy="eager-solo"), Layout(replicas=2, microbatches=4, strategy="all-reduce")
    quorum, cut = Layout(replicas=2, strategy="quorum"), Layout(tensor=2, microbatches=4)
    predictions = ranked(TWO, TENSOR, quorum, cut, SHARDS, solo, again)
    choices = [Choice(prediction=prediction, batch=1, learning="exact") for prediction in predictions]
    results = [
        Tried(foreseen=predictions[0], seconds=2.0),
        Tried(foreseen=predictions[1], seconds=1.0),
        Tried(foreseen=predictions[5], seconds=3.0),
        Tried(foreseen=predictions[4], why="broken"),
    ]
    seconds = [choice.prediction.seconds for choice in corrected(choices, results)]
    of_all = (2.0 * 0.5 * 0.5) ** (1 / 3)
    assert seconds == pytest.approx([2.0, 1.0, 3 * 1.0, 4 * 0.5, 5 * of_all, 3.0, 7 * 2.0])
    assert corrected(choices, results[3:]) == choices
