"""The prediction of a layout, by hand: each axis alone, and combinations."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from torch import nn

from quorate.planning.cluster import Cluster
from quorate.planning.layouts import Layout
from quorate.planning.model import Block, Model
from quorate.planning.prediction import most_held, predict
from quorate.planning.waiting import slowest
from quorate.sharding.stages.clock import clock
from quorate.sharding.stages.cut import cut_evenly
from quorate.sharding.stages.orders import SCHEDULES, order, peaks, refusal
from quorate.sharding.stages.units import Unit

PSI = 1000
"""Parameters of a block."""


def model(blocks: int = 4, **others: Any) -> Model:
    """Blocks that take 1 + 1 + 1 s for an example, and hand on 100 bytes."""
    of_one: dict[str, Any] = {"forward": 1.0, "backward": 1.0, "weight": 1.0, "numbers": PSI, "saved": 500.0}
    of_one |= {"output": 100.0, "sums": 200.0, "cut": 1.0, "saved_cut": 0.5}
    of_one |= {key: others.pop(key) for key in tuple(others) if key in Block.__dataclass_fields__}
    values: dict[str, Any] = {"name": "a model", "batch": 8, **others}
    return Model(blocks=[Block(name=str(number), **of_one) for number in range(blocks)], **values)


def cluster(workers: int, **others: Any) -> Cluster:
    """100 bytes a second, without latency, in turns with computing."""
    values: dict[str, Any] = {"memory": 1e9, "bandwidth": 100.0, "latency": 0.0, "overlaps": False, **others}
    return Cluster(workers=workers, **values)


def test_one_worker() -> None:
    prediction = predict(Layout(), model(update=0.001, outside=2.0), cluster(1))
    assert prediction.seconds == 4 * 3 * 8 + 4 * PSI * 0.001 + 2
    assert prediction.memory == 16 * 4 * PSI + 8 * 4 * 500
    assert (prediction.sent, prediction.bubble) == (0, 0)


def test_replicas() -> None:
    """2 (R - 1) / R of the gradients' bytes, behind half of the batch."""
    prediction = predict(Layout(replicas=2, strategy="all-reduce"), model(), cluster(2))
    assert prediction.parts["replicas"] == 4 * 4 * PSI / 100
    assert prediction.seconds == 48 + 160
    assert prediction.sent == 16 * PSI


def test_a_mean_of_replicas_hides_behind_the_backward_pass() -> None:
    def seconds(**others: Any) -> float:
        return predict(Layout(replicas=4, strategy="all-reduce"), model(), cluster(4, **others)).parts["replicas"]

    ring = 2 * 3 / 4 * 16 * PSI / 100
    assert seconds() == ring and seconds(overlaps=True) == ring - 4 * 2 * 2


@pytest.mark.parametrize(("zero", "gathers"), [(1, 1), (2, 1), (3, 2)])
def test_zero(zero: Any, gathers: int) -> None:
    """Parameters are gathered once, or for each pass; gradients are reduced; 16 bytes a number are divided."""
    prediction = predict(Layout(shards=2, zero=zero), model(), cluster(2))
    half = 0.5 * 16 * PSI
    assert prediction.parts["shards"] == (gathers + 1) * half / 100
    assert prediction.seconds == 48 + prediction.parts["shards"]
    assert prediction.sent == (gathers + 1) * half
    gathered = 2 * 4 * PSI if zero == 3 else 16 * PSI
    exchanged = (4 + 4 + 2 + (4 if zero == 3 else 0)) * PSI
    assert prediction.memory == 16 * 4 * PSI / 2 + gathered + exchanged + 4 * 4 * 500


def test_zero_while_gradients_are_accumulated() -> None:
    """1 keeps whole gradients, and reduces once; 2 reduces those of every micro-batch."""
    first, second = (predict(Layout(shards=2, zero=zero, microbatches=4), model(), cluster(2)) for zero in (1, 2))
    half = 0.5 * 16 * PSI / 100
    assert (first.parts["shards"], second.parts["shards"]) == (half + half, half + 4 * half)
    assert first.memory - second.memory == 16 * PSI
    assert second.memory == predict(Layout(shards=2, zero=2), model(), cluster(2)).memory - 3 * 4 * 500


