"""The switch to low rank: when it comes, resumes, newcomers, deaths, and wrong input."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.scene import Scene, Trainer, flat, net, note, virtual

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def model() -> nn.Module:
    return net(6, 8, 8, 3)


def loss(trainer: Trainer) -> torch.Tensor:
    x = trainer.draw()
    return (trainer.model(x) - x[:, :3]).square().mean()


def scene(name: str = "all-reduce", size: int = 3, at: int = 5, **fields: Any) -> Scene:
    begin = lambda t: quorate.shrink.low_rank(t.optimizer, rank=2, layers=["2"], at=at)  # noqa: E731
    return Scene(name, size, **{"model": model, "make": SGD, "loss": loss, "begin": begin, "steps": 12, **fields})


def test_a_worker_alone_switches_too() -> None:
    for settings in ({"with_one_worker": "bypass"}, {}):
        trainer = scene(size=1, settings=settings, after=lambda t: t.seen.append(type(t.model[2]).__name__)).run()[0]
        assert trainer.seen == ["Linear"] * 4 + ["LowRankLinear"] * 8


def test_at_full_rank_the_training_goes_on_as_it_was() -> None:
    """The first step after it, too: it is made with the momentum that was carried over, to first order in the rate."""
    begin = lambda t: quorate.shrink.low_rank(t.optimizer, rank=8, layers=["2"], at=5)  # noqa: E731
    make = partial(torch.optim.SGD, lr=1e-4, momentum=0.9)
    switched = scene(begin=begin, make=make, steps=5).run()[0].model
    plain = scene(begin=lambda t: None, make=make, steps=5).run()[0].model
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))
    assert (switched(x) - plain(x)).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["all-reduce", "diloco", "eager-majority", "d-psgd"])
def test_a_resumed_run_has_the_ranks_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    """Also one whose script does not ask for them again; where replicas are equal the bits are those of one run."""
    settings: dict[str, Any] = {"sync_every": 2} if name == "diloco" else {}
    whole = scene(name, settings=settings).ends()
    scene(name, settings=settings, steps=8, saves=[8], root=tmp_path).run()
    rest = scene(name, settings=settings, root=tmp_path, loads=True).run()
    without = scene(name, settings=settings, root=tmp_path, loads=True, begin=lambda t: None, after=note).run()
    assert [trainer.began for trainer in rest] == [8] * 3
    assert rest[0].model[2].weight_a.shape == (2, 8) == without[0].model[2].weight_a.shape
    if name in ("all-reduce", "diloco"):
        assert torch.equal(rest[0].parameters, whole[0])
    assert torch.equal(rest[0].parameters, rest[2].parameters)
    assert torch.equal(without[0].parameters, rest[0].parameters)


def test_a_checkpoint_from_before_the_switch_switches_later(tmp_path: Path) -> None:
    scene(steps=3, saves=[3], root=tmp_path).run()
    assert torch.equal(scene(root=tmp_path, loads=True).ends()[0], scene().ends()[0])


def test_files_for_others_have_factors_too(tmp_path: Path) -> None:
    for suffix in ("pt", "safetensors"):
        path = tmp_path / f"model.{suffix}"
        first = scene(last=lambda t, path=path: quorate.save(path)).run()[0]
        read = scene(begin=lambda t, path=path: quorate.load(path), steps=-1, size=2).run()
        assert torch.equal(read[1].parameters, first.parameters)


def train(steps: int, late: float, name: str, world: quorate.World) -> torch.Tensor:
    net_of = model()
    optimizer: Any = quorate.distribute(SGD(net_of.parameters()), net_of, name, on_death="continue")
    quorate.shrink.low_rank(optimizer, rank=2, layers=["2"], at=5)
    generator = torch.Generator().manual_seed(world.rank)
    for _ in range(steps):
        world.wire.clock.sleep(0.01)
        optimizer.zero_grad()
        x = torch.randn(4, 6, generator=generator)
        (net_of(x) - x[:, :3]).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    assert net_of[2].weight_a.shape == (2, 8), f"rank {world.rank}"
    return flat(net_of)


@pytest.mark.parametrize("name", ["all-reduce", "quorum", "local-sgd", "parameter-server", "hogwild"])
def test_a_newcomer_gets_the_factors(name: str) -> None:
    def live(wire: Any) -> torch.Tensor:
        if wire.rank == 2:
            wire.clock.sleep(0.12)
        return joined(partial(train, 40 if wire.rank < 2 else 20, 0.12, name))(wire)

    ends = VirtualWorld(2, joiners=1, timeout=60.0).run(live)
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


def test_it_survives_deaths_before_and_during_the_switch() -> None:
    for call in (20, 60, 64, 68, 72, 76):
        ends = scene(deaths={1: call}, on_death="continue").survivors()
        assert torch.equal(ends[0].parameters, ends[2].parameters)
        assert ends[0].model[2].weight_a.shape == (2, 8)


def test_now_and_with_uneven_steps() -> None:
    """A call without `at` may stand where all workers meet, whatever steps they have made."""

    def last(trainer: Trainer) -> None:
        switch = quorate.shrink.low_rank(trainer.optimizer, share=0.25, layers=["2"])
        trainer.seen.append(switch.ranks)
        trainer.train(16)

    trainers = scene("quorum", begin=lambda t: None, steps=[10, 12, 14], last=last).run()
    assert [trainer.seen for trainer in trainers] == [[{"2.weight": 2}]] * 3
    assert torch.equal(trainers[0].parameters, trainers[2].parameters)


@pytest.mark.parametrize("name", ["all-reduce", "local-sgd", "d-psgd"])
def test_settled(name: str) -> None:
    """The stable rank of a weight that hardly moves has settled at the first measurement."""

    def begin(trainer: Trainer) -> None:
        trainer.seen.append(quorate.shrink.low_rank(trainer.optimizer, layers=["2"], at="settled", every=3))

    slow = scene(name, begin=begin, rate=1e-6, make=None).run()
    assert [trainer.seen[0].ranks for trainer in slow] == [{"2.weight": 8}] * 3
    fast = scene(name, begin=begin, make=partial(torch.optim.SGD, lr=1.0, momentum=0.9), steps=4).run()
    assert [trainer.seen[0].ranks for trainer in fast] == [{}] * 3


@pytest.mark.parametrize("size", [1, 3])
def test_a_guard_takes_the_switch_back(size: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Then the training has the bits of one without it. The losses of workers differ, and their mean decides."""

    def begin(trainer: Trainer) -> None:
        losses = iter([1.0, 1.0 + trainer.rank])
        guard: dict[str, Any] = {"evaluate": lambda: next(losses), "guard": 0.5 if size > 1 else 0.0}
        at: dict[str, Any] = {"rank": 2, "layers": ["2"], "at": 5}
        trainer.seen.append(quorate.shrink.low_rank(trainer.optimizer, **at, **guard))

    trainers = scene(size=size, begin=begin).run()
    (switch,), is_undone = trainers[0].seen, size > 1
    assert switch.is_undone == is_undone and switch.ranks == ({} if is_undone else {"2.weight": 2})
    if is_undone:
        assert torch.equal(trainers[2].parameters, scene(begin=lambda t: None).run()[0].parameters)
        line = "low rank is undone after step 5: the loss has risen from 1 to 2, by more than guard=0.5"
        assert capsys.readouterr().err.count(line) == 1


