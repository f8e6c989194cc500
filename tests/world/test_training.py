"""Training loops that DDP cannot serve as the reference for, on real processes."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import quorate
from quorate.core.errors import ConfigurationError
from quorate.launch.worker.world import World
from tests.support.processes import run_real_world
from tests.support.scene import Scene, squares

pytestmark = pytest.mark.filterwarnings("ignore")


def data(rank: int, step: int = 0, rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))


def digest(model: nn.Module, world: World) -> bool:
    """Whether all workers hold the same bits in parameters and buffers."""
    every = world.gather(torch.cat([x.detach().double().reshape(-1) for x in model.state_dict().values()]))
    return all(torch.equal(x, every[0]) for x in every)


def gan(world: World, *, ours: bool) -> list[torch.Tensor]:
    """Two optimizers; the generator's backward runs through the critic."""
    maker, critic = net(1 + world.rank), net(11 + world.rank)
    maker[2] = nn.Linear(8, 5)
    make, judge = torch.optim.Adam(maker.parameters(), lr=0.01), torch.optim.SGD(critic.parameters(), lr=0.05)
    if ours:
        quorate.distribute(make, maker, name="maker")
        quorate.distribute(judge, critic, name="critic")
        call_maker, call_critic = maker, critic
    else:
        call_maker, call_critic = DistributedDataParallel(maker), DistributedDataParallel(critic)
    for step in range(6):
        x = data(world.rank, step)
        judge.zero_grad()
        fake = call_maker(x).detach()
        (call_critic(fake).mean() - call_critic(x).mean()).backward() if ours else _one_call(call_critic, fake, x)
        judge.step()
        make.zero_grad()
        (-call_critic(call_maker(x)).mean()).backward()
        make.step()
    if ours:
        make.finish()  # type: ignore[attr-defined]
        judge.finish()  # type: ignore[attr-defined]
        assert digest(maker, world)
        assert digest(critic, world)
    return [p.detach().clone() for model in (maker, critic) for p in model.parameters()]


def _one_call(critic: nn.Module, fake: torch.Tensor, real: torch.Tensor) -> None:
    """DDP wants one forward per backward."""
    both = critic(torch.cat([fake, real]))
    (both[: len(fake)].mean() - both[len(fake) :].mean()).backward()


def gan_both_ways(world: World) -> float:
    theirs, mine = gan(world, ours=False), gan(world, ours=True)
    return max(float((a - b).abs().max()) for a, b in zip(theirs, mine, strict=True))