def test_what_overlaps_hides_behind_passes() -> None:
    """A gather of 80 s behind forward passes of 16 s, and sums of 80 s behind backward passes of 32 s."""
    assert predict(Layout(shards=2, zero=2), model(), cluster(2, overlaps=True)).parts["shards"] == 80 - 16 + 80 - 32
    fast = predict(Layout(shards=2, zero=3), model(), cluster(2, overlaps=True, bandwidth=1e6))
    assert fast.parts["shards"] == 0


def test_nothing_hides_where_workers_take_all_cores_of_their_host() -> None:
    """Exchanges are copied by the same cores, whose time they take."""
    two, four = ({"overlaps": True, "cores": cores} for cores in (2, 4))
    layout = Layout(shards=2, zero=2)
    assert predict(layout, model(), cluster(2, **two)).parts["shards"] == 80 + 80
    assert predict(layout, model(), cluster(2, **four)).parts["shards"] == 80 - 16 + 80 - 32
    gathered = predict(Layout(shards=4, zero=3), model(), cluster(4, **two))
    assert gathered.seconds == pytest.approx(2 * (24 + 3 * 120)), "of four workers two at a time"
    inside = {"per_host": 2, "inside_bandwidth": 100.0, "cores": 2, "overlaps": True}
    between = predict(layout, model(), cluster(2, **inside, bandwidth=1.0))
    assert between.parts["shards"] == 80 + 80


def test_a_pipeline_whose_workers_share_cores_is_played_on_these() -> None:
    """Its workers do not always have two that compute, so it takes longer than all their seconds over two cores."""
    layout, fast = Layout(stages=4, schedule="1f1b", microbatches=8), {"bandwidth": 1e12}
    prediction = predict(layout, model(), cluster(4, cores=2, **fast))
    ones = [1.0] * 4
    assert prediction.seconds == pytest.approx(clock(order("1f1b", 4, 1, 8), ones, ones, ones, cores=2).seconds)
    assert prediction.seconds > 4 * 8 * 3 / 2 and prediction.parts["cores"] > 0
    assert predict(layout, model(), cluster(4, cores=4, **fast)).parts["cores"] == 0


def test_what_is_done_around_exchanges_hides_behind_nothing() -> None:
    """0.001 s for each number around a gather, 0.002 s around a reduction."""
    slow = model(gathering=0.001, reducing=0.002)
    for overlaps in (True, False):
        for zero, gathers in ((2, 1), (3, 2)):
            layout, on = Layout(shards=2, zero=zero), cluster(2, overlaps=overlaps)
            more = predict(layout, slow, on).parts["shards"] - predict(layout, model(), on).parts["shards"]
            assert more == pytest.approx(4 * PSI * (gathers * 0.001 + 0.002))
    assert predict(Layout(replicas=2, strategy="all-reduce"), slow, cluster(2)).parts["computing"] == 48


def test_tensor() -> None:
    """Half of the seconds, numbers and of some bytes; two sums of 100 bytes an example and block in each pass."""
    prediction = predict(Layout(tensor=2), model(), cluster(2))
    assert prediction.parts["computing"] == 48
    assert prediction.parts["tensor"] == pytest.approx(2 * 4 * 8 * 200 / 100)
    assert prediction.seconds == pytest.approx(48 + 128)
    assert prediction.memory == 16 * 4 * PSI / 2 + 8 * 4 * 375
    assert prediction.sent == 2 * 4 * 8 * 200
    again = predict(Layout(tensor=2), model(again=1000.0, again_cut=1.0), cluster(2))
    assert again.parts["tensor"] == pytest.approx(3 * 4 * 8 * 200 / 100)
    assert again.memory == prediction.memory + 8 * 500


def test_seconds_are_divided_as_measured() -> None:
    """Forward passes are divided fully, backward passes by half; 1 and 2 s in each block are fixed."""
    cut = {"seconds_cut": (1.0, 0.5), "fixed": (0.5, 0.5), "fixed_cut": (1.0, 2.0)}
    prediction = predict(Layout(tensor=2), model(**cut), cluster(2))
    assert prediction.parts["computing"] == 4 * (8 * (1 / 2 + 2 * 0.75) + 1 + 2)
    assert predict(Layout(replicas=2, strategy="all-reduce"), model(**cut), cluster(2)).parts["computing"] == 52


def test_what_is_not_divided() -> None:
    prediction = predict(Layout(tensor=2), model(cut=0.5), cluster(2))
    assert prediction.parts["computing"] == 0.75 * 96
    assert prediction.memory == 16 * 4 * 750 + 8 * 4 * 375


