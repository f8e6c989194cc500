"""The laws of strategies of local steps, among virtual workers, against P models that are trained in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat
from quorate.launch.worker.world import World
from quorate.observe.step_times import timing
from quorate.records.records import Recorder, records_of, rows
from quorate.replica.outer_optimizer import updater
from quorate.strategies.parts.local_steps import period_from
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.local_trainings import (
    MOMENTUM,
    RATE,
    SIZES,
    STEPS,
    Models,
    Told,
    average,
    average_momenta,
    close,
    flat,
    in_turn,
    loss,
    net,
    put,
    run,
    train,
    trained,
)


@pytest.mark.parametrize("size", SIZES)
class TestLaws:
    @pytest.mark.parametrize("heavy", [0.0, MOMENTUM])
    def test_a_mean_after_every_step_is_synchronous_sgd(self, size: int, heavy: float) -> None:
        means = trained(size, "local-sgd", sync_every=1, momentum="average", heavy=heavy)
        close(means, trained(size, "all-reduce", heavy=heavy))

    def test_momenta_are_kept_averaged_or_forgotten(self, size: int) -> None:
        def averages(models: Models) -> None:
            average(models)
            average_momenta(models)

        def forgets(models: Models) -> None:
            average(models)
            for _, optimizer in models:
                optimizer.state.clear()

        ends = [in_turn(size, 3, agree) for agree in (average, averages, forgets)]
        for momentum, end in zip(("keep", "average", "reset"), ends, strict=True):
            close(trained(size, "local-sgd", sync_every=3, momentum=momentum), end)
        assert size == 1 or not torch.allclose(ends[0], ends[1])
        assert not torch.allclose(ends[0], ends[2])

    def test_slow_momentum_without_momentum_is_local_sgd(self, size: int) -> None:
        slow = trained(size, "slowmo", sync_every=2, slow_every=2, alpha=1.0, beta=0.0)
        assert torch.equal(slow, trained(size, "local-sgd", sync_every=2))

    def test_slow_momentum_is_the_published_one(self, size: int) -> None:
        x, u = flat(net()), torch.zeros_like(flat(net()))
        means = 0

        def agree(models: Models) -> None:
            nonlocal x, u, means
            mean, means = average(models), means + 1
            if means % 2 == 0:
                u = 0.6 * u + (x - mean) / RATE
                x = x - 0.8 * RATE * u
                for model, _ in models:
                    put(model, x)

        end = in_turn(size, 2, agree)
        close(trained(size, "slowmo", sync_every=2, slow_every=2, alpha=0.8, beta=0.6), end)

    def test_an_outer_step_is_the_published_one(self, size: int) -> None:
        x = nn.Parameter(flat(net()))
        outer = torch.optim.SGD([x], lr=0.7, momentum=0.9, nesterov=True)

        def agree(models: Models) -> None:
            x.grad = x.detach() - average(models)
            outer.step()
            for model, _ in models:
                put(model, x.detach())

        close(trained(size, "diloco", sync_every=3), in_turn(size, 3, agree))

    def test_an_outer_step_of_rate_1_is_the_mean(self, size: int) -> None:
        outer = trained(size, "diloco", sync_every=3, outer_rate=1.0, outer_momentum=0.0)
        close(outer, trained(size, "local-sgd", sync_every=3))

    def test_eager_averaging_that_waits_for_all_is_local_sgd(self, size: int) -> None:
        eager = trained(size, "eager-averaging", sync_every=3, wait_for="all")
        close(eager, trained(size, "local-sgd", sync_every=3))

    def test_before_its_turn_post_local_is_all_reduce_and_after_it_local(self, size: int) -> None:
        assert torch.equal(trained(size, "post-local-sgd", after=1000), trained(size, "all-reduce"))
        assert torch.equal(
            trained(size, "post-local-sgd", after=0, sync_every=4), trained(size, "local-sgd", sync_every=4)
        )

    def test_workers_that_end_early_or_evaluate_end_equal(self, size: int) -> None:
        for strategy, settings in VARIANTS if size < 5 else VARIANTS[size % 3 :: 3]:
            told = run(
                size,
                lambda world, strategy=strategy, settings=settings: train(  # type: ignore[misc]
                    world, strategy, steps=STEPS + 2 * world.rank, evaluates=(5, 10), **settings
                ),
            )
            for one in told:
                assert torch.equal(one.end, told[0].end), strategy
                assert all(torch.equal(x, y) for x, y in zip(one.evaluated, told[0].evaluated, strict=True)), strategy
            assert told[0].end.isfinite().all()


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("local-sgd", {"sync_every": 3}),
    ("local-sgd", {"sync_every": "45ms", "momentum": "average"}),
    ("post-local-sgd", {"sync_every": 3, "after": 4}),
    ("slowmo", {"sync_every": 2, "slow_every": 2}),
    ("adaptive-local-sgd", {"sync_every": 2}),
    ("diloco", {"sync_every": 3}),
    ("eager-averaging", {"sync_every": 3, "wait_for": 1}),
    ("decoupled-diloco", {"sync_every": 4, "fragments": 2, "overlap": 1, "wait_for": 1}),
    ("async-local-sgd", {"sync_every": 3}),
    ("group-averaging", {"sync_every": 4}),
    ("hierarchical-local-sgd", {"sync_every": 2, "across_every": 3, "group_size": 2}),
    ("hierarchical-local-sgd", {"sync_every": "30ms", "across_every": 3, "group_size": 2}),
    ("diloco", {"sync_every": 4, "fragments": 2, "overlap": 1}),
    ("diloco", {"sync_every": 3, "overlap": 2, "after": 2}),
    ("diloco", {"sync_every": 3, "after": 3, "outer": "adam", "outer_rate": 0.05, "outer_device": "cpu"}),
]


@pytest.mark.parametrize("size", [2, 3])
def test_steps_are_synchronous_until_the_learning_rate_falls(size: int) -> None:
    told = run(
        size,
        lambda world: train(
            world, "post-local-sgd", schedule=lambda step: min(1.0, (step + 1) / 3) if step < 6 else 0.1, sync_every=3
        ),
    )
    # Six steps at the high rate, and one at the low one, in which all are told; the last mean is that of the turn.
    assert [one.means for one in told] == [6 + 2 + 1 + 1] * size  # then five local ones with one mean


@pytest.mark.parametrize("size", [1, 3])
def test_a_learning_rate_of_nothing_divides_nothing(size: int) -> None:
    def warm(step: int) -> float:
        return 0.0 if step < 4 or step >= 10 else 1.0

    end = trained(size, "slowmo", sync_every=2, slow_every=1, schedule=warm)
    assert end.isfinite().all()
    assert not torch.equal(end, flat(net()))
    close(trained(size, "slowmo", sync_every=2, slow_every=1, schedule=lambda step: 0.0), flat(net()))


def test_momenta_of_adam_are_averaged_too() -> None:
    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.01, amsgrad=True)

    every_step = trained(3, "local-sgd", sync_every=1, momentum="average", make=adam)
    kept = trained(3, "local-sgd", sync_every=1, make=adam)
    assert every_step.isfinite().all()
    assert not torch.allclose(every_step, kept)


def test_with_a_time_nobody_waits_longer_than_a_step_of_the_slowest() -> None:
    pauses = [0.0, 0.02, 0.09]
    told = run(
        3,
        lambda world: train(
            world, "local-sgd", steps=[60, 20, 6][world.rank], sync_every="200ms", pause=lambda rank: pauses[rank]
        ),
    )
    assert all(torch.equal(one.end, told[0].end) for one in told)
    assert max(max(one.waited) for one in told) < 0.01 + max(pauses) + 0.01
    assert min(one.means for one in told) >= 2
    in_step = run(3, lambda world: train(world, "local-sgd", steps=12, sync_every=6, pause=lambda rank: pauses[rank]))
    assert max(max(one.waited) for one in in_step) > 0.4  # what it spares


def test_who_has_done_more_counts_more() -> None:
    def task(world: World) -> Told:
        return train(world, "local-sgd", steps=1 + 2 * world.rank, sync_every="10s", heavy=0.0)

    told = run(2, task)
    ends = []
    for rank in range(2):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for step in range(1 + 2 * rank):
            optimizer.zero_grad()
            loss(model, rank, step).backward()
            optimizer.step()
        ends.append(flat(model))
    close(told[0].end, (ends[0] + 3 * ends[1]) / 4)


def test_a_period_is_a_number_of_steps_of_examples_or_a_time() -> None:
    assert (period_from(8).count, period_from(8).unit) == (8, "steps")
    assert (period_from("4096 examples").count, period_from("1 example").unit) == (4096, "examples")
    assert (period_from("500ms").count, period_from("30s").unit) == (0.5, "seconds")
    for wrong in (0, -1, True, "0s", "often", "0 examples", "8"):
        with pytest.raises(ConfigurationError, match="sync_every is"):
            period_from(wrong)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "adagrad"])
def test_an_updater_goes_on_from_what_it_remembers(kind: str) -> None:
    def gradients(worker: Any) -> list[Flat]:
        return [worker.parameters * (0.1 * step) for step in range(1, 4)]

    def both(wire: Wire) -> None:
        current.enter(wire, thread_only=True)
        model = net()
        optimizer: Any = quorate.distribute(
            torch.optim.SGD(model.parameters(), lr=0.1), model, "local-sgd", with_one_worker="algorithm"
        )
        worker = optimizer.__dict__["_quorate_worker"]
        options = {"lr": 0.3, "momentum": 0.5} if kind == "sgd" else {"lr": 0.3}
        in_one, in_two = worker.parameters, worker.parameters
        memory: dict[str, Any] = {}
        once, other = updater(in_one, {}, kind=kind, **options), dict[str, Any]()
        for gradient in gradients(worker):
            once(gradient)
            updater(in_two, memory, kind=kind, **options)(gradient)
            other.update(memory)
        assert all(torch.equal(x, y) for x, y in zip(in_one.parts, in_two.parts, strict=True))
        assert other
        x = nn.Parameter(flat(model))
        plain: Any = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.get(
            kind, torch.optim.Adagrad
        )([x], **options)
        for factor in (0.1, 0.2, 0.3):
            x.grad = factor * flat(model)
            plain.step()
        close(torch.cat([part.reshape(-1) for part in in_one.segments()]), x.detach())

    VirtualWorld(1).run(both)


def test_what_an_outer_optimizer_does_not_take_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the setting outer"):
        run(1, lambda world: train(world, "diloco", sync_every=1, outer="momentum"))
    with pytest.raises(ConfigurationError, match="outer_rate=0.0"):
        run(1, lambda world: train(world, "diloco", outer_rate=0.0))
    with pytest.raises(ConfigurationError, match="beta=1.0"):
        run(1, lambda world: train(world, "slowmo", beta=1.0))


@pytest.mark.seeds(3, 6)
def test_what_every_worker_went_counts_once_however_late(seed: int) -> None:
    """With gradients that do not depend on where a worker is, the order does not matter: the end is known."""
    size, steps = 4, 14

    def task(world: World) -> Told:
        model = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(model.weight)
        plain = torch.optim.SGD(model.parameters(), lr=0.5)
        settings = {"sync_every": 2, "wait_for": 1 + seed % 3, "max_staleness": 40}
        optimizer: Any = quorate.distribute(plain, model, "eager-averaging", **settings)
        rounds = optimizer.__dict__["_quorate_worker"]._rounds
        noted, taken = rounds.watch.note_round, torch.zeros(3)

        def note(one: Any) -> None:
            if one.sum is not None:
                taken.add_(one.sum.segment(0).reshape(-1))
            noted(one)

        rounds.watch.note_round = note
        draw = torch.Generator().manual_seed(100 * seed + world.rank)
        for _ in range(steps + world.rank):
            world.wire.clock.sleep(float(torch.rand(1, generator=draw)) * 0.05)
            model(torch.full((1, 3), float(world.rank + 1))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.finish()
        return Told(flat(model), evaluated=[taken])

    told = run(size, task, seed=seed)
    went = sum(-0.5 * (rank + 1) * (steps + rank) for rank in range(size)) / size
    for one in told:
        close(
            one.evaluated[0], torch.full((3,), went)
        )  # what rounds have taken, each divided by the workers there were
        assert torch.equal(one.end, told[0].end)
        assert (one.end < went + 1e-3).all()  # divided by those that still step, which grow fewer


@pytest.mark.parametrize("is_apart", [True, False])
def test_more_local_steps_are_taken_where_replicas_go_the_same_way(is_apart: bool) -> None:
    def task(world: World) -> Told:
        model = nn.Linear(3, 1, bias=False)
        plain = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer: Any = quorate.distribute(plain, model, "adaptive-local-sgd", sync_every=4, least=2, most=16)
        way = (-1.0) ** world.rank if is_apart else 1.0
        for _ in range(60):
            model(torch.full((1, 3), way)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        period = optimizer.__dict__["_quorate_worker"].state.period
        optimizer.finish()
        return Told(torch.tensor(float(period)))

    assert [one.end.item() for one in run(2, task)] == [2.0 if is_apart else 16.0] * 2


@pytest.mark.parametrize(
    ("strategy", "settings", "means"),
    [
        ("local-sgd", {"sync_every": 3}, 4),
        ("slowmo", {"sync_every": 6, "slow_every": 1}, 2),
        ("group-averaging", {"sync_every": 4, "group_size": 2}, 3),
        ("hierarchical-local-sgd", {"sync_every": 2, "across_every": 3, "group_size": 1}, 2),
        ("diloco", {"sync_every": 4, "fragments": 2}, 6 + 1),  # at the end, that of the fragment that is behind
    ],
)
def test_at_every_mean_the_distance_of_each_replica_is_recorded(
    strategy: str, settings: dict[str, Any], means: int, tmp_path: Path
) -> None:
    def task(world: World) -> Told:
        recorder = timing(current.here()).recorder = Recorder(records_of(tmp_path, world.rank))
        told = train(world, strategy, **settings)
        recorder.close()
        return told

    told = run(2, task)
    first, second = ([row for row in rows(records_of(tmp_path, rank)) if row["kind"] == "distance"] for rank in (0, 1))
    assert len(first) == len(second) == means
    for one, other in zip(first, second, strict=True):
        assert one["distance"] == pytest.approx(other["distance"], rel=1e-3)  # two are equally far from their mean
        assert 0 < one["distance"] < one["norm"] == pytest.approx(other["norm"])
    if strategy == "local-sgd":
        assert first[-1]["norm"] == pytest.approx(float(told[0].end.norm()), rel=1e-5)


@pytest.mark.parametrize("strategy", ["slowmo", "adaptive-local-sgd", "diloco"])
def test_numbers_travel_as_precisely_as_the_parameters(strategy: str) -> None:
    def live(wire: Wire) -> float:
        current.enter(wire, thread_only=True)
        try:
            quorate.join()
            model = torch.nn.Linear(2, 1, dtype=torch.float64)
            optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy)
            worker = optimizer.__dict__["_quorate_worker"]
            (found,) = worker.replica.numbers_of(worker.means.of(worker.replica.read(numbers=(0.1,))).wait())
            return float(found)
        finally:
            current.forget(thread_only=True)

    assert VirtualWorld(2).run(live) == [0.1, 0.1]
