"""The laws of DiLoCo in fragments, and with means under way: against P models that are trained in turn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.buckets.flat import layout_of
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat
from quorate.strategies.parts.fragments import among, fragments_of
from tests.support.local_trainings import SIZES, STEPS, Models, close, in_turn, net, trained, training


def streamed(size: int, period: int, count: int, overlap: int, merge: float) -> Tensor:
    """The published algorithm, with one common point for all."""
    parts = fragments_of(layout_of([(str(i), p) for i, p in enumerate(net().parameters())]), count)
    points = [nn.Parameter(p.detach().clone()) for p in net().parameters()]
    outers = [torch.optim.SGD([points[i] for i in part], lr=0.7, momentum=0.9, nesterov=True) for part in parts]
    since = [0] * count
    under_way: list[tuple[int, int, list[Tensor]]] = []
    step = 0

    def begin(number: int, models: Models) -> None:
        rows = [[p.detach() for p in model.parameters()] for model, _ in models]
        means = [torch.stack([row[i] for row in rows]).mean(0) for i in parts[number]]
        since[number] = 0
        under_way.append((number, step, means))

    def land(models: Models) -> None:
        number, _, means = under_way.pop(0)
        for i, mean in zip(parts[number], means, strict=True):
            points[i].grad = points[i].detach() - mean
        outers[number].step()
        share = merge if since[number] else 0.0
        with torch.no_grad():
            for model, _ in models:
                own = list(model.parameters())
                for i in parts[number]:
                    own[i].copy_(own[i] * share + points[i] * (1 - share))

    def agree(models: Models) -> None:
        nonlocal step
        step += 1
        for number in range(count):
            since[number] += 1
        if step % (period // count) == 0:
            begin(step // (period // count) % count - 1, models)
        if under_way and step - under_way[0][1] >= overlap:
            land(models)
        if step == STEPS:
            while under_way:
                land(models)
            for number in [number for number in range(count) if since[number]]:
                begin(number, models)
                land(models)

    return in_turn(size, 1, agree)


@pytest.mark.parametrize("size", SIZES)
class TestLaws:
    @pytest.mark.parametrize(
        ("period", "count", "overlap", "merge"), [(4, 4, 0, 0.5), (6, 2, 2, 0.5), (5, 1, 2, 0.25), (6, 3, 1, 0.0)]
    )
    def test_fragments_and_overlap_are_the_published_ones(
        self, size: int, period: int, count: int, overlap: int, merge: float
    ) -> None:
        choice: dict[str, Any] = {"sync_every": period, "fragments": count, "overlap": overlap, "merge": merge}
        choice |= {"outer_rate": 0.7, "outer_momentum": 0.9}
        close(trained(size, "diloco", **choice), streamed(size, period, count, overlap, merge))

    def test_where_the_periods_of_fragments_coincide_it_is_the_plain_form(self, size: int) -> None:
        def evaluating(count: int) -> list[Tensor]:
            choice = {"sync_every": 60, "fragments": count, "overlap": 3 * (count > 1)}
            trainers = training("diloco", size, rests=(3, 6, 10), **choice).run()
            assert all(torch.equal(one.parameters, trainers[0].parameters) for one in trainers)
            return [*trainers[0].seen, trainers[0].parameters]

        plain = evaluating(1)
        for count in (2, 4):
            assert all(torch.equal(x, y) for x, y in zip(evaluating(count), plain, strict=True))

    def test_without_overlap_nothing_is_merged(self, size: int) -> None:
        plain = trained(size, "diloco", sync_every=3)
        assert torch.equal(trained(size, "diloco", sync_every=3, overlap=0, merge=0.9), plain)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_fragments_are_of_about_equal_size_and_hold_every_tensor_once(count: int) -> None:
    layout = layout_of([(str(i), torch.empty(n)) for i, n in enumerate((70, 10, 20, 30, 40, 0))])
    parts = fragments_of(layout, count)
    assert sorted(i for part in parts for i in part) == list(range(6))
    sizes = [sum(layout.segments[i].numel for i in part) for part in parts]
    assert max(sizes) <= max(70, -(-170 // count) + 10)
    assert all(parts)
    x = Flat.zeros(layout)
    for number, part in enumerate(parts):
        among(x, part).add_(among(x, part).map(torch.ones_like), number + 1.0)
    for number, part in enumerate(parts):
        assert all(bool((x.segment(i) == number + 1).all()) for i in part)


def test_while_a_mean_is_under_way_nobody_waits() -> None:
    """One worker is late by far more than a step, once: with overlap the others go on meanwhile."""

    def longest(overlap: int) -> float:
        pause = lambda rank, step: 0.025 * ((rank, step) == (0, 3))  # noqa: E731
        choice = {"sync_every": 4, "overlap": overlap, "on_death": "stop"}
        return max(max(one.waits[:9]) for one in training("diloco", 3, steps=10, pause=pause, **choice).run()[1:])

    assert longest(0) > 0.02
    assert longest(3) < 0.005


def test_what_are_no_fragments_is_refused() -> None:
    for choice, words in (
        ({"fragments": 3, "sync_every": 4}, "a multiple of fragments"),
        ({"fragments": 2, "overlap": 2, "sync_every": 4}, "overlap must be below their ratio"),
        ({"fragments": 0}, "fragments=0"),
        ({"merge": 1.0}, "merge=1.0"),
        ({"fragments": 5, "sync_every": 5}, "4 tensors are trained"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            training("diloco", 1, **choice).run()


@pytest.mark.parametrize("count", range(1, 8))
def test_by_layer_layers_are_whole_and_in_order(count: int) -> None:
    sizes = [3, 40, 5, 80, 1, 7, 200]
    model = torch.nn.Sequential(*(torch.nn.Linear(size, size) for size in sizes))
    layout = layout_of(list(model.named_parameters()))
    parts = fragments_of(layout, count, "layer")
    assert [index for part in parts for index in part] == list(range(2 * len(sizes)))
    assert all(part and part[0] % 2 == 0 and len(part) % 2 == 0 for part in parts), "weight and bias stay together"
    largest = max(size * size + size for size in sizes)
    numbers = [sum(layout.segments[index].numel for index in part) for part in parts]
    assert max(numbers) - sum(numbers) / count <= largest, "no further from equal than one layer"


def test_more_fragments_than_layers_are_refused() -> None:
    layout = layout_of(list(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).named_parameters()))
    with pytest.raises(ConfigurationError, match="there are 2 layers"):
        fragments_of(layout, 3, "layer")
    assert len(fragments_of(layout, 3, "bytes")) == 3


def test_the_preset_is_diloco_in_fragments_with_overlap() -> None:
    streaming = trained(2, "streaming-diloco", sync_every=4)
    assert torch.equal(streaming, trained(2, "diloco", sync_every=4, fragments=2, overlap=1))
    assert not torch.equal(streaming, trained(2, "diloco", sync_every=4))