def test_stages() -> None:
    """1F1B with 4 micro-batches of 2 examples: passes of 4 + 8 s on each of 2 workers, 5 where 4 would do."""
    layout = Layout(stages=2, schedule="1f1b", microbatches=4)
    prediction = predict(layout, model(), cluster(2, bandwidth=1e9))
    assert prediction.bubble == pytest.approx(1 / 5)
    assert prediction.parts["computing"] == 48
    assert prediction.parts["bubble"] == pytest.approx(12, abs=1e-3)
    assert prediction.seconds == pytest.approx(60, abs=1e-3)
    assert prediction.memory == 16 * 2 * PSI + 2 * 2 * 2 * 500, "two micro-batches of two examples in two blocks"
    assert prediction.sent == 2 * 100 * 8
    slow = predict(layout, model(), cluster(2))
    assert slow.seconds == 60 + 2 * 2 + slow.parts["stages"] - 4 and slow.parts["stages"] >= 2 * 2


@pytest.mark.parametrize("saved", [500.0, 50_000.0])
def test_a_pipeline_of_shards(saved: float) -> None:
    """Four blocks in a stage, one example in a micro-batch. A stage is gathered once more than there are micro-batches.
    Held is most behind a forward pass, with what two micro-batches have saved, or behind a backward pass, with one's
    and all of the stage; in both beside whole gradients."""
    layout = Layout(stages=2, shards=2, schedule="1f1b", zero=3, microbatches=4)
    prediction = predict(layout, model(8, saved=saved), cluster(4))
    block, stage = 4 * PSI, 4 * 4 * PSI
    assert prediction.sent == 0.5 * (5 + 1) * stage + 2 * 100 * 4
    forward = 2 * block + block + 2 * 4 * saved
    backward = stage + 4 * saved
    assert (backward > forward) is (saved == 500)
    assert prediction.memory == 16 * 4 * PSI / 2 + (4 + 4 + 2) * PSI + stage + max(forward, backward)


def test_the_formula_for_a_first_choice() -> None:
    """For equal stages, and messages that take no time, it equals the simulation."""
    for name, schedule in SCHEDULES.items():
        layout = Layout(stages=2, schedule=name, chunks=schedule.chunks or 2, microbatches=8)
        quick, exact = (predict(layout, model(), cluster(2, bandwidth=1e12), exact=how) for how in (False, True))
        assert quick.seconds == pytest.approx(exact.seconds, rel=1e-6)
        assert quick.memory >= exact.memory


def test_what_is_held_by_formula_is_never_less() -> None:
    for name in SCHEDULES:
        for workers in (1, 2, 3, 4, 6):
            for chunks in (1, 2, 3):
                for microbatches in (workers, 2 * workers, 3 * workers + 1, 6 * workers):
                    if refusal(name, workers, chunks, microbatches):
                        continue
                    layout = Layout(stages=workers, schedule=name, chunks=chunks, microbatches=microbatches)
                    by_formula = [most_held(layout, worker, exact=False) for worker in range(workers)]
                    exact = peaks(order(name, workers, chunks, microbatches))
                    assert all(peak <= bound for peak, bound in zip(exact, by_formula, strict=True)), layout


def test_seconds_that_do_not_grow_with_examples() -> None:
    """Once for each micro-batch, and in full on each worker of a tensor axis."""
    slow = model(fixed=(0.5, 1.0))
    assert predict(Layout(microbatches=4), slow, cluster(1)).seconds == 96 + 4 * 4 * 1.5
    assert predict(Layout(tensor=2), slow, cluster(2)).parts["computing"] == 48 + 4 * 1.5


def test_workers_that_share_cores() -> None:
    """Four workers with 24 s of work each, on two cores."""
    prediction = predict(Layout(replicas=4, strategy="all-reduce"), model(), cluster(4, cores=2, bandwidth=1e9))
    assert prediction.seconds == pytest.approx(48, abs=1e-3)
    assert prediction.parts["cores"] == pytest.approx(24, abs=1e-3)
    free = predict(Layout(replicas=4, strategy="all-reduce"), model(), cluster(4, cores=8, bandwidth=1e9))
    assert free.seconds == pytest.approx(24, abs=1e-3)


def test_numbers_that_two_blocks_share_count_once_on_one_worker() -> None:
    tied = model(tied=PSI)
    assert tied.numbers == 3 * PSI
    assert predict(Layout(), tied, cluster(1)).memory == 16 * 3 * PSI + 8 * 4 * 500
    two = predict(Layout(stages=2, schedule="1f1b", microbatches=2), tied, cluster(2))
    assert two.memory == 16 * 2 * PSI + 2 * 2 * 4 * 500


