"""The laws of strategies of local steps, among virtual workers, against P models that are trained in turn."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat
from quorate.launch.worker.world import World
from quorate.records.records import records_of, rows
from quorate.replica.outer_optimizer import updater
from quorate.strategies.parts.local_steps import period_from
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.local_trainings import (
    MOMENTUM,
    RATE,
    SIZES,
    STEPS,
    Models,
    average,
    average_momenta,
    close,
    in_turn,
    loss,
    net,
    put,
    trained,
    training,
)
from tests.support.scene import Scene, Trainer, flat, ones, ranked, zeros


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

        published: dict[str, Any] = {"outer_rate": 0.7, "outer_momentum": 0.9}
        close(trained(size, "diloco", sync_every=3, **published), in_turn(size, 3, agree))

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
            steps = [STEPS + 2 * rank for rank in range(size)]
            trainers = training(strategy, size, steps=steps, rests=(5, 10), **settings).run()
            for one in trainers:
                assert torch.equal(one.parameters, trainers[0].parameters), strategy
                assert all(torch.equal(x, y) for x, y in zip(one.seen, trainers[0].seen, strict=True)), strategy
            assert trainers[0].parameters.isfinite().all()


@pytest.mark.parametrize(("steps", "period"), [(5, 4), (7, 3), (9, 2)])
@pytest.mark.parametrize("slow", [0, 2])
def test_updates_of_a_slow_worker_count_alike_after_the_others_have_ended(steps: int, period: int, slow: int) -> None:
    """Each update counts with weight 1 / P, so that constant gradients add up to P workers' mean step."""

    def task(world: World) -> float:
        model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        quorate.distribute(optimizer, model, strategy="eager-averaging", sync_every=period, wait_for=1)
        for _ in range(steps):
            model(torch.full((1, 1), world.rank + 1.0, dtype=torch.float64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.finish()
        return model.weight.item()

    world = VirtualWorld(3, compute=lambda rank, _: 0.07 if rank == slow else 0.01)
    assert world.run(joined(task)) == pytest.approx([-0.1 * steps * 2.0] * 3, abs=1e-12)


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


def count_means(trainer: Trainer) -> None:
    """Note every mean that this worker asks for."""

    def counted(mean: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        trainer.seen.append("mean")
        return mean(*args, **kwargs)

    means = trainer.worker.means
    means.of, means.of_gradient = partial(counted, means.of), partial(counted, means.of_gradient)


@pytest.mark.parametrize("size", [2, 3])
def test_steps_are_synchronous_until_the_learning_rate_falls(size: int) -> None:
    falls = lambda step: min(1.0, (step + 1) / 3) if step < 6 else 0.1  # noqa: E731
    trainers = training("post-local-sgd", size, begin=count_means, schedule=falls, sync_every=3).run()
    # Six steps at the high rate, and one at the low one, in which all are told; the last mean is that of the turn.
    assert [len(one.seen) for one in trainers] == [6 + 2 + 1 + 1] * size  # then five local ones with one mean


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
    choice: Any = {"pause": lambda rank, step: pauses[rank], "begin": count_means}
    trainers = training("local-sgd", 3, steps=[60, 20, 6], sync_every="200ms", **choice).run()
    assert all(torch.equal(one.parameters, trainers[0].parameters) for one in trainers)
    assert max(max(one.waits) for one in trainers) < 0.01 + max(pauses) + 0.01
    assert min(len(one.seen) for one in trainers) >= 2
    in_step = training("local-sgd", 3, sync_every=6, **choice).run()
    assert max(max(one.waits) for one in in_step) > 0.4  # what it spares


def test_who_has_done_more_counts_more() -> None:
    end = training("local-sgd", 2, steps=[1, 3], sync_every="10s", heavy=0.0).end()
    ends = []
    for rank in range(2):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for step in range(1 + 2 * rank):
            optimizer.zero_grad()
            loss(model, rank, step).backward()
            optimizer.step()
        ends.append(flat(model))
    close(end, (ends[0] + 3 * ends[1]) / 4)


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

    def both(trainer: Trainer) -> None:
        model, worker = trainer.model, trainer.worker
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

    training("local-sgd", 1).act(both)


def test_what_an_outer_optimizer_does_not_take_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the setting outer"):
        training("diloco", 1, sync_every=1, outer="momentum").run()
    with pytest.raises(ConfigurationError, match="outer_rate=0.0"):
        training("diloco", 1, outer_rate=0.0).run()
    with pytest.raises(ConfigurationError, match="beta=1.0"):
        training("slowmo", 1, beta=1.0).run()


@pytest.mark.seeds(3, 6)
def test_what_every_worker_went_counts_once_however_late(seed: int) -> None:
    """With gradients that do not depend on where a worker is, the order does not matter: the end is known."""
    size, steps = 4, 14
    settings = {"sync_every": 2, "wait_for": 1 + seed % 3, "max_staleness": 40, "world": {"seed": seed}}
    fields: Any = {"model": zeros(3), "rate": 0.5, "loss": ranked, "steps": [steps + rank for rank in range(size)]}
    pause = lambda rank, step: random.Random(1000 * seed + 100 * rank + step).uniform(0.0, 0.05)  # noqa: E731
    trainers = Scene("eager-averaging", size, pause=pause, **fields, **settings).run()
    went = sum(-0.5 * (rank + 1) * (steps + rank) for rank in range(size)) / size
    for one in trainers:
        taken = sum(round.sum.segment(0).reshape(-1) for round in one.rounds if round.sum is not None)
        close(taken / size, torch.full((3,), went))  # what rounds have taken; of a power of two workers not yet divided
        assert torch.equal(one.parameters, trainers[0].parameters)
        assert (one.parameters < went + 1e-3).all()  # divided by those that still step, which grow fewer


@pytest.mark.parametrize("is_apart", [True, False])
def test_more_local_steps_are_taken_where_replicas_go_the_same_way(is_apart: bool) -> None:
    way = lambda trainer: ones(trainer) * (-1 if is_apart and trainer.rank else 1)  # noqa: E731
    last = lambda trainer: trainer.seen.append(trainer.worker.state.period)  # noqa: E731
    fields: Any = {"model": zeros(3), "rate": 0.01, "steps": 60, "loss": way, "last": last}
    trainers = Scene("adaptive-local-sgd", 2, sync_every=4, least=2, most=16, **fields).run()
    assert [one.seen for one in trainers] == [[2 if is_apart else 16]] * 2


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
    ends = training(strategy, 2, records=tmp_path, **settings).ends()
    first, second = ([row for row in rows(records_of(tmp_path, rank)) if row["kind"] == "distance"] for rank in (0, 1))
    assert len(first) == len(second) == means
    for one, other in zip(first, second, strict=True):
        assert one["distance"] == pytest.approx(other["distance"], rel=1e-3)  # two are equally far from their mean
        assert 0 < one["distance"] < one["norm"] == pytest.approx(other["norm"])
    if strategy == "local-sgd":
        assert first[-1]["norm"] == pytest.approx(float(ends[0].norm()), rel=1e-5)


@pytest.mark.parametrize("strategy", ["slowmo", "adaptive-local-sgd", "diloco"])
def test_numbers_travel_as_precisely_as_the_parameters(strategy: str) -> None:
    def play(trainer: Trainer) -> float:
        means, replica = trainer.worker.means, trainer.worker.replica
        (found,) = replica.numbers_of(means.of(replica.read(numbers=(0.1,))).wait())
        return float(found)

    assert Scene(strategy, 2, model=partial(nn.Linear, 2, 1, dtype=torch.float64)).act(play) == [0.1, 0.1]
