"""The search for layouts: what is proposed, refused, and said of those that lose."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from quorate.core.errors import ConfigurationError
from quorate.planning.cluster import Cluster
from quorate.planning.gpt import Speed, Transformer, model_of
from quorate.planning.layouts import Layout, axes_of, layouts_with, refusal_of
from quorate.planning.model import Model
from quorate.planning.prediction import predict
from quorate.planning.search import plan
from quorate.sharding.stages.orders import SCHEDULES

SIZES = Transformer(hidden=512, layers=8, heads=8, sequence=128, vocabulary=1000)


def model(workers: int = 8, batch: int = 32) -> Model:
    """Small."""
    return model_of(SIZES, batch, Speed(flops=1e12), workers)


def cluster(workers: int = 8, **others: Any) -> Cluster:
    """10 Gbit/s between hosts of 4."""
    values: dict[str, Any] = {"memory": 8e9, "bandwidth": 1.25e9, "latency": 1e-5, "per_host": 4, **others}
    return Cluster(workers=workers, inside_bandwidth=1e11, inside_latency=1e-6, **values)


def test_axes_are_all_products() -> None:
    axes = {(layout.replicas, layout.stages, layout.shards, layout.tensor) for layout in axes_of(12)}
    assert axes == {four for four in itertools.product((1, 2, 3, 4, 6, 12), repeat=4) if _product(four) == 12}
    assert {layout.tensor for layout in axes_of(12, {"tensor": 3})} == {1, 2, 3}


def _product(numbers: tuple[int, ...]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


def test_what_the_library_refuses_is_not_proposed() -> None:
    """A backward pass in two parts with ZeRO 3; heads and batches that do not divide; fewer blocks than stages."""
    proposed = [
        layout for axes in axes_of(8) for layout in layouts_with(axes, model()) if not refusal_of(axes, model())
    ]
    assert any(layout.zero == 3 and layout.schedule for layout in proposed)
    assert not [
        layout for layout in proposed if layout.zero == 3 and layout.schedule and SCHEDULES[layout.schedule].is_split
    ]
    assert {layout.zero for layout in proposed if layout.shards == 1} == {0}
    assert {layout.strategy for layout in proposed if layout.replicas == 1} == {""}
    refused = {
        name: refusal_of(axes, model(16, batch=24))
        for name, axes in {
            "heads": Layout(tensor=16), "blocks": Layout(stages=16), "batch": Layout(shards=16),
            "none": Layout(shards=8),
        }.items()
    }  # fmt: skip
    assert {name: refusal and refusal.why for name, refusal in refused.items()} == {
        "heads": "8 heads cannot be shared evenly",
        "blocks": "the model has 8 blocks",
        "batch": "a batch of 24 does not divide evenly",
        "none": None,
    }


def test_the_best_is_the_best_of_all() -> None:
    """No layout, played, is faster than the first choice; and one layout is kept of each mesh."""
    planned = plan(model(), cluster())
    everything = [
        predict(layout, model(), cluster())
        for axes in axes_of(8)
        if refusal_of(axes, model()) is None
        for layout in layouts_with(axes, model())
    ]
    assert planned.looked_at == len(everything)
    fastest = min(prediction.seconds for prediction in everything if prediction.memory <= cluster().memory)
    assert planned.best[0].seconds == pytest.approx(fastest, rel=0.005)
    assert [prediction.seconds for prediction in planned.best] == sorted(
        prediction.seconds for prediction in planned.best
    ) or len(planned.best) == 5
    axes = [
        (prediction.layout.replicas, prediction.layout.stages, prediction.layout.shards, prediction.layout.tensor)
        for prediction in planned.best
    ]
    assert len(set(axes)) == len(axes) == 5


def test_of_those_that_are_as_fast_the_one_with_the_fewest_pieces_comes_first() -> None:
    slow: dict[str, Any] = {"overlaps": False}
    everything = plan(model(), cluster(**slow), best=1000).best
    fastest, few = everything[0], next(prediction for prediction in everything if prediction.layout.stages == 1)
    assert fastest.layout.stages > 1
    assert plan(model(), cluster(**slow), as_fast=1e-9).best[0].layout == fastest.layout
    planned = plan(model(), cluster(**slow), as_fast=1.001 * few.seconds / fastest.seconds - 1)
    assert planned.best[0].layout.stages == 1 and planned.best[1].layout == fastest.layout
    assert any(loser.why.startswith("hardly faster: at best ") for loser in planned.losers)


def test_tensor_across_hosts_is_dear() -> None:
    planned = plan(model(), cluster())
    assert all(prediction.layout.tensor <= 4 for prediction in planned.best)
    (why,) = [loser.why for loser in planned.losers if loser.what == "tensor=8"]
    assert "times as long; sums over the tensor axis take" in why


def test_what_does_not_fit_loses() -> None:
    """16 bytes of each parameter on one worker are too many."""
    numbers = SIZES.numbers
    planned = plan(model(), cluster(memory=12 * numbers))
    assert all(prediction.memory <= 12 * numbers for prediction in planned.best)
    (why,) = [loser.why for loser in planned.losers if loser.what == "replicas=8"]
    assert why.startswith("at least ") and why.endswith(f" GB on a worker that has {12 * numbers / 1e9:.3g} GB")


def test_where_nothing_fits_the_smallest_is_known() -> None:
    planned = plan(model(), cluster(memory=1000))
    assert not planned.best and planned.smallest is not None
    assert planned.smallest.memory > 1000


def test_where_nothing_can_be() -> None:
    with pytest.raises(ConfigurationError, match="can be laid out over 7 workers in no way: "):
        plan(model(7, batch=1), cluster(7, per_host=7), longest={"stages": 1})


def test_axes_can_be_limited() -> None:
    planned = plan(model(), cluster(), longest={"stages": 1, "tensor": 1})
    assert {(prediction.layout.stages, prediction.layout.tensor) for prediction in planned.best} == {(1, 1)}