def test_stages_are_of_about_equal_time() -> None:
    uneven = [
        Block(name=str(n), forward=seconds, backward=0, weight=0, numbers=1, saved=0)
        for n, seconds in enumerate((5, 1, 1, 1, 1, 1))
    ]
    stages = Model(name="", blocks=uneven, batch=1).stages(2)
    assert [len(stage.blocks) for stage in stages] == [1, 5]
    assert [len(stage.blocks) for stage in Model(name="", blocks=uneven, batch=1).stages(6)] == [1] * 6


def test_stages_are_cut_as_those_that_run() -> None:
    """By the rule of `cut_evenly`, ties included."""
    draw = Random(1)
    for _ in range(30):
        costs = [float(draw.randint(1, 4)) for _ in range(draw.randint(1, 9))]
        units = [Unit(str(n), nn.Identity(), nn.Identity(), str(n), True) for n in range(len(costs))]
        blocks = [
            Block(name=str(n), forward=seconds, backward=0, weight=0, numbers=1, saved=0)
            for n, seconds in enumerate(costs)
        ]
        for count in range(1, len(costs) + 1):
            stages = Model(name="", blocks=blocks, batch=1).stages(count)
            stage_of = [number for number, stage in enumerate(stages) for _ in stage.blocks]
            assert stage_of == cut_evenly(units, costs, count), (costs, count)


def test_where_workers_share_cores_steps_take_longer_than_their_share() -> None:
    """By `crowding`; where each has a core, they do not."""
    layouts = [
        Layout(replicas=4, strategy="all-reduce"),
        Layout(stages=4, schedule="1f1b", microbatches=8),
    ]
    for layout in layouts:
        shared, own = (cluster(4, cores=cores, bandwidth=1e9) for cores in (2, 4))
        before = predict(layout, model(), shared).seconds
        assert predict(layout, model(crowding=1.25), shared).seconds == pytest.approx(1.25 * before)
        assert predict(layout, model(crowding=1.25), own).seconds == predict(layout, model(), own).seconds


def test_waiting_for_each_other_takes_no_shared_core() -> None:
    """A tensor axis whose fixed seconds are waiting: two with a core each wait; of four on two cores none do."""
    waits, works = (model(fixed_cut=(seconds, seconds)) for seconds in (12.0, 0.0))
    timed = model(fixed_cut=(12.0, 12.0), by_processor=works)
    fast: dict[str, Any] = {"bandwidth": 1e12}
    assert predict(Layout(tensor=2), timed, cluster(2, cores=2, **fast)).seconds == pytest.approx(4 * (3 * 4 + 24))
    four = predict(Layout(replicas=2, tensor=2, strategy="all-reduce"), timed, cluster(4, cores=2, **fast))
    assert four.seconds == pytest.approx(max(4 * (3 * 2 + 24), 2 * 4 * 3 * 2), rel=1e-6)
    crowded = predict(Layout(replicas=2, tensor=2, strategy="all-reduce"), waits, cluster(4, cores=2, **fast))
    assert crowded.seconds == pytest.approx(2 * 4 * (3 * 2 + 24), rel=1e-6)


def test_steps_that_vary_end_with_the_slowest_worker() -> None:
    """Computing workers wait, and messages do not; with shared cores, too."""
    spread = [0.9, 1.0, 1.2]
    prediction = predict(Layout(replicas=2, strategy="all-reduce"), model(spread=spread, update=0.001), cluster(2))
    share = slowest(spread, 2) - 1
    assert share > 0.05 and prediction.parts["waiting"] == pytest.approx(share * (48 + 4))
    assert (
        prediction.seconds
        == pytest.approx(48 + 4 + 160 + share * (48 + 4))
        == pytest.approx(sum(prediction.parts.values()))
    )
    shared = cluster(4, cores=2, bandwidth=1e12)
    for layout in (Layout(replicas=4, strategy="all-reduce"), Layout(stages=4, schedule="1f1b", microbatches=8)):
        before = predict(layout, model(), shared).seconds
        assert predict(layout, model(spread=spread), shared).seconds == pytest.approx(before * slowest(spread, 4))
    assert predict(Layout(), model(spread=spread), cluster(1)).parts["waiting"] == 0
