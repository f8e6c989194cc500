"""Means of tables of which a step touches few rows, under all-reduce, in everything that a training may do."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError, NotFinite
from tests.support.scene import Scene, Trainer, flat, virtual
from tests.support.tables import ROWS, Bags, Words, drawn, loss_of, of_rank

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant")  # of torch.optim.Adagrad

SGD = partial(torch.optim.SGD, lr=0.05)
Step = Callable[[nn.Module, torch.optim.Optimizer, int], None]


def alone(model: Callable[[], nn.Module], steps: int, step: Step, make: Any = SGD) -> Tensor:
    torch.manual_seed(0)
    net = model()
    optimizer = make(net.parameters())
    for number in range(steps):
        step(net, optimizer, number)
    return flat(net)


def together(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, size: int = 2) -> None:
    optimizer.zero_grad()
    sum(loss_of(model, step, rank) / size for rank in range(size)).backward()  # type: ignore[union-attr]
    optimizer.step()


def assert_same(x: Tensor, y: Tensor) -> None:
    torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


def test_a_table_alone_is_trained_by_sparse_adam() -> None:
    make = lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.05)  # noqa: E731
    end = Scene(size=3, model=Words, make=make, loss=of_rank, steps=5).end()
    assert_same(end, alone(Words, 5, partial(together, size=3), make))


def test_a_table_and_the_rest_may_have_optimizers_of_their_own() -> None:
    def optimizers(model: Bags) -> list[torch.optim.Optimizer]:
        tables = [model.bags.weight, model.words.weight]
        return [torch.optim.SparseAdam(tables, lr=0.05), torch.optim.AdamW(model.linear.parameters(), lr=0.05)]

    def train(model: Bags, both: list[torch.optim.Optimizer], ranks: list[int], steps: int) -> Tensor:
        for step in range(steps):
            for optimizer in both:
                optimizer.zero_grad()
            (sum(loss_of(model, step, rank) for rank in ranks) / len(ranks)).backward()
            for optimizer in both:
                optimizer.step()
        return flat(model)

    def task(world: quorate.World) -> Tensor:
        torch.manual_seed(0)
        model = Bags()
        both: Any = [quorate.distribute(optimizer, model) for optimizer in optimizers(model)]
        train(model, both, [world.rank], 4 + world.rank)  # the last worker ends later
        for optimizer in both:
            optimizer.finish()
        return flat(model)

    ends = virtual(2, task)
    assert torch.equal(ends[0], ends[1])
    torch.manual_seed(0)
    model = Bags()
    both = optimizers(model)
    train(model, both, [0, 1], 4)
    for optimizer in both:
        optimizer.zero_grad()
    loss_of(model, 4, 1).backward()
    for optimizer in both:
        optimizer.step()
    assert_same(ends[0], flat(model))


def test_gradients_accumulate() -> None:
    def loss(trainer: Trainer) -> Tensor:
        seen = trainer.seen
        seen.append(None)
        return loss_of(trainer.model, len(seen) - 1, trainer.rank) / 2

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.zero_grad()
        for part in (2 * number, 2 * number + 1):
            (sum(loss_of(model, part, rank) for rank in range(2)) / 4).backward()  # type: ignore[union-attr]
        optimizer.step()

    end = Scene(size=2, model=Bags, make=SGD, loss=loss, passes=2, steps=4).end()
    assert_same(end, alone(Bags, 4, step))


def test_losses_are_weighed_by_their_counts() -> None:
    counts = [[3, 1], [1, 5]]

    def task(world: quorate.World) -> Tensor:
        torch.manual_seed(0)
        model = Bags()
        optimizer = quorate.distribute(SGD(model.parameters()), model)
        for step in range(3):
            optimizer.zero_grad()
            for part in range(2):
                count = counts[world.rank][part]
                optimizer.weight(count)
                with optimizer.accumulate() if part == 0 else torch.enable_grad():
                    loss_of(model, step, world.rank + 2 * part, count).backward()
            optimizer.step()
        optimizer.finish()
        return flat(model)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.zero_grad()
        terms = [(counts[rank][part], rank + 2 * part) for rank in range(2) for part in range(2)]
        total: Any = sum(count * loss_of(model, number, draw, count) for count, draw in terms)
        (total / sum(count for count, _ in terms)).backward()
        optimizer.step()

    ends = virtual(2, task)
    assert torch.equal(ends[0], ends[1])
    assert_same(ends[0], alone(Bags, 3, step))


def touches_nothing(trainer: Trainer) -> Tensor:
    """Rank 1 touches no table in odd steps, and nobody does in every third."""
    model, is_late = trainer.model, trainer.rank == 1 and trainer.step % 2
    if is_late or trainer.step % 3 == 0:
        return model.linear(torch.ones(2, 3, dtype=torch.float64)).square().mean()
    return of_rank(trainer)


def test_workers_may_touch_no_row() -> None:
    def step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.zero_grad()
        losses = [
            model.linear(torch.ones(2, 3, dtype=torch.float64)).square().mean()
            if (rank == 1 and number % 2) or number % 3 == 0
            else loss_of(model, number, rank)
            for rank in range(2)
        ]
        (sum(losses) / 2).backward()
        optimizer.step()

    end = Scene(size=2, model=Bags, make=SGD, loss=touches_nothing, steps=6).end()
    assert_same(end, alone(Bags, 6, step))


def test_only_touched_rows_are_in_the_gradient() -> None:
    def look(trainer: Trainer) -> None:
        grad = trainer.model.words.weight.grad
        assert grad.layout is torch.sparse_coo
        assert grad.is_coalesced()
        rows = {int(x) for rank in range(2) for x in drawn(trainer.step, rank)[:, 0]} - {0}
        assert set(grad.indices()[0].tolist()) == rows

    Scene(size=2, model=Bags, make=SGD, loss=of_rank, between=look, steps=4).ends()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_are_added_in_the_dtype_of_summation(dtype: torch.dtype) -> None:
    def task(world: quorate.World) -> Tensor:
        table = nn.Embedding(4, 2, sparse=True, dtype=dtype)
        quorate.distribute(SGD(table.parameters()), table)
        number = 1.0 if world.rank == 0 else 2.0**-9
        (table(torch.tensor([2, 2])) * number).sum().backward()
        assert table.weight.grad is not None
        return table.weight.grad.to_dense()[2]

    mean = torch.tensor(2 * (1.0 + 2 * 2.0**-9) / 3).to(dtype)
    for own in virtual(3, task):
        torch.testing.assert_close(own, mean.expand(2), rtol=1e-7, atol=0)


def test_a_table_that_is_tied_to_a_layer_stays_dense() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(ROWS, 3, sparse=True, dtype=torch.float64)
            self.out = nn.Linear(3, ROWS, bias=False, dtype=torch.float64)
            self.out.weight = self.words.weight

        def forward(self, indices: Tensor) -> Tensor:
            return self.out(self.words(indices)).square()

    def begin(trainer: Trainer) -> None:
        assert trainer.worker.replica.sparse_tables == []

    end = Scene(size=2, model=Tied, make=SGD, loss=of_rank, steps=3, begin=begin).end()
    assert_same(end, alone(Tied, 3, together))


class TiedByHand(nn.Module):
    """The table is also used as a matrix, by ranks and in steps of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, 3, sparse=True, dtype=torch.float64)

    def forward(self, indices: Tensor) -> Tensor:
        found = self.words(indices)
        return (found @ self.words.weight.T if int(indices.sum()) % 2 else found).square()