def lbfgs(world: World) -> tuple[float, float, int, bool]:
    """Against one process on the joined batch: how far the two ended from each other, and how far they went."""
    model, alone = net(3), net(3)
    start = [p.detach().clone() for p in alone.parameters()]
    x = data(world.rank)
    joined = torch.cat([data(rank) for rank in range(world.size)])
    optimizer = quorate.distribute(
        torch.optim.LBFGS(model.parameters(), max_iter=6, line_search_fn="strong_wolfe"), model
    )
    reference = torch.optim.LBFGS(alone.parameters(), max_iter=6, line_search_fn="strong_wolfe")
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    def whole() -> torch.Tensor:
        reference.zero_grad()
        loss = (alone(joined) - joined.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        reference.step(whole)
    optimizer.finish()  # type: ignore[attr-defined]
    pairs = list(zip(model.parameters(), alone.parameters(), start, strict=True))
    apart = max(float((a - b).detach().abs().max()) for a, b, _ in pairs)
    return apart, max(float((b - c).detach().abs().max()) for _, b, c in pairs), calls, digest(model, world)


def uneven(world: World) -> tuple[int, bool, float]:
    """Rank r makes 3 + 2 r steps, with momentum: those that end first keep the others company."""
    decays: list[Any] = []
    trainer = Scene(
        model=lambda: nn.Sequential(net(5), nn.BatchNorm1d(1)),
        heavy=0.9,
        steps=[3 + 2 * rank for rank in range(world.size)],
        loss=squares,
        begin=lambda t: decays.append(torch.optim.lr_scheduler.StepLR(t.optimizer, 2, 0.5)),
        after=lambda t: decays[0].step(),
    ).play(world)
    momentum = [trainer.optimizer.state[p]["momentum_buffer"].double().sum() for p in trainer.model.parameters()]
    return trainer.step - 1, digest(trainer.model, world), float(sum(momentum))


def layouts_that_change(world: World) -> list[str]:
    """Frozen at first, thawed later; a group added in the middle; gradients by hand."""
    said = []
    model = net(6 + world.rank)
    model[0].requires_grad_(False)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(6):
        if step == 2:
            model[0].requires_grad_(True)
        if step == 4:
            torch.manual_seed(world.rank)
            model.append(nn.Linear(1, 1))
            optimizer.add_param_group({"params": model[3].parameters()})
        optimizer.zero_grad()
        model(data(world.rank, step)).square().mean().backward()
        optimizer.step()
    said.append(f"equal {digest(model, world)}")
    for p in model.parameters():  # no backward: agreed in step
        p.grad = torch.full_like(p, float(world.rank))
    before = model[0].weight.detach().clone()
    optimizer.step()
    moved = (before - model[0].weight.detach()) / 0.1
    said.append(f"by hand {torch.allclose(moved, torch.full_like(moved, (world.size - 1) / 2), atol=1e-5)}")
    optimizer.zero_grad()
    optimizer.step()  # no gradient at all: nobody is asked
    said.append(f"still equal {digest(model, world)}")
    optimizer.finish()  # type: ignore[attr-defined]
    return said


def calls_of_the_world(world: World) -> list[Any]:
    last = world.size - 1
    numbers = (
        world.sum(torch.tensor([world.rank, 1])),
        world.max(float(world.rank)),
        world.broadcast([world.rank], last),
    )
    return [world.local_rank, *numbers, world.broadcast(torch.full((2,), float(world.rank)), source=last)]


def the_object_stays_the_users(world: World) -> list[str]:
    model = net(8)
    plain = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.9))
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 100)  # freezes the plain step into the instance
    hooks: list[str] = []
    plain.register_step_pre_hook(lambda *_: hooks.append("pre"))
    plain.register_step_post_hook(lambda *_: hooks.append("post"))
    optimizer = quorate.distribute(plain, model)
    assert optimizer is plain
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]) == (0.01, (0.8, 0.9))
    for step in range(3):
        optimizer.zero_grad()
        model(data(world.rank, step)).square().mean().backward()
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scheduler complains where it thinks that no step was made
        scheduler.step()
    assert hooks == ["pre", "post"] * 3
    assert optimizer.__dict__["_quorate_worker"].step == 3
    loaded = torch.optim.AdamW(net(9).parameters(), lr=0.5)
    loaded.load_state_dict(optimizer.state_dict())
    assert loaded.param_groups[0]["lr"] == 0.01
    again = pickle.loads(pickle.dumps(optimizer))
    assert type(again) is torch.optim.AdamW
    buffer = io.BytesIO()
    torch.save(model, buffer)  # nothing of ours hangs on module or parameters
    assert copy.deepcopy(model)[0].weight.shape == (8, 5)
    errors = []
    for wrong in (lambda: copy.deepcopy(optimizer), lambda: quorate.distribute(optimizer, model)):
        try:
            wrong()
        except (TypeError, ConfigurationError) as error:
            errors.append(str(error))
    optimizer.finish()  # type: ignore[attr-defined]
    return errors


