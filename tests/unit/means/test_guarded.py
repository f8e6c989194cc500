"""The watch over ordinary means: what is absurd is left out of them, by all alike; else nothing changes, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.launch.worker.world import World
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIZE = 5


Wrong = Callable[[Tensor], Tensor]


def train(world: World, wrong: Wrong | None, steps: int, dies: int, **settings: Any) -> list[Tensor]:
    """The parameters at the end; rank 3's gradients are what `wrong` makes of them from the fifth step on, and rank
    `dies` dies before the seventh."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = quorate.distribute(optimizer, model, **settings)
    step = 0
    for p in model.parameters():
        if wrong is not None and world.rank == 3:
            p.register_hook(lambda g: wrong(g) if step >= 4 else g)
    generator = torch.Generator().manual_seed(world.rank)
    for step in range(steps):
        if step == 6 and world.rank == dies:
            world.wire.crash()
        x = torch.randn(16, 4, generator=generator)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    return [p.detach().clone() for p in model.parameters()]


def ends(wrong: Wrong | None = None, steps: int = 30, dies: int = -1, **settings: Any) -> list[Any]:
    world = VirtualWorld(SIZE, timeout=30.0)
    outcomes = world.outcomes(joined(lambda w: train(w, wrong, steps, dies, **settings)))
    for outcome in outcomes:
        if outcome.error is not None and outcome.rank != dies:
            raise outcome.error
    return [outcome.result for outcome in outcomes if outcome.rank != dies]


def same(first: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(first, other, strict=True))


@pytest.mark.parametrize("on_death", ["stop", "continue"])
def test_where_nobody_is_absurd_nothing_changes(on_death: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = ends(on_death=on_death)
    assert same(ends(on_death=on_death, on_anomaly="skip")[0], plain[0])
    assert "absurd" not in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [lambda g: 1000 * g, lambda g: torch.full_like(g, torch.nan), lambda g: g + 1e6])
@pytest.mark.parametrize(("on_death", "dies"), [("stop", -1), ("continue", -1), ("continue", 1)])
def test_who_is_absurd_is_left_out_of_the_mean(
    wrong: Callable[[Tensor], Tensor], on_death: str, dies: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parameters are near those of correct training, and far from those of training with absurd gradients."""
    guarded = ends(wrong, 12, dies, on_death=on_death, on_anomaly="skip", on_nonfinite="ignore")
    assert all(same(parameters, guarded[0]) for parameters in guarded)
    broken = ends(lambda g: 1e6 * g, 12, dies, on_death=on_death, on_nonfinite="ignore")
    free = ends(None, 12, dies, on_death=on_death)
    near = max(float((x - y).abs().max()) for x, y in zip(guarded[0], free[0], strict=True))
    far = max(float((x - y).abs().max()) for x, y in zip(broken[0], free[0], strict=True))
    assert near < 0.5 and not far < 100
    assert "quorate: rank 3's gradient in update 5 is far out of proportion to the other gradients; it is left out" in (
        capsys.readouterr().err
    )


def test_the_mean_is_that_of_the_others() -> None:
    """One step with a gradient of 1 from each: the mean without the absurd one is 1, and not 4/5."""

    @joined
    def task(world: World) -> float:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer: Any = quorate.distribute(plain, model, on_anomaly="skip")
        (model(torch.ones(1, 1)).sum() * (1e6 if world.rank == 3 else 1.0)).backward()
        optimizer.step()
        optimizer.finish()
        return float(model.weight.detach())

    assert VirtualWorld(SIZE, timeout=30.0).run(task) == [-1.0] * SIZE


def test_it_may_only_be_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert same(ends(lambda g: 100 * g, on_anomaly="warn")[0], ends(lambda g: 100 * g)[0])
    lines = [line for line in capsys.readouterr().err.splitlines() if "it counts like any other" in line]
    assert (
        sum("rank 3's gradient" in line for line in lines) == 1
    )  # it breaks the training, and with it others' gradients


def test_after_many_times_the_worker_is_to_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    ends(lambda g: 10000 * g, on_anomaly="skip")
    said = capsys.readouterr().err
    assert said.count("it is left out") == 1
    assert said.count("quorate: rank 3's gradients were absurd in 20 of 20 updates; look at that worker, or") == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategy": "quorum"}, 'on_anomaly="skip" cannot be combined with quorum'),
        ({"strategy": "local-sgd"}, 'on_anomaly="skip" cannot be combined with local-sgd'),
        ({"reduce": "median"}, "a rule finds what is wrong by itself"),
        ({"compress": "half"}, "watches plain means"),
        ({"on_anomaly": "stop"}, "on_anomaly"),
    ],
)
def test_what_it_does_not_go_with(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ends(**{"on_anomaly": "skip", **settings})
