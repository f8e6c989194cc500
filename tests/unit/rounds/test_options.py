"""What travels with a gradient: options that never go back, norms, weights, scales; and what does not compose."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError
from tests.support.scene import Scene, Trainer, flat, ones, virtual, zeros


def test_the_learning_rate_is_that_of_the_most_advanced_and_never_goes_back() -> None:
    """Cosine over 30 local steps; rank 2 is three times slower, so its own schedule is far behind."""

    def begin(trainer: Trainer) -> None:
        trainer.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizer, 30)
        trainer.optimizer.register_step_pre_hook(lambda o, *_: trainer.seen.append(o.param_groups[0]["lr"]))

    def between(trainer: Trainer) -> None:
        trainer.own = trainer.rate

    def after(trainer: Trainer) -> None:
        assert trainer.rate == trainer.own
        trainer.schedule.step()

    hooks: Any = {"begin": begin, "between": between, "after": after}
    pause = lambda rank, step: 0.03 if rank == 2 else 0.01  # noqa: E731
    scene = Scene("quorum", model=zeros(2), rate=1.0, loss=ones, steps=(30, 30, 10), pause=pause, wait_for=2, **hooks)
    found = scene.run(lambda t: (t.seen, [one.step for one in t.rounds if one.sum is not None], t.rate))
    rates, places, _ = found[0]
    reference = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(reference, 30)
    expected = {}
    for step in range(1, 31):
        expected[step] = reference.param_groups[0]["lr"]
        reference.step()
        schedule.step()
    assert [measures[0] for measures in found] == [rates] * 3
    assert places == sorted(places)
    assert rates == pytest.approx([expected[int(place + 1e-6) + 1] for place in places])
    assert rates == sorted(rates, reverse=True)
    assert found[2][2] <= 0.5 + 1e-9, "its own scheduler is where the training is, though it has made few steps"


def test_the_norm_of_the_mean_is_clipped() -> None:
    loss = lambda trainer: ones(trainer) * 10 * (trainer.rank + 1)  # noqa: E731
    scene = Scene("quorum", 2, model=zeros(3), rate=1.0, loss=loss, steps=1, wait_for="all", clip_norm=0.5)
    for weight in scene.ends():
        assert float(weight.norm()) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(("divide_by", "moved"), [("world", 1.0), ("arrived", 2.0)])
def test_what_a_round_is_divided_by(divide_by: str, moved: float) -> None:
    """Rank 0 steps twice while rank 1 computes: its rounds have one contributor of two workers."""

    def script(trainer: Trainer) -> float:
        trainer.clock.sleep(float(trainer.rank))
        end = trainer.train(2 * (trainer.rank == 0)).parameters.item()
        trainer.finish()
        return end

    loss = lambda trainer: -ones(trainer)  # noqa: E731
    scene = Scene("quorum", 2, model=zeros(), rate=1.0, loss=loss, wait_for=1, divide_by=divide_by)
    assert scene.act(script)[0] == pytest.approx(moved)


def test_late_gradients_may_count_less() -> None:

    late = 0
    pause = lambda rank, step: 0.035 if rank else 0.01  # noqa: E731
    scene = Scene("quorum", 2, loss=ones, steps=(8, 2), pause=pause, wait_for=1, late_weight="falling")
    for one in scene.run()[0].rounds:
        expected = sum(n / (1 + s) for given in one.contributors.values() for s, n in given)
        late += any(s > 0 for given in one.contributors.values() for s, _ in given)
        assert one.weight == pytest.approx(expected)
    assert late


def test_gradients_are_handed_in_unscaled_and_one_that_overflowed_is_not() -> None:
    def script(trainer: Trainer) -> Trainer:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(3):
            trainer.optimizer.zero_grad()
            bad = step == 1 and trainer.rank == 1
            scaler.scale(trainer.model(torch.full((1, 1), float("inf") if bad else -1.0)).sum()).backward()
            scaler.step(trainer.optimizer)
            scaler.update()
        return trainer.finish()

    for trainer in Scene("quorum", 2, model=zeros(), rate=1.0, wait_for="all").act(script):
        assert [one.weight for one in trainer.rounds][:3] == [2.0, 1.0, 2.0]
        assert trainer.parameters.item() == pytest.approx(1.0 + 0.5 + 1.0)


def test_several_optimizers_have_rounds_of_their_own() -> None:
    def task(world: quorate.World) -> torch.Tensor:
        one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        optimizers: list[Any] = [
            quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy="quorum", wait_for=1)
            for model in (one, other)
        ]
        draw = torch.Generator().manual_seed(world.rank)
        for step in range(8):
            world.wire.clock.sleep(0.01 * (1 + world.rank))
            for optimizer in optimizers[: 1 + step % 2]:
                optimizer.zero_grad()
                other(one(torch.randn(3, 2, generator=draw))).square().mean().backward()
                optimizer.step()
        for optimizer in optimizers:
            optimizer.finish()
        return flat([*one.parameters(), *other.parameters()])

    found = virtual(3, task)
    assert all(torch.equal(measures, found[0]) for measures in found)


def test_a_closure_is_asked_once_and_its_loss_returned() -> None:
    def script(trainer: Trainer) -> tuple[float, float]:
        def closure() -> torch.Tensor:
            trainer.optimizer.zero_grad()
            loss = ones(trainer) * (trainer.rank + 1)
            loss.backward()
            return loss

        loss = trainer.optimizer.step(closure).item()
        return loss, trainer.finish().parameters.item()

    scene = Scene("quorum", 2, model=zeros(value=1.0), rate=0.5, wait_for="all")
    assert scene.act(script) == [(1.0, 0.25), (2.0, 0.25)]


def test_lbfgs_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="LBFGS asks for the loss several times a step"):
        Scene("eager-solo", 2, make=torch.optim.LBFGS).run()