class Twice(nn.Module):
    """One layer in two segments; its gradient is complete only after the second one's own backward."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(12)
        self.kind, self.first, self.tied = kind, nn.Linear(5, 600), nn.Linear(600, 600)  # a part each

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(2):
            x = torch.tanh(self.tied(x) if self.kind == "none" else checkpoint(self.tied, x, use_reentrant=True))
        return x


def tied_and_checkpointed(world: World) -> bool:
    """Re-entrant checkpointing of a tied layer, which DDP refuses, ends where no checkpointing does."""
    scene = Scene(rate=0.1, heavy=0.9, steps=4, loss=squares)
    one, other = (scene.but(model=partial(Twice, kind)).play(world).parameters for kind in ("none", "reentrant"))
    return torch.allclose(one, other, atol=1e-6)


def refused(world: World) -> list[str]:
    """Every rank gets the same sentence."""
    said = []
    model = nn.Linear(5 + (world.rank == 1), 3)
    for attempt in (
        lambda: quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model),
        lambda: quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, "all-redcue"),
        lambda: quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, "all-reduce", wait_for=1),
        lambda: quorate.distribute("sgd", model),  # type: ignore[type-var]
    ):
        try:
            attempt()
        except ConfigurationError as error:
            said.append(str(error))
    embedding = nn.Embedding(4, 2, sparse=True)
    try:
        quorate.distribute(torch.optim.SGD(embedding.parameters(), lr=0.1), embedding, "robust")
    except ConfigurationError as error:
        said.append(str(error))
    return said


def all_of_it(world: World) -> dict[str, object]:
    torch.set_num_threads(1)
    tests = (
        gan_both_ways,
        lbfgs,
        uneven,
        layouts_that_change,
        calls_of_the_world,
        the_object_stays_the_users,
        tied_and_checkpointed,
        refused,
    )
    return {test.__name__: test(world) for test in tests}


@cache
def results(size: int) -> list[dict[str, object]]:
    return run_real_world(size, all_of_it)


@pytest.mark.parametrize("size", [2, 3])
class TestTraining:
    def test_gan_with_two_optimizers_is_ddp(self, size: int) -> None:
        assert results(size)[0]["gan_both_ways"] <= 1e-6

    def test_lbfgs_is_one_process_on_the_joined_batch(self, size: int) -> None:
        for result in results(size):
            apart, went, calls, equal = result["lbfgs"]
            assert apart < 1e-3 * went
            assert calls == results(size)[0]["lbfgs"][2]
            assert equal

    def test_workers_that_end_at_different_steps_end_equal(self, size: int) -> None:
        uneven = [result["uneven"] for result in results(size)]
        assert [steps for steps, _, _ in uneven] == [2 + 2 * rank for rank in range(size)]
        assert all(equal for _, equal, _ in uneven)
        assert len({momentum for _, _, momentum in uneven}) == 1

    def test_parameters_that_thaw_come_late_or_get_gradients_by_hand(self, size: int) -> None:
        for result in results(size):
            assert result["layouts_that_change"] == ["equal True", "by hand True", "still equal True"]

    def test_calls_of_the_world_return_the_same_everywhere(self, size: int) -> None:
        for rank, result in enumerate(results(size)):
            local_rank, total, largest, values, tensor = result["calls_of_the_world"]
            assert (local_rank, total.tolist(), largest) == (rank, [sum(range(size)), size], size - 1)
            assert (values, tensor.tolist()) == ([size - 1], [size - 1.0] * 2)

    def test_a_tied_layer_in_two_reentrant_segments(self, size: int) -> None:
        assert all(result["tied_and_checkpointed"] for result in results(size))

    def test_the_optimizer_stays_the_users_object(self, size: int) -> None:
        copied, twice = results(size)[0]["the_object_stays_the_users"]
        assert "state_dict" in copied
        assert "already distributed" in twice

    def test_what_is_refused_is_refused_everywhere_in_one_sentence(self, size: int) -> None:
        said = [result["refused"] for result in results(size)]
        assert all(one == said[0] for one in said)
        models, name, setting, kind, sparse = said[0]
        assert (
            "parameter 0 is weight torch.float32 (3, 5) on rank 0 and weight torch.float32 (3, 6) on rank 1" in models
        )
        assert 'did you mean "all-reduce"' in name
        assert "wait_for" in setting
        assert "torch.optim.Optimizer" in kind
        assert "sparse=False" in sparse
