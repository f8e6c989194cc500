"""What a script writes into parameters between two steps counts under every strategy, or is refused in one sentence."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import NAMES, OF_ONE_TENSOR
from tests.support.joined import joined

IN_ROUNDS = ["adaptive", "bounded-staleness", "eager-majority", "eager-solo", "quorum"]
"""Under these workers come to their steps at different rounds."""
SIZE, STEPS, BOUND = 3, 24, 0.1
GROWS = {
    **dict.fromkeys(("async-local-sgd", "decoupled-diloco", "diloco", "streaming-diloco"), 0.3),
    "ad-psgd": BOUND,
    **dict.fromkeys(("eager-averaging", "easgd", "eamsgd", "symmetric-easgd"), 0.8),
    "osgp": 0.5,
}
"""Where parameters may be beyond the bound at the end, by less than one step of this training (3 without clipping):
something was under way when others clipped theirs, an outer step went on beyond where local ones had come to, or the
centre was where workers were before they clipped."""
OLD_UNDER_WAY = ["ad-psgd", "eamsgd", "easgd", "fedprox", "group-averaging", "osgp", "relay", "symmetric-easgd"]
"""Under these older parameters are still taken in after all have written into theirs: of others, of a centre, or the
newest mean."""

Edit = Callable[[Any, nn.Module, int], None]


def trained(name: str, edit: Edit, *, rate: float = 0.05, hooks: bool = False, **settings: Any) -> list[torch.Tensor]:
    """The parameters that late and unequal workers end with; with rate 0 what they end with is what was written."""

    @joined
    def live(world: quorate.World) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(8, 1, bias=False)
        plain = torch.optim.SGD(model.parameters(), lr=rate)
        optimizer: Any = quorate.distribute(plain, model, name, **OF_ONE_TENSOR.get(name, {}), **settings)
        if hooks:
            optimizer.register_step_post_hook(lambda *_: edit(world, model, -1))
        draw, numbers = random.Random(world.rank), torch.Generator().manual_seed(10 + world.rank)
        for step in range(STEPS):
            x = torch.randn(4, 8, generator=numbers)
            optimizer.zero_grad()
            (model(x) - 3 * x.sum(1, keepdim=True)).square().mean().backward()
            world.wire.clock.sleep(draw.random() * 0.03)
            optimizer.step()
            if not hooks:
                edit(world, model, step)
        optimizer.finish()
        return model.weight.detach().cpu().clone()

    return VirtualWorld(SIZE, seed=1).run(live)


def clip(world: Any, model: nn.Module, step: int) -> None:
    for p in model.parameters():
        p.data.clamp_(-BOUND, BOUND)


def start() -> torch.Tensor:
    """Where the parameters begin."""
    torch.manual_seed(0)
    return nn.Linear(8, 1, bias=False).weight.detach()


def loaded(model: nn.Module) -> None:
    model.load_state_dict({name: torch.full_like(x, 100.0) for name, x in model.state_dict().items()})


def load(world: Any, model: nn.Module, step: int) -> None:
    if step == STEPS // 2:
        loaded(model)


def load_in_a_pause(world: Any, model: nn.Module, step: int) -> None:
    if step == STEPS // 2:
        with world.evaluate():
            loaded(model)


def swap(world: Any, model: nn.Module, step: int) -> None:
    """An average of the weights is put in for a while, as for an evaluation."""
    own = {name: x.clone() for name, x in model.state_dict().items()}
    loaded(model)
    model.load_state_dict(own)


@pytest.mark.parametrize("name", NAMES)
class TestEveryStrategy:
    def test_weights_clipped_after_every_step_stay_so(self, name: str) -> None:
        if name in IN_ROUNDS:
            with pytest.raises(ConfigurationError, match="register_step_post_hook"):
                trained(name, clip)
            return
        for end in trained(name, clip):
            assert float(end.abs().max()) <= GROWS.get(name, BOUND) + 1e-6

    def test_a_state_loaded_between_two_steps_is_gone_on_from(self, name: str) -> None:
        if name in IN_ROUNDS:
            with pytest.raises(ConfigurationError, match="register_step_post_hook"):
                trained(name, load, rate=0.0)
            return
        for end in trained(name, load, rate=0.0):
            if name in OLD_UNDER_WAY:
                assert 60.0 < float(end.min()) <= float(end.max()) < 140.0
            elif name == "fed-opt":  # its server's optimizer takes what was written for a way, and goes a step on it
                assert 0.02 < float((end - start()).abs().max()) < 1.0
            elif name in (
                "diloco",
                "streaming-diloco",
                "decoupled-diloco",
                "async-local-sgd",
            ):  # the outer step goes further
                assert float(end.min()) > 90.0
            else:
                assert torch.allclose(end, torch.full_like(end, 100.0), rtol=1e-5)

    def test_a_state_loaded_while_all_rest_is_gone_on_from(self, name: str) -> None:
        for end in trained(name, load_in_a_pause, rate=0.0):
            assert torch.allclose(end, torch.full_like(end, 100.0), rtol=1e-5)

    def test_weights_put_in_and_taken_out_again_change_nothing(self, name: str) -> None:
        alike = [trained(name, edit) for edit in (swap, lambda world, model, step: None)]
        assert all(torch.equal(x, y) for x, y in zip(*alike, strict=True))


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_a_step_hook_clips_under_rounds(name: str) -> None:
    """What the sentence of the refusal advises."""
    for end in trained(name, clip, hooks=True):
        assert float(end.abs().max()) <= BOUND + 1e-6
