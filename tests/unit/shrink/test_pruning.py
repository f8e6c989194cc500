"""Pruning of one optimizer: schedules, scores, the guard, the table, a single worker, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.replica.masks import masks_of
from quorate.shrink import Cubic
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.pruned_trainings import Pruned
from tests.support.scene import virtual


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


def distributed(strategy: str = "all-reduce", **settings: Any) -> tuple[nn.Module, Any]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, quorate.distribute(optimizer, model, strategy, **settings)


def step(model: nn.Module, optimizer: Any, seed: int = 0) -> None:
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    (model(inputs) - inputs[:, :4]).square().mean().backward()
    optimizer.step()


def on(size: int, script: Callable[[quorate.World], Any]) -> list[Any]:
    return virtual(size, script)


def test_the_cubic_schedule() -> None:
    schedule = Cubic(begin=10, steps=30, every=10, initial=0.1)
    dues, due = [], schedule.due_after(-1)
    while due is not None:
        dues.append(due)
        due = schedule.due_after(due)
    assert dues == [10, 20, 30, 40]
    expected = [0.9 + (0.1 - 0.9) * (1 - (t - 10) / 30) ** 3 for t in dues]
    assert [schedule.amount_at(t, 0.9) for t in dues] == pytest.approx(expected)
    assert (schedule.due_after(3), schedule.due_after(10), schedule.due_after(40)) == (10, 20, None)
    assert schedule.amount_at(1000, 0.9) == 0.9


@pytest.mark.parametrize("size", [1, 2])
def test_a_schedule_prunes_step_by_step(size: int) -> None:
    def script(world: quorate.World) -> list[float]:
        model, optimizer = distributed()
        schedule = Cubic(begin=2, steps=6, every=2)
        pruning = quorate.shrink.prune(optimizer, amount=0.75, schedule=schedule)
        densities = []
        for number in range(10):
            step(model, optimizer, number)
            pruning.step()
            densities.append(pruning.density)
        optimizer.finish()
        assert [report.amount for report in pruning.reports] == [schedule.amount_at(t, 0.75) for t in (2, 4, 6, 8)]
        return densities

    (densities, *others) = on(size, script)
    assert densities[0] == densities[1] == 1.0
    assert densities == sorted(densities, reverse=True)
    assert densities[-1] == pytest.approx(0.25, abs=0.01)
    assert all(other == densities for other in others)


def test_a_single_worker_prunes_as_several_do() -> None:
    """The plain optimizer is kept, with hooks: decay, momentum and gradients leave pruned numbers at zero."""

    def script(world: quorate.World) -> bool:
        model, optimizer = distributed()
        step(model, optimizer)
        pruning = quorate.shrink.prune(optimizer, amount=0.5)
        kept = pruning.masks["0.weight"]
        for number in range(3):
            step(model, optimizer, number)
            assert not model[0].weight.grad[~kept].any()
            assert not model[0].weight.detach()[~kept].any()
            assert not optimizer.state[model[0].weight]["momentum_buffer"][~kept].any()
        return bool(model[0].weight.detach()[kept].all())

    assert on(1, script) == [True]


@pytest.mark.parametrize("size", [1, 2])
def test_optimizers_that_mix_numbers_leave_pruned_ones_at_zero(size: int) -> None:
    """The steps of Muon are not zero where the gradient is."""

    def script(world: quorate.World) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16, bias=False), nn.Linear(16, 4, bias=False))
        plain = torch.optim.Muon(model.parameters(), lr=0.02)
        optimizer: Any = quorate.distribute(plain, model)
        kept = quorate.shrink.prune(optimizer, amount=0.5).masks["0.weight"]
        for number in range(3):
            step(model, optimizer, number)
        assert not model[0].weight.detach()[~kept].any()

    on(size, script)


@pytest.mark.parametrize("strategy", ["all-reduce", "quorum", "d-psgd"])
def test_movement(strategy: str) -> None:
    """The scores are of the consensus: masks are equal although workers have moved differently."""
    prunes = {"by": "movement", "scope": "global", "schedule": Cubic(begin=4, steps=4, every=4, initial=0.4)}
    ends = Pruned(strategy=strategy, prunes=prunes).run()
    assert all(torch.equal(end.masks, ends[0].masks) for end in ends)
    assert int(ends[0].masks.sum()) == 48
    assert not torch.equal(ends[0].masks, Pruned(strategy=strategy, prunes={"scope": "global"}).run()[0].masks)


def test_the_guard_takes_a_step_back() -> None:
    """Masks, numbers and moments are again as before; the training goes on, and the schedule has stopped."""

    def script(world: quorate.World) -> tuple[float, list[bool]]:
        model, optimizer = distributed("diloco", sync_every=2)
        inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(9))
        evaluate = lambda: (model(inputs) - inputs[:, :4]).square().mean()  # noqa: E731
        schedule = Cubic(begin=60, steps=20, every=20, initial=0.1)
        pruning = quorate.shrink.prune(optimizer, amount=0.98, schedule=schedule, evaluate=evaluate, guard=0.3)
        for number in range(90):
            step(model, optimizer, number)
            pruning.step()
        optimizer.finish()
        assert pruning.has_stopped
        assert "loss" in pruning.table()
        return pruning.density, [report.is_undone for report in pruning.reports]

    density, undone = on(2, script)[0]
    assert undone == [False, True]
    assert density == pytest.approx(0.9, abs=0.01)


def test_the_table_says_before_and_after() -> None:
    def script(world: quorate.World) -> str:
        _, optimizer = distributed()
        pruning = quorate.shrink.prune(optimizer, amount=0.75, sample=torch.zeros(2, 6))
        report = pruning.reports[0]
        assert (report.before.parameters, report.after.parameters) == (180, 60)
        assert (report.before.vector_bytes, report.after.vector_bytes) == (720, 240)
        assert (report.before.operations, report.after.operations) == (640.0, 160.0)
        return pruning.table()

    lines = on(1, script)[0].splitlines()
    assert [line.split() for line in lines] == [
        ["before", "after"],
        ["parameters", "180", "60"],
        ["bytes", "of", "a", "vector", "720", "240"],
        ["operations", "640", "160"],
    ]


def test_filters_go_with_their_biases() -> None:
    def script(world: quorate.World) -> tuple[Any, ...]:
        model, optimizer = distributed()
        quorate.shrink.prune(optimizer, amount=0.5, unit="filter")
        for number in range(3):
            step(model, optimizer, number)
        smaller = quorate.shrink.harden(model)
        inputs = torch.randn(5, 6)
        torch.testing.assert_close(smaller(inputs), model(inputs))
        optimizer.finish()
        return tuple(p.shape for p in smaller.parameters())

    assert on(2, script)[0] == ((8, 6), (8,), (4, 8), (4,))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"amount": 1.0}, "amount is 1.0; it must be a share"),
        ({"amount": True}, "amount is True"),
        ({"amount": 0.5, "scope": "model"}, "scope='model' is unknown; known: global, layer"),
        ({"amount": 0.5, "by": "size"}, "by='size' is unknown"),
        ({"amount": 0.5, "unit": "row"}, "unit='row' is unknown"),
        ({"amount": 0.5, "by": "movement"}, "give it a schedule"),
        ({"amount": 0.5, "guard": 0.1}, "pass evaluate"),
        ({"amount": 0.5, "guard": -1.0, "evaluate": lambda: 0.0}, "guard is -1.0"),
        ({"amount": 0.5, "schedule": Cubic(steps=2, every=1, initial=0.6)}, "amount is only 0.5"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str) -> None:
    def script(world: quorate.World) -> bool:
        _, optimizer = distributed()
        with pytest.raises(ConfigurationError, match=words):
            quorate.shrink.prune(optimizer, **arguments)
        return not masks_of(optimizer).by_tensor

    assert on(1, script) == [True]


@pytest.mark.parametrize("fields", [{"steps": 5, "every": 2}, {"steps": 0, "every": 1}, {"steps": 2, "every": 0}])
def test_wrong_schedules(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="every must be at least 1"):
        Cubic(**fields)


def test_it_needs_a_distributed_optimizer() -> None:
    def script(world: quorate.World) -> None:
        with pytest.raises(ConfigurationError, match="call quorate.distribute before"):
            quorate.shrink.prune(torch.optim.SGD(net().parameters(), lr=0.1), amount=0.5)

    on(1, script)


def refusals(size: int, script: Callable[[quorate.World], Any]) -> list[str]:
    """Return the sentences in which workers end."""
    return [str(outcome.error) for outcome in VirtualWorld(size, timeout=20.0).outcomes(joined(script))]


@pytest.mark.parametrize("strategy", ["all-reduce", "diloco", "quorum"])
def test_a_worker_that_does_not_prune_is_named(strategy: str) -> None:
    def script(world: quorate.World) -> None:
        model, optimizer = distributed(strategy)
        step(model, optimizer)
        if world.rank == 0:
            quorate.shrink.prune(optimizer, amount=0.5)
        for number in range(40):
            step(model, optimizer, number)
        optimizer.finish()

    sentence = refusals(2, script)[1]
    assert "rank 0 trains other parameters since its step 1 (its optimizer is pruned)" in sentence


def test_masks_that_differ_are_refused() -> None:
    def script(world: quorate.World) -> None:
        _, optimizer = distributed()
        quorate.shrink.prune(optimizer, amount=0.5 + 0.1 * world.rank)

    assert all("every worker must build the same model" in sentence for sentence in refusals(2, script))


def test_a_checkpoint_with_a_mask_of_other_numbers_is_refused() -> None:
    from quorate.checkpoint.optimizers import _check_masks
    from quorate.core.errors import CheckpointError

    for masks in ({3: torch.tensor([0])}, {0: torch.tensor([7])}, {0: torch.tensor([-1])}, {0: torch.tensor([0.5])}):
        with pytest.raises(CheckpointError, match="mask"):
            _check_masks([torch.zeros(4)], masks)
