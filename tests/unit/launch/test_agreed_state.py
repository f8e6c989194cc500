"""`state_dict()` of a script's model on one worker alone, under strategies whose replicas differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.launch.takeover.wrapper import DistributedDataParallel, TakenOver
from quorate.launch.worker.world import World
from quorate.train.chosen import Chosen
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

Looks = Callable[[int, Any], None]


def train(name: str, settings: Mapping[str, object], steps: int, look: Callable[[World], Looks]) -> None:
    """Let each worker of three call the result of `look` with the number of each step and the model, after it."""

    def task(world: World) -> None:
        current.here().context(Chosen).strategy_name, current.here().context(Chosen).settings = name, settings
        model = DistributedDataParallel(nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        looks = look(world)
        for number in range(1, steps + 1):
            optimizer.zero_grad()
            model(torch.full((1, 3), 1.0 + world.rank)).square().mean().backward()
            optimizer.step()
            looks(number, model)

    VirtualWorld(3, seed=3).run(joined(task))


def test_the_newest_mean_is_kept_from_the_first_request_on(capsys: pytest.CaptureFixture[str]) -> None:
    means, states = dict[int, Tensor](), dict[int, Tensor]()

    def look(world: World) -> Looks:
        def looks(number: int, model: Any) -> None:
            own = model.module.weight.detach().clone()
            if number % 3 == 0 and world.rank == 1:
                means[number] = own
            if world.rank == 0 and number in (2, 4, 7, 9, 11):
                states[number] = model.state_dict()["module.weight"].clone()
                assert torch.equal(states[number], own) == (number in (2, 9)), "own before a mean, and in one"
                assert torch.equal(model.state_dict(keep_vars=True)["module.weight"], own), "the parameter itself"
                assert model.state_dict(keep_vars=True)["module.weight"] is model.module.weight

        return looks

    train("local-sgd", {"sync_every": 3}, 12, look)
    assert [torch.equal(states[step], means[mean]) for step, mean in ((4, 3), (7, 6), (9, 9), (11, 9))] == [True] * 4
    told = capsys.readouterr().err
    assert told.count("and is this worker's own replica, as workers have not agreed on one yet") == 1
    assert told.count("is the model on which all workers agreed last, after step 3 of 4\n") == 1
    assert told.count("state_dict()") == 2


def test_an_average_of_each_step_is_of_the_own_replica(capsys: pytest.CaptureFixture[str]) -> None:
    def look(world: World) -> Looks:
        def looks(number: int, model: Any) -> None:
            if number == 1:
                model.eval()
                model.train()
            elif number <= 20:
                is_own = torch.equal(model.state_dict()["module.weight"], model.module.weight)
                assert is_own == (number > 11)
            if number == 22:
                saved = model.state_dict()["module.weight"]
                assert not torch.equal(saved, model.module.weight), "another line"

        return looks

    train("d-psgd", {}, 22, look)
    assert capsys.readouterr().err.count("called by one line in each step, as for a moving average") == 3


@pytest.mark.parametrize(
    ("name", "settings"), [("local-sgd", {"sync_every": 1}), ("all-reduce", {}), ("local-sgd", {})]
)
def test_nothing_is_kept_where_it_is_not_needed(name: str, settings: Mapping[str, object]) -> None:
    """Where replicas are equal after each step, and before a pause or a request."""

    def look(world: World) -> Looks:
        def looks(number: int, model: Any) -> None:
            agreed = current.here().context(TakenOver).agreed
            assert agreed is not None and len(agreed._copies) == 0
            if settings or name == "all-reduce":
                assert torch.equal(model.state_dict()["module.weight"], model.module.weight)

        return looks

    train(name, settings, 10, look)


def test_a_loaded_state_is_the_newest(capsys: pytest.CaptureFixture[str]) -> None:
    def look(world: World) -> Looks:
        def looks(number: int, model: Any) -> None:
            if number == 1:
                model.eval()
                model.train()
            if number == 3:
                model.load_state_dict({"module.weight": torch.full((1, 3), 2.0), "module.bias": torch.zeros(1)})
                assert model.state_dict()["module.weight"].eq(2.0).all()

        return looks

    train("d-psgd", {}, 4, look)


@pytest.mark.parametrize("last", ["a save", "a save, then an evaluation", "an evaluation", "nothing"])
def test_a_sentence_says_what_a_last_save_lacks(last: str, capsys: pytest.CaptureFixture[str]) -> None:
    def look(world: World) -> Looks:
        def looks(number: int, model: Any) -> None:
            if number == 4 or (number == 7 and last.startswith("a save") and world.rank == 0):
                model.state_dict()
            if number == 7 and last.endswith("an evaluation"):
                model.eval()
                model.state_dict()
                model.train()

        return looks

    train("eager-solo", {}, 7, look)
    sentence = "quorate: rank 0: state_dict() was called after the last step, and lacks what was pending then"
    assert capsys.readouterr().err.count(sentence) == (last == "a save")


@pytest.mark.parametrize(("strategy", "sentences"), [("local-sgd", 1), ("d-psgd", 1), ("all-reduce", 0)])
def test_a_moving_average_of_a_replica_that_differs_is_named(
    strategy: str, sentences: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def look(world: World) -> Looks:
        agreed = current.here().context(TakenOver).agreed
        assert agreed is not None
        return lambda number, model: agreed.averages() if world.rank == 1 else None

    train(strategy, {}, 4, look)
    assert capsys.readouterr().err.count("averages this worker's own replica") == sentences