def test_a_worker_that_ends_without_the_switch_is_named() -> None:
    outcomes = scene("local-sgd", size=2, begin=lambda t: t.rank or scene().begin(t), at=5).outcomes()
    assert any("low_rank() replaces its layers" in str(outcome.error) for outcome in outcomes)


def test_layers_and_ranks_by_default() -> None:
    def task(world: quorate.World) -> dict[str, int]:
        tied = nn.Linear(32, 32)
        layers = [nn.Linear(8, 32), tied, nn.Linear(32, 32), tied, nn.Conv1d(32, 32, 1, groups=2), nn.Linear(32, 2)]
        net_of = nn.Sequential(nn.Embedding(10, 8), *layers)
        net_of[3].requires_grad_(True)
        optimizer: Any = quorate.distribute(SGD(net_of.parameters()), net_of)
        return quorate.shrink.low_rank(optimizer, share=0.25).ranks

    assert virtual(2, task)[1] == {"1.weight": 2, "3.weight": 8}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "either rank or share"),
        ({"rank": 2, "share": 0.5}, "either rank or share"),
        ({"rank": 0}, "rank is a whole number of at least 1, not 0"),
        ({"share": 1.5}, "share is a number above 0 and at most 1, not 1.5"),
        ({"rank": 2, "layers": "2"}, "layers is a list of names or patterns"),
        ({"rank": 2, "layers": ["7"]}, 'layers has "7", and the layers that it may name are: 0, 2, 4'),
        ({"rank": 2, "at": -1}, "at is a number of steps"),
        ({"rank": 2, "at": 3, "every": 0}, "every is a whole number of steps"),
        ({"rank": 8}, "would make no layer smaller"),
        ({"rank": 2, "guard": 0.1}, "guard limits the rise of a loss; pass evaluate"),
    ],
)
def test_wrong_input(settings: dict[str, Any], words: str) -> None:
    def task(world: quorate.World) -> None:
        net_of = model()
        optimizer: Any = quorate.distribute(SGD(net_of.parameters()), net_of)
        with pytest.raises(ConfigurationError, match=words.replace("(", r"\(").replace(")", r"\)")):
            quorate.shrink.low_rank(optimizer, **settings)
        assert type(net_of[2]) is nn.Linear

    virtual(1, task)


def test_a_plain_optimizer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="that quorate.distribute has returned"):
        virtual(1, lambda world: quorate.shrink.low_rank(SGD(model().parameters()), rank=2))
