"""A training that was cut off and goes on is the one that was not, bit for bit, where all workers step together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quorate
from quorate.checkpoint.folder import complete_ones
from quorate.core.errors import CheckpointError, ConfigurationError
from quorate.launch.worker.world import World
from tests.support.kept_trainings import Told, dataset, in_world, net, told, train
from tests.support.scene import Scene, Trainer

STEPS = 17
"""An epoch has 20 (one worker), 10 (two) or 7 (three): some trainings end in the middle of one."""


def equal(first: Told, second: Told) -> None:
    assert all(torch.equal(x, y) for x, y in zip(first.state, second.state, strict=True))
    assert (first.draws, first.learning_rate) == (second.draws, second.learning_rate)


def whole_batch(trainer: Trainer) -> torch.Tensor:
    x, y = dataset().tensors
    return (trainer.model(x) - y).square().mean()


def scene(size: int, root: Path, **fields: Any) -> Scene:
    """Workers on nets of their own that go on from a checkpoint in `root`."""
    own: Any = {"model": lambda: net(torch.initial_seed()), "seed": "rank", "loss": whole_batch}
    return Scene("all-reduce", size, root=root, loads=True, world={"generators": True}, **own, **fields)


def tell(trainer: Trainer) -> Told:
    return told(trainer.model, trainer.optimizer, [], trainer.began)


def both_ways(
    size: int, root: Path, saves: Callable[[int, int], bool], cut: int, **choice: Any
) -> tuple[list[Told], list[Told]]:
    """The training in one go, and cut off after `cut` steps and gone on with."""
    whole = in_world(size, root / "none", lambda world: train(world, STEPS, **choice))
    in_world(size, root / "kept", lambda world: train(world, cut, saves=saves, **choice))
    return whole, in_world(size, root / "kept", lambda world: train(world, STEPS, **choice))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_it_goes_on_bit_for_bit(size: int, optimizer: str, tmp_path: Path) -> None:
    whole, rest = both_ways(
        size, tmp_path, lambda rank, step: step in (4, 8), 11, optimizer=optimizer, is_scaled=optimizer == "sgd"
    )
    for uninterrupted, resumed in zip(whole, rest, strict=True):
        equal(uninterrupted, resumed)
        assert resumed.began == 8
        assert uninterrupted.seen[-len(resumed.seen) :] == resumed.seen
        assert len(resumed.seen) == 2 * (STEPS - 8)
    assert [path.name for path in complete_ones(tmp_path / "kept")] == ["step-00000008", "step-00000004"]


def test_a_position_between_two_epochs(tmp_path: Path) -> None:
    whole, rest = both_ways(2, tmp_path, lambda rank, step: step == 10, 12)
    for uninterrupted, resumed in zip(whole, rest, strict=True):
        equal(uninterrupted, resumed)
        assert uninterrupted.seen[-len(resumed.seen) :] == resumed.seen


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("saved", "now"), [("all-reduce", "quorum"), ("local-sgd", "eager-majority")])
def test_schedules_go_on_where_rounds_begin(saved: str, now: str, size: int, tmp_path: Path) -> None:
    def live(world: World, strategy: str, steps: int) -> tuple[int | None, list[float]]:
        model, rates = net(0), list[float]()
        optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.5), model, strategy)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        began = quorate.load(scheduler=scheduler)
        for _ in range(steps):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        quorate.save(scheduler=scheduler)
        optimizer.finish()
        return began, rates

    in_world(size, tmp_path, lambda world: live(world, saved, 6))
    assert in_world(size, tmp_path, lambda world: live(world, now, 5)) == [(6, [0.25] * 3 + [0.125] * 2)] * size
    assert in_world(size, tmp_path, lambda world: live(world, now, 1)) == [(11, [0.125])] * size


@pytest.mark.parametrize(("saved", "now"), [("sgd", "adamw"), ("adamw", "sgd")])
def test_another_optimizer_is_refused(saved: str, now: str, tmp_path: Path) -> None:
    in_world(2, tmp_path, lambda world: train(world, 5, saves=lambda rank, step: step == 4, optimizer=saved))
    with pytest.raises(CheckpointError, match="it has the state of .*, and the script's optimizer is"):
        in_world(2, tmp_path, lambda world: train(world, 7, optimizer=now))


def test_the_algorithm_alone_goes_on_as_well(tmp_path: Path) -> None:
    whole, rest = both_ways(1, tmp_path, lambda rank, step: step == 6, 9, with_one_worker="algorithm")
    equal(whole[0], rest[0])


@pytest.mark.parametrize(
    ("saves", "step"),
    [
        (lambda rank, step: rank == 0 and step == 5, 6),
        (lambda rank, step: rank == 2 and step == 5, 6),
        (lambda rank, step: step == 5 + rank, 8),
    ],
    ids=["the first only", "the last only", "one after the other"],
)
def test_workers_that_save_alone_take_the_others_along(
    saves: Callable[[int, int], bool], step: int, tmp_path: Path
) -> None:
    whole, rest = both_ways(3, tmp_path, saves, 11)
    for uninterrupted, resumed in zip(whole, rest, strict=True):
        equal(uninterrupted, resumed)
        assert resumed.began == step


def test_only_what_was_saved_counts(tmp_path: Path) -> None:
    (first,) = in_world(1, tmp_path, lambda world: train(world, 3))
    assert first.began is None
    assert not complete_ones(tmp_path)


def test_workers_that_have_ended_or_rest_are_kept_as_well(tmp_path: Path) -> None:
    def save(trainer: Trainer) -> None:
        if (trainer.rank, trainer.step) == (2, 8):
            quorate.save()

    make = lambda parameters: torch.optim.AdamW(parameters, lr=0.01)  # noqa: E731
    kept = scene(3, tmp_path / "kept", make=make, after=save, steps=[6, 9, 12])
    whole = kept.but(root=tmp_path / "none").run(tell)
    kept.but(steps=[6, 9, 10]).run()
    rest = kept.run(tell)
    assert [end.began for end in rest] == [6, 9, 9]
    for uninterrupted, resumed in zip(whole, rest, strict=True):
        # the buffers of workers that ended are rank 0's at the end, as they were
        assert all(torch.equal(x, y) for x, y in zip(uninterrupted.state, resumed.state, strict=True))


def test_saved_inside_an_evaluation_and_at_the_end(tmp_path: Path) -> None:
    def play(trainer: Trainer) -> Told:
        trainer.train(3)
        with trainer.world.evaluate():
            quorate.save()
        trainer.finish()
        quorate.save()
        return tell(trainer)

    ends = scene(2, tmp_path).act(play)
    assert [path.name for path in complete_ones(tmp_path)] == ["step-00000003-2", "step-00000003"]
    rest = scene(2, tmp_path).act(tell)
    for saved, resumed in zip(ends, rest, strict=True):
        assert resumed.began == 3
        assert all(torch.equal(x, y) for x, y in zip(saved.state, resumed.state, strict=True))


def test_several_optimizers_are_one_checkpoint(tmp_path: Path) -> None:
    def task(world: World, steps: int, saves: int) -> Told:
        maker, critic = net(world.rank), net(5 + world.rank)
        make: Any = quorate.distribute(torch.optim.Adam(maker.parameters()), maker, name="maker")
        judge: Any = quorate.distribute(torch.optim.SGD(critic.parameters(), lr=0.1), critic, name="critic")
        began = quorate.load()
        x, _ = dataset().tensors
        for step in range(began or 0, steps):
            for model, optimizer in ((critic, judge), (maker, make)):
                optimizer.zero_grad()
                (maker(x) * critic(x) + model(x)).square().mean().backward()
                optimizer.step()
            if step + 1 == saves:
                quorate.save()
        both = told(maker, make, [], began)
        both.state += told(critic, judge, [], began).state
        return both

    whole = in_world(2, tmp_path / "none", lambda world: task(world, 8, 99))
    in_world(2, tmp_path / "kept", lambda world: task(world, 5, 4))
    rest = in_world(2, tmp_path / "kept", lambda world: task(world, 8, 99))
    for uninterrupted, resumed in zip(whole, rest, strict=True):
        assert resumed.began == 4
        assert all(torch.equal(x, y) for x, y in zip(uninterrupted.state, resumed.state, strict=True))


def test_what_cannot_be_kept_is_refused_with_one_sentence(tmp_path: Path) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"places": {1, 2}}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            """Nothing."""

    def task(world: World) -> None:
        with pytest.raises(ConfigurationError, match="call it after quorate.distribute"):
            quorate.save()
        with pytest.raises(ConfigurationError, match="call it after quorate.distribute"):
            quorate.load()
        model = net(0)
        quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        with pytest.raises(ConfigurationError, match="epoch is of the type int, and what is kept"):
            quorate.save(epoch=3)
        with pytest.raises(ConfigurationError, match=r"cannot keep extras\.odd\.places, which is a set"):
            quorate.save(odd=Odd())

    in_world(1, tmp_path, task)


def test_extras_that_were_never_saved_are_named(tmp_path: Path) -> None:
    def load(trainer: Trainer) -> None:
        scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1)
        with pytest.raises(ConfigurationError, match="keeps no scheduler; besides model and optimizer"):
            quorate.load(scheduler=scheduler)

    scene(1, tmp_path).act(lambda trainer: quorate.save())
    scene(2, tmp_path).but(loads=False).act(load)


@pytest.mark.parametrize("size", [2, 3])
def test_replicas_that_differ_go_on_each_as_it_was(size: int, tmp_path: Path) -> None:
    whole, rest = both_ways(size, tmp_path, lambda rank, step: step == 6, 7, strategy="local-sgd", sync_every=4)
    assert not torch.equal(whole[0].state[0], whole[1].state[0])
    for uninterrupted, resumed in zip(whole, rest, strict=True):
        equal(uninterrupted, resumed)
        assert resumed.began == 6
    there = in_world(size, tmp_path / "kept", lambda world: train(world, 6, strategy="local-sgd"))
    mean = torch.stack([end.state[0] for end in there]).mean(0)
    resized = in_world(5 - size, tmp_path / "kept", lambda world: train(world, 6, strategy="local-sgd"))
    assert all(torch.allclose(end.state[0], mean, atol=1e-6) for end in resized)


@pytest.mark.parametrize("strategy", ["quorum", "decoupled-diloco", "local-sgd", "all-reduce"])
def test_load_after_an_optimizer_has_finished_restores_it_without_its_rounds(strategy: str, tmp_path: Path) -> None:
    def task(world: World) -> None:
        models = [net(0), net(0)]
        optimizers: list[Any] = [
            quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy, name=name)
            for name, model in zip("ab", models, strict=True)
        ]
        for step in range(4):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
            if step == 1:
                quorate.save()
                saved = [p.detach().clone() for p in models[0].parameters()]
        optimizers[0].finish()
        assert quorate.load() == 2
        assert all(torch.equal(p, x) for p, x in zip(models[0].parameters(), saved, strict=True))
        models[1](torch.ones(2, 3)).sum().backward()
        optimizers[1].step()
        optimizers[1].finish()

    in_world(2, tmp_path, task)
