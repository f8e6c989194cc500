"""How long a step of a pipeline takes: played, and by formula."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw

from quorate.core.errors import ConfigurationError
from quorate.sharding.stages.clock import bubble_by_formula, clock
from quorate.sharding.stages.orders import SCHEDULES, Action, order, refusal

FORMULA_HOLDS = [
    (name, workers, chunks, microbatches)
    for name in SCHEDULES
    for workers in (1, 2, 3, 4, 8)
    for chunks in (1, 2, 3)
    for microbatches in (workers, 2 * workers, 4 * workers)
    if not refusal(name, workers, chunks, microbatches) and not (name == "zbv" and microbatches < 2 * workers - 1)
]


@pytest.mark.parametrize(("name", "workers", "chunks", "microbatches"), FORMULA_HOLDS)
def test_formulas_of_equal_stages(name: str, workers: int, chunks: int, microbatches: int) -> None:
    equal = [1.0] * (workers * chunks)
    played = clock(order(name, workers, chunks, microbatches), equal, equal, equal)
    assert played.bubble == pytest.approx([bubble_by_formula(name, workers, chunks, microbatches)] * workers)
    assert played.busy == (3.0 * chunks * microbatches,) * workers


PASS = draw.floats(0.75, 1.25)


@given(draw.sampled_from([(2, 8), (4, 8), (4, 16), (8, 16)]), PASS, PASS, PASS)
@settings(max_examples=60, deadline=None)
def test_unequal_passes_make_another_path_the_longest(shape: tuple[int, int], f: float, b: float, w: float) -> None:
    """Idle for each worker but one: filling the pipeline, emptying it, or waiting for the first gradient."""
    workers, microbatches = shape

    def idle(name: str, f: float, b: float, w: float) -> float:
        times = [[seconds] * (2 * workers) for seconds in (f, b, w)]
        played = clock(order(name, workers, 2, microbatches), *times)
        return (played.seconds - 2 * microbatches * (f + b + w)) / (workers - 1)

    assert idle("interleaved-zero-bubble", f, b, w) == pytest.approx(max(f, b, f + b - w))
    assert idle("zbv", f, b, w) >= max(f, b) - 1e-9
    longest = max(f, b, w)
    assert idle("zbv", f, longest, w) == pytest.approx(longest)
    assert idle("dualpipev", f, b, w) >= max(f, f + b - w) - 1e-9


def test_the_published_bubbles() -> None:
    """Narayanan et al. 2021: 3 / 11 with 4 workers and 8 micro-batches, and about half of it interleaved by two."""
    assert bubble_by_formula("1f1b", 4, 1, 8) == pytest.approx(3 / 11)
    assert bubble_by_formula("interleaved-1f1b", 4, 2, 8) == pytest.approx(3 / 19)
    assert bubble_by_formula("interleaved-zero-bubble", 4, 2, 8) == pytest.approx(1 / 17)


def test_two_stages_by_hand() -> None:
    """F0 F1 B0 B1 and F0 B0 F1 B1, with passes of 1 + (2 + 1) s and 2 + (3 + 1) s, and half a second under way."""
    played = clock(order("1f1b", 2, 1, 2), [1, 2], [2, 3], [1, 1], send=0.5)
    # The second worker: 1.5 to 3.5 to 7.5, to 9.5 to 13.5; the first: its last backward pass from 14 to 17.
    assert played.seconds == 17
    assert played.busy == (8, 12)
    assert played.bubble == pytest.approx((9 / 17, 5 / 17))


def test_a_worker_that_sends_does_not_compute_without_overlap() -> None:
    """GPipe with one pass of each kind and micro-batches 0, 1, by hand: the first worker sends from 1 to 3, and from 4
    to 6."""
    equal = [1.0, 1.0]
    there = order("gpipe", 2, 1, 2)
    # Second worker: F0 3 to 4, F1 4 to 5, B0 5 to 7, B1 7 to 9; first: B0 9 to 11, B1 11 to 13.
    assert clock(there, equal, equal, equal, send=2).seconds == 13
    # Second worker: F0 3 to 4, F1 6 to 7, B0 7 to 9 and sends until 11, B1 11 to 13; first: B1 15 to 17.
    assert clock(there, equal, equal, equal, send=2, overlap=False).seconds == 17


def test_stages_of_one_worker_send_nothing() -> None:
    """The two stages in the middle of a V are on one worker."""
    equal = [1.0] * 2
    assert clock(order("zbv", 1, 2, 4), equal, equal, equal, send=100).seconds == 24


def test_the_gradient_of_weights_fills_the_bubble() -> None:
    """With weights for nothing a split backward pass gains nothing over a whole one."""
    equal, nothing = [1.0] * 8, [0.0] * 8
    split, whole = order("interleaved-zero-bubble", 4, 2, 8), order("interleaved-1f1b", 4, 2, 8)
    assert clock(split, equal, equal, equal).seconds == clock(whole, equal, equal, equal).seconds - 6
    assert clock(split, equal, equal, nothing).seconds == clock(whole, equal, equal, nothing).seconds


LAYOUTS = [
    (name, workers, chunks, microbatches)
    for name, workers, chunks, microbatches in FORMULA_HOLDS
    if workers in (2, 3) and microbatches <= 6
]


@settings(deadline=None, max_examples=60)
@given(draw.sampled_from(LAYOUTS), draw.data())
def test_bounds_of_any_times(layout: tuple[str, int, int, int], data: Any) -> None:
    """A step is no shorter than what its slowest worker computes, nor than the way of one micro-batch; and no longer
    than everything one after another."""
    name, workers, chunks, microbatches = layout
    stages = workers * chunks
    some = draw.lists(draw.floats(0, 10), min_size=stages, max_size=stages)
    forward, backward, weight = data.draw(some), data.draw(some), data.draw(some)
    send, overlap = data.draw(draw.floats(0, 5)), data.draw(draw.booleans())
    there = order(name, workers, chunks, microbatches)
    owner = {action.stage: worker for worker, actions in enumerate(there) for action in actions}
    hops = sum(owner[stage] != owner[stage + 1] for stage in range(stages - 1))
    played = clock(there, forward, backward, weight, send, overlap)
    slack = 1e-6
    each = sum(forward) + sum(backward) + sum(weight)
    assert sum(played.busy) == pytest.approx(microbatches * each)
    assert played.seconds >= max(played.busy) - slack
    assert played.seconds >= sum(forward) + sum(backward) + weight[0] + 2 * hops * send - slack
    assert played.seconds <= microbatches * (each + 2 * hops * send * (1 if overlap else 2)) + slack
    assert played.seconds >= clock(there, forward, backward, weight).seconds - slack
    assert all(-slack <= share <= 1 for share in played.bubble)


def test_an_order_that_cannot_go_on() -> None:
    crossed = [[Action(0, "B", 0), Action(0, "F", 0)]]
    with pytest.raises(ConfigurationError, match="^worker 0 waits forever before B of stage 0, micro-batch 0; "):
        clock(crossed, [1], [1], [1])


def test_a_step_of_nothing() -> None:
    assert clock([[], []], [], [], []).bubble == (0.0, 0.0)


def test_two_workers_on_one_core_take_as_long_as_one() -> None:
    equal = [1.0, 1.0]
    for name in ("gpipe", "1f1b"):
        played = clock(order(name, 2, 1, 4), equal, equal, equal, cores=1)
        assert played.seconds == pytest.approx(2 * 4 * 3)
        assert played.busy == pytest.approx((12.0, 12.0))


def test_workers_slow_each_other_down_only_while_they_compute() -> None:
    """GPipe, 3 workers with passes of 1 s each and 2 micro-batches: forward, and backward, one computes in the first
    second and in the last one, and two do in the two between."""
    equal, there = [1.0, 1.0, 1.0], order("gpipe", 3, 1, 2)
    alone = clock(there, equal, equal, [0.0] * 3).seconds
    assert alone == 2 * (2 + 2)
    assert clock(there, equal, equal, [0.0] * 3, cores=2).seconds == alone, "never more than two at a time"
    assert clock(there, equal, equal, [0.0] * 3, cores=1.5).seconds == pytest.approx(4 * (1 + 1 / 0.75))
    assert clock(there, equal, equal, [0.0] * 3, cores=1).seconds == pytest.approx(12)


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zbv"])
def test_more_cores_are_no_slower(name: str) -> None:
    chunks = 1 if name == "1f1b" else 2
    seconds = [1.0 + 0.1 * stage for stage in range(4 * chunks)]
    there = order(name, 4, chunks, 8)
    durations = [clock(there, seconds, seconds, seconds, send=0.2, cores=cores).seconds for cores in (1, 2, 3, 4)]
    assert durations == sorted(durations, reverse=True)
    assert (
        durations[0] >= 3 * 8 * sum(seconds)
        and durations[-1] == clock(there, seconds, seconds, seconds, send=0.2).seconds
    )