def test_a_dense_gradient_of_a_sparse_table_counts_as_all_rows() -> None:
    end = Scene(size=3, model=TiedByHand, make=SGD, loss=of_rank, steps=6).end()
    assert_same(end, alone(TiedByHand, 6, partial(together, size=3)))


def test_a_gradient_scaler_finds_infinite_rows() -> None:
    def task(world: quorate.World) -> tuple[float, Tensor]:
        torch.manual_seed(0)
        model = Words()
        optimizer = quorate.distribute(torch.optim.SparseAdam(list(model.parameters()), lr=0.1), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(3):
            optimizer.zero_grad()
            factor = math.inf if (step, world.rank) == (1, 1) else 1.0
            scaler.scale(loss_of(model, step, world.rank) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.finish()
        return scaler.get_scale(), flat(model)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        if number != 1:
            together(model, optimizer, number)

    make = lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.1)  # noqa: E731
    for scale, end in virtual(2, task):
        assert scale == 4.0
        assert_same(end, alone(Words, 3, step, make))


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_a_row_that_is_not_finite_is_noticed(policy: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def loss(trainer: Trainer) -> Tensor:
        return of_rank(trainer) * (math.nan if (trainer.step, trainer.rank) == (1, 1) else 1.0)

    scene = Scene(size=2, model=Words, make=SGD, loss=loss, steps=3, on_nonfinite=policy)
    if policy == "raise":
        errors = [outcome.error for outcome in scene.outcomes()]
        assert any(isinstance(error, NotFinite) for error in errors)
        return

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        if number != 1:
            together(model, optimizer, number)

    assert_same(scene.end(), alone(Words, 3, step))
    assert "first in words.weight" in capfd.readouterr().err


def test_a_training_resumes_with_the_same_bits(tmp_path: Path) -> None:
    make = partial(torch.optim.Adagrad, lr=0.05)
    scene = Scene(size=2, model=Bags, make=make, loss=of_rank, steps=6)
    whole, resumed = scene.resumed(tmp_path, 3, 4)
    assert all(map(torch.equal, whole, resumed))


def test_evaluations_and_workers_that_end_earlier() -> None:
    def rest(trainer: Trainer) -> None:
        before = trainer.model.words.weight.grad
        loss_of(trainer.model, 0, trainer.rank).backward()
        trainer.optimizer.zero_grad()
        del before

    scene = Scene(size=3, model=Bags, make=SGD, loss=of_rank, steps=[3, 4, 6], rests=[1, 2], rest=rest)
    ends = scene.ends()
    assert all(torch.equal(end, ends[0]) for end in ends)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.zero_grad()
        losses: list[Any] = [loss_of(model, number, rank) for rank in range(3) if number < [3, 4, 6][rank]]
        (sum(losses) / len(losses)).backward()
        optimizer.step()

    assert_same(ends[0], alone(Bags, 6, step))


def test_a_backward_pass_inside_an_evaluation_after_the_agreement_is_refused() -> None:
    def task(world: quorate.World) -> None:
        model = Words()
        quorate.distribute(SGD(model.parameters()), model, with_one_worker="algorithm")
        loss_of(model, 0, world.rank).backward()
        with pytest.raises(ConfigurationError, match="backward pass inside"), world.evaluate():
            loss_of(model, 1, world.rank).backward()
        raise StopIteration

    with pytest.raises(StopIteration):
        virtual(1, task)


def test_a_table_freezes_and_thaws() -> None:
    def before(trainer: Trainer) -> None:
        trainer.model.words.weight.requires_grad_(trainer.step not in (2, 3))
        if trainer.step in (2, 3):
            trainer.model.words.weight.grad = None

    def step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> None:
        model.words.weight.requires_grad_(number not in (2, 3))
        together(model, optimizer, number)

    end = Scene(size=2, model=Bags, make=SGD, loss=of_rank, before=before, steps=6).end()
    assert_same(end, alone(Bags, 6, step))


@pytest.mark.parametrize(
    "settings", [{"compress": "half", "dense_below": 0}, {"reduce": "ring"}, {"compress": "power-sgd"}]
)
def test_codecs_and_algorithms_of_sums_change_the_dense_part_only(settings: dict[str, Any]) -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.scale = Words(), nn.Linear(1, 1, bias=False)

        def forward(self, indices: Tensor) -> Tensor:
            return self.words(indices) + 0.0 * self.scale.weight.sum()

    end = Scene(size=2, model=Tables, make=SGD, loss=of_rank, steps=4, **settings).end()
    assert_same(end, alone(Tables, 4, together))


def test_replicas_that_differ_in_a_table_are_found() -> None:
    def edit(trainer: Trainer) -> None:
        if (trainer.rank, trainer.step) == (1, 2):
            with torch.no_grad():
                trainer.model.words.weight.add_(1.0)

    outcomes = Scene(size=2, model=Bags, make=SGD, loss=of_rank, before=edit, steps=9).outcomes()
    sentences = [str(outcome.error) for outcome in outcomes]
    assert any("words.weight" in sentence and "found at update" in sentence for sentence in sentences)


def test_models_whose_tables_are_sparse_on_some_workers_only_are_refused() -> None:
    def task(world: quorate.World) -> None:
        table = nn.Embedding(4, 2, sparse=world.rank == 0)
        with pytest.raises(ConfigurationError, match="sparse weight"):
            quorate.distribute(SGD(table.parameters()), table)
        raise StopIteration

    with pytest.raises(StopIteration):
        virtual(2, task)


def without(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, dead_from: int) -> None:
    """One step of three workers, of which the last one is dead from a step on."""
    optimizer.zero_grad()
    losses: list[Any] = [loss_of(model, number, rank) for rank in range(2 if number >= dead_from else 3)]
    (sum(losses) / len(losses)).backward()
    optimizer.step()


@pytest.mark.parametrize("at", [1, 4, 8, 13, 19, 26])
def test_sums_of_rows_go_on_without_the_dead(at: int) -> None:
    scene = Scene(size=3, model=Bags, make=SGD, loss=of_rank, steps=4, deaths={2: at}, on_death="continue")
    ends = list(scene.survivors(lambda trainer: trainer.parameters).values())
    assert all(torch.equal(end, ends[0]) for end in ends)
    ways = [alone(Bags, 4, partial(without, dead_from=step)) for step in range(5)]
    assert any(torch.allclose(ends[0], way, rtol=0, atol=1e-9) for way in ways)


@pytest.mark.parametrize("size", [2, 3])
def test_sums_that_go_on_after_deaths_are_the_same(size: int) -> None:
    fields: dict[str, Any] = {"model": Bags, "make": SGD, "loss": of_rank, "steps": [4, *[6] * (size - 1)]}
    ends = Scene(size=size, **fields, on_death="continue").ends()
    assert all(torch.equal(end, ends[0]) for end in ends)
    assert torch.equal(ends[0], Scene(size=size, **fields).ends()[0])


def test_a_newcomer_gets_the_tables_and_contributes_rows() -> None:
    fields: dict[str, Any] = {"model": Bags, "make": partial(torch.optim.Adagrad, lr=0.05), "loss": of_rank}
    world = {"joiners": 1, "timeout": 20.0}
    scene = Scene(size=2, **fields, steps=[40, 40, 10], pause=0.01, on_death="continue", world=world)
    trainers = scene.run()
    assert [trainer.step for trainer in trainers] == [40, 40, 10]
    ends = [trainer.parameters for trainer in trainers]
    assert all(torch.equal(end, ends[0]) for end in ends)
