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
    found = {(one.replicas, one.stages, one.shards, one.tensor) for one in axes_of(12)}
    assert found == {four for four in itertools.product((1, 2, 3, 4, 6, 12), repeat=4) if _product(four) == 12}
    assert {one.tensor for one in axes_of(12, {"tensor": 3})} == {1, 2, 3}


def _product(numbers: tuple[int, ...]) -> int:
    found = 1
    for number in numbers:
        found *= number
    return found


def test_what_the_library_refuses_is_not_proposed() -> None:
    """A backward pass in two parts with ZeRO 3; heads and batches that do not divide; fewer blocks than stages."""
    proposed = [one for axes in axes_of(8) for one in layouts_with(axes, model()) if not refusal_of(axes, model())]
    assert any(one.zero == 3 and one.schedule for one in proposed)
    assert not [one for one in proposed if one.zero == 3 and one.schedule and SCHEDULES[one.schedule].is_split]
    assert {one.zero for one in proposed if one.shards == 1} == {0}
    assert {one.strategy for one in proposed if one.replicas == 1} == {""}
    refused = {
        name: refusal_of(axes, model(16, batch=24))
        for name, axes in {
            "heads": Layout(tensor=16), "blocks": Layout(stages=16), "batch": Layout(shards=16),
            "none": Layout(shards=8),
        }.items()
    }  # fmt: skip
    assert {name: one and one.why for name, one in refused.items()} == {
        "heads": "8 heads cannot be shared evenly",
        "blocks": "the model has 8 blocks",
        "batch": "a batch of 24 does not divide evenly",
        "none": None,
    }


def test_the_best_is_the_best_of_all() -> None:
    """No layout, played, is faster than the first choice; and one layout is kept of each mesh and strategy."""
    ways = ("all-reduce",)
    found = plan(model(), cluster(), ways=ways)
    everything = [
        predict(layout, model(), cluster())
        for axes in axes_of(8)
        if refusal_of(axes, model()) is None
        for layout in layouts_with(axes, model(), ways)
    ]
    assert found.looked_at == len(everything)
    fastest = min(one.seconds for one in everything if one.memory <= cluster().memory)
    assert found.best[0].seconds == pytest.approx(fastest, rel=0.005)
    assert [one.seconds for one in found.best] == sorted(one.seconds for one in found.best) or len(found.best) == 5
    axes = [(one.layout.replicas, one.layout.stages, one.layout.shards, one.layout.tensor) for one in found.best]
    assert len(set(axes)) == len(axes) == 5


def test_of_those_that_are_as_fast_the_one_with_the_fewest_pieces_comes_first() -> None:
    """But none whose steps teach less."""
    slow: dict[str, Any] = {"overlaps": False}
    everything = plan(model(), cluster(**slow), best=1000).best
    fastest, few = everything[0], next(one for one in everything if one.layout.stages == 1)
    assert fastest.layout.stages > 1 and few.layout.strategy == "local-sgd"
    assert plan(model(), cluster(**slow), as_fast=1e-9).best[0].layout == fastest.layout
    found = plan(model(), cluster(**slow), as_fast=0.5)
    first = found.best[0].layout
    assert first.stages == 1 and first.strategy in ("", "all-reduce")
    assert found.best[1].layout == fastest.layout
    assert any(one.why.startswith("hardly faster: at best ") for one in found.losers)
    near = plan(model(), cluster(**slow), as_fast=1.001 * few.seconds / fastest.seconds - 1).best[0].layout
    assert near.strategy in ("", "all-reduce")


def test_tensor_across_hosts_is_dear() -> None:
    found = plan(model(), cluster())
    assert all(one.layout.tensor <= 4 for one in found.best)
    (why,) = [one.why for one in found.losers if one.what == "tensor=8"]
    assert "times as long; sums over the tensor axis take" in why


def test_what_does_not_fit_loses() -> None:
    """16 bytes of each parameter on one worker are too many."""
    numbers = SIZES.numbers
    found = plan(model(), cluster(memory=12 * numbers))
    assert all(one.memory <= 12 * numbers for one in found.best)
    (why,) = [one.why for one in found.losers if one.what == "replicas=8"]
    assert why.startswith("at least ") and why.endswith(f" GB on a worker that has {12 * numbers / 1e9:.3g} GB")


def test_where_nothing_fits_the_smallest_is_known() -> None:
    found = plan(model(), cluster(memory=1000))
    assert not found.best and found.smallest is not None
    assert found.smallest.memory > 1000


def test_where_nothing_can_be() -> None:
    with pytest.raises(ConfigurationError, match="can be laid out over 7 workers in no way: "):
        plan(model(7, batch=1), cluster(7, per_host=7), longest={"stages": 1})


def test_axes_can_be_limited() -> None:
    found = plan(model(), cluster(), longest={"stages": 1, "tensor": 1})
    assert {(one.layout.stages, one.layout.tensor) for one in found.best} == {(1, 1)}
