"""Adapters beside a frozen base: what travels, what is saved, and which base it belongs to."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import quorate
from quorate.checkpoint.frozen import base_digest
from quorate.core.errors import CheckpointError
from quorate.observe.digests import digests_in_order
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.scene import Scene, Trainer, virtual

ADAM = partial(torch.optim.Adam, lr=0.01)


class Adapter(nn.Module):
    """A frozen linear layer with B A beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.zeros(outputs, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return W x + B A x + bias."""
        return self.base(x) + x @ self.a.t() @ self.b.t()


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(Adapter(20, 30), nn.Tanh(), Adapter(30, 3))


def loss(trainer: Trainer) -> torch.Tensor:
    x = torch.randn(4, 20, generator=torch.Generator().manual_seed(100 * trainer.step + trainer.rank))
    return (trainer.model(x) - x[:, :3]).square().mean()


def make(parameters: Any) -> torch.optim.Optimizer:
    return ADAM([p for p in parameters if p.requires_grad])


def scene(name: str = "all-reduce", size: int = 2, **fields: Any) -> Scene:
    given: dict[str, Any] = {"model": model, "make": make, "loss": loss, "steps": 8}
    return Scene(name, size, **{**given, **fields})


@pytest.mark.parametrize("name", ["all-reduce", "diloco", "fed-avg", "quorum", "d-psgd"])
def test_only_adapters_change_and_all_end_equal(name: str) -> None:
    settings = {"sync_every": 4} if name == "diloco" else {}
    trainers = scene(name, size=3, settings=settings).run()
    assert all(torch.equal(trainer.parameters, trainers[0].parameters) for trainer in trainers)
    assert torch.equal(trainers[0].model[0].base.weight, model()[0].base.weight)
    assert bool(trainers[0].model[0].b.any())


def test_only_their_numbers_travel() -> None:
    """Two workers send 2 (P - 1) / P = 1 times the bytes of the trained numbers in a step, and a header."""
    trainers = scene(after=lambda t: t.seen.append(t.bytes_out)).run()
    trained = 4 * sum(p.numel() for p in model().parameters() if p.requires_grad)
    of_a_step = trainers[0].seen[-1] - trainers[0].seen[-2]
    assert trained <= of_a_step <= trained + 400


def begun_with(seeds: tuple[int, int], world: quorate.World) -> tuple[int, torch.Tensor]:
    """Return the bytes that `distribute` has sent, and the base, of workers whose models have these seeds."""
    net = model(seeds[world.rank])
    optimizer: Any = quorate.distribute(make(net.parameters()), net)
    sent = sum(optimizer.__dict__["_quorate_worker"].timer._meter.bytes_out.values())
    return sent, net[0].base.weight.detach().clone()  # type: ignore[index, union-attr]


def test_an_equal_base_is_not_sent() -> None:
    (few, _), _ = virtual(2, partial(begun_with, (0, 0)))
    (many, base), (_, copied) = virtual(2, partial(begun_with, (0, 1)))
    of_base = 4 * sum(p.numel() for p in model().parameters() if not p.requires_grad)
    assert many - few >= of_base and torch.equal(base, copied)


def test_the_digest_sees_order_values_and_names() -> None:
    x = torch.arange(1000.0)
    digests = digests_in_order([x, x.flip(0), x[:999], x.double(), x.clone()])
    assert len(set(digests)) == 4 and digests[0] == digests[4]
    first, second, thawed = model(), model(), model()
    thawed[0].base.weight.requires_grad_(True)  # type: ignore[index, union-attr]
    before = base_digest(first)
    assert before == base_digest(second) and before not in (base_digest(model(1)), base_digest(thawed))
    with torch.no_grad():
        first[0].base.weight[0, 0] += 1  # type: ignore[index, union-attr]
    assert base_digest(first) != before


def saving(trainer: Trainer) -> None:
    if trainer.step == 4:
        quorate.save(trained_only=True)


@pytest.mark.parametrize("name", ["all-reduce", "diloco", "quorum"])
def test_a_checkpoint_without_the_base(name: str, tmp_path: Path) -> None:
    settings = {"sync_every": 4} if name == "diloco" else {}
    whole = scene(name, settings=settings, root=tmp_path, after=saving).run()[0]
    kept = load_file(next(tmp_path.glob("*/model.safetensors")))
    assert set(kept) == {"0.a", "0.b", "2.a", "2.b"}
    rest = scene(name, settings=settings, root=tmp_path, loads=True, steps=4).run()[0]
    assert rest.began in (4, 5)  # under rounds at the first boundary after the round
    if name != "quorum":
        assert torch.equal(scene(name, settings=settings, root=tmp_path, loads=True).end(), whole.parameters)


def test_another_base_is_refused(tmp_path: Path) -> None:
    scene(root=tmp_path, after=saving).run()
    for outcome in scene(root=tmp_path, loads=True, model=partial(model, 1)).outcomes():
        assert isinstance(outcome.error, CheckpointError)
        assert "has only trained parameters, which belong to another base than that of" in str(outcome.error)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_files_of_adapters(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"adapters.{suffix}"
    first = scene(last=lambda trainer: quorate.save(path, trained_only=True)).run()[0]
    read = scene(begin=lambda trainer: quorate.load(path), steps=-1, size=3).run()[2]
    assert torch.equal(read.parameters, first.parameters)
    assert path.stat().st_size < 20_000
    for outcome in scene(begin=lambda trainer: quorate.load(path), model=partial(model, 1)).outcomes():
        assert isinstance(outcome.error, CheckpointError) and "belong to another base" in str(outcome.error)


def test_more_workers_are_cautioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "3 workers train adapters with the learning rates of 2"
    scene(root=tmp_path, after=saving).run()
    scene(root=tmp_path, loads=True, size=3, steps=5).run()
    assert sentence in capsys.readouterr().err

    def live(wire: Any) -> None:
        wire.clock.sleep(0.05 if wire.rank == 2 else 0.0)

        def train(world: quorate.World) -> None:
            net = model()
            optimizer: Any = quorate.distribute(make(net.parameters()), net, on_death="continue")
            for _ in range(20):
                wire.clock.sleep(0.01)
                net(torch.ones(2, 20)).sum().backward()
                optimizer.step()
            optimizer.finish()

        joined(train)(wire)

    VirtualWorld(2, joiners=1, timeout=60.0).run(live)
    assert sentence in capsys.readouterr().err


def test_wrong_input(tmp_path: Path) -> None:
    for words, call in {
        "trained_only must be True or False, not 'yes'": partial(quorate.save, trained_only="yes"),
        "trained_only needs a file": partial(quorate.save, tmp_path / "folder", trained_only=True),
    }.items():
        for outcome in scene(size=1, root=tmp_path, last=lambda trainer, call=call: call()).outcomes():
            assert words in str(outcome.error)
