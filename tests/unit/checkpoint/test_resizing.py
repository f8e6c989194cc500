"""Going on with another number of workers: what is equal stays, what each had is dealt out by its law."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import CheckpointError, ConfigurationError
from quorate.core.resize import dealt, kept, laws_of, resized
from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat
from quorate.launch.worker.world import World
from tests.support.kept_trainings import dataset, in_world, train


def test_four_then_two_then_three_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """40 examples in batches of 2: an epoch is 20 batches, whoever computes them."""
    first = in_world(4, tmp_path, lambda world: train(world, 3, saves=lambda rank, step: step == 3))
    second = in_world(2, tmp_path, lambda world: train(world, 6, saves=lambda rank, step: step == 6))
    third = in_world(3, tmp_path, lambda world: train(world, 7))
    assert "resumed with 2 workers what 4 had begun" in capsys.readouterr().err
    assert [end.began for end in second + third] == [3, 3, 6, 6, 6]
    for ends in (first, second, third):
        assert all(torch.equal(x, y) for end in ends for x, y in zip(ends[0].state[:2], end.state[:2], strict=True))
    seen = [index for ends in (first, second, third) for end in ends for index in end.seen]
    assert len(seen) == 24 + 12 + 6, "four are left, and two of them fill up the third worker's batch"
    assert len(set(seen)) == 40, "an example of the epoch came twice, or not at all"


@dataclass
class Memory:
    """One field for each law."""

    anchor: Flat = kept("same")
    residual: Flat | None = kept("sum", default=None)
    mass: float = kept("sum", default=1.0)
    speed: list[float] = kept("average", default_factory=list)
    pieces: list[float] = kept("total", default_factory=list)
    scratch: int = kept("drop", default=0)


@dataclass(frozen=True, kw_only=True)
class Remembers(Strategy):
    """Local steps, and a state that says who has it."""

    own: bool = False

    def start(self, worker: Worker) -> Any:
        if self.own:
            return Own(worker.rank)
        return Memory(worker.parameters, None, 1.0, [float(worker.rank), 1.0], [float(worker.rank), 1.0], 0)

    def step(self, worker: Worker) -> None:
        worker.update(worker.gradient)
        if not self.own:
            state = worker.state
            state.residual = worker.gradient * 0 + Flat(
                [torch.ones_like(x) for x in worker.gradient.parts], worker.gradient.layout
            ) * float(worker.rank + 1)
            state.mass += worker.rank
            state.scratch += 1


@dataclass
class Own:
    """State that no other worker can take over."""

    number: int = kept("own")


def remember(world: World, steps: int, *, own: bool = False) -> Any:
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    optimizer: Any = quorate.distribute(
        torch.optim.SGD(model.parameters(), lr=0.1), model, Remembers(own=own), with_one_worker="algorithm"
    )
    began = quorate.load()
    x, y = dataset().tensors
    for _ in range(steps):
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if steps:
        quorate.save()
    return began, optimizer.__dict__["_quorate_worker"].state


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_law(size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = in_world(3, tmp_path, lambda world: remember(world, 2))
    after = in_world(size, tmp_path, lambda world: remember(world, 0))
    old, new = [state for _, state in before], [state for _, state in after]
    assert [began for began, _ in after] == [2] * size
    for state in new:
        assert all(torch.equal(x, y) for x, y in zip(state.anchor.segments(), old[0].anchor.segments(), strict=True))
        assert state.scratch == 0
    assert sum(state.mass for state in new) == sum(state.mass for state in old) == 3 + 2 * 3
    assert sum(float(state.residual.parts[0][0]) for state in new if state.residual is not None) == 1 + 2 + 3
    expected = [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]] if size == 3 else [[1.0, 1.0]] * size
    assert [state.speed for state in new] == expected
    assert [state.pieces for state in new] == [[3.0, 3.0]] * size, "also where there are as many workers"
    assert ("resized by the law sum: residual of Remembers" in capsys.readouterr().err) == (size != 3)


def test_what_belongs_to_a_worker_alone_goes_on_only_with_as_many(tmp_path: Path) -> None:
    in_world(3, tmp_path, lambda world: remember(world, 1, own=True))
    assert [state.number for _, state in in_world(3, tmp_path, lambda world: remember(world, 0, own=True))] == [0, 1, 2]

    def refused(world: World) -> None:
        with pytest.raises(CheckpointError, match="number of Remembers belongs to each worker by itself, .* with -n 3"):
            remember(world, 0, own=True)

    in_world(2, tmp_path, refused)


def test_another_strategy_takes_the_model_and_says_what_begins_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_world(2, tmp_path, lambda world: train(world, 4, saves=lambda rank, step: step == 4, strategy="all-reduce"))
    in_world(2, tmp_path, lambda world: train(world, 8, saves=lambda rank, step: step == 7, strategy="quorum"))
    ends = in_world(3, tmp_path, lambda world: train(world, 9, strategy="all-reduce"))
    assert all(end.began is not None and end.began >= 6 for end in ends)
    assert capsys.readouterr().err.count("resumed after step") == 2


def test_a_state_says_the_law_of_every_field() -> None:
    @dataclass
    class Silent:
        mass: float = 1.0

    with pytest.raises(
        ConfigurationError, match="mass of Silent has no resize law; known: average, clients, drop, keyed"
    ):
        laws_of(Silent())
    with pytest.raises(ConfigurationError, match="the state of a strategy must be a dataclass"):
        laws_of(object())
    with pytest.raises(ConfigurationError, match='unknown resize law "median"'):
        kept("median")
    assert laws_of(None) == {}


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_old_worker_goes_to_exactly_one_new_one(count: int, size: int) -> None:
    assert sorted(old for rank in range(size) for old in dealt(count, rank, size)) == list(range(count))


def test_sums_are_kept_inside_of_collections() -> None:
    old = [
        {"a": [1.0, torch.ones(2)], "b": 2},
        {"a": [2.0, torch.ones(2)], "b": 3},
        {"a": [4.0, torch.ones(2)], "b": 5},
    ]
    new = [resized("sum", "x", old, rank, 2) for rank in range(2)]
    assert [value["a"][0] for value in new] == [5.0, 2.0]
    assert [value["b"] for value in new] == [7, 3]
    assert torch.equal(new[0]["a"][1], torch.full((2,), 2.0))
    empty = resized("sum", "x", [1.5, None], 2, 3)
    assert empty == 0.0


def test_what_is_kept_by_rank_is_empty_where_ranks_are_others() -> None:
    old = [{1: 2.0}, {0: 3.0}]
    assert [resized("keyed", "x", old, rank, 2) for rank in range(2)] == old
    assert [resized("keyed", "x", old, rank, 3) for rank in range(3)] == [{}, {}, {}]


def test_what_is_kept_by_client_goes_to_the_worker_that_plays_it() -> None:
    old: list[dict[int, float]] = [{0: 0.5, 4: 4.5}, {1: 1.5, 5: 5.5}]
    assert [resized("clients", "x", old, rank, 2) for rank in range(2)] == old
    assert [resized("clients", "x", old, rank, 3) for rank in range(3)] == [{0: 0.5}, {4: 4.5, 1: 1.5}, {5: 5.5}]
