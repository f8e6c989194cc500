"""Arguments of DistributedDataParallel and its communication hooks, under the class that scripts get."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook
from torch.utils.checkpoint import checkpoint

import quorate
from quorate.core.errors import ConfigurationError
from quorate.launch.takeover.wrapper import DistributedDataParallel
from quorate.launch.worker.world import World
from quorate.train.chosen import Chosen
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIZE, STEPS = 3, 4


class Heads(nn.Module):
    """A checkpointed layer that is called twice, a head for each worker but rank 0's, and a head that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body, self.heads = nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 1) for _ in range(SIZE + 1))

    def forward(self, x: Tensor, head: int) -> Tensor:
        for _ in range(2):
            x = checkpoint(self.body, x, use_reentrant=False).tanh()
        return self.heads[head](x) if head else x.sum(1, keepdim=True)


def inputs(rank: int, step: int) -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


def by_hand() -> Tensor:
    """The parameters after steps with the mean of all workers' gradients, in which an unused head counts as zero."""
    model = Heads()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(SIZE):
            (model(inputs(rank, step), rank).square().mean() / SIZE).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("name", ["find_unused_parameters", "static_graph", "gradient_as_bucket_view"])
def test_parameters_that_some_workers_or_all_do_not_use(name: str) -> None:
    arguments: dict[str, Any] = {name: True}

    def task(world: World) -> Tensor:
        current.here().context(Chosen).strategy_name = "all-reduce"
        plain = Heads()
        model = DistributedDataParallel(plain, **arguments)
        optimizer = sgd(plain)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(inputs(world.rank, step), world.rank).square().mean().backward()
            optimizer.step()
        assert plain.heads[SIZE].weight.grad is None
        return nn.utils.parameters_to_vector(plain.parameters()).detach()

    expected = by_hand()
    for parameters in VirtualWorld(SIZE, seed=3).run(joined(task)):
        torch.testing.assert_close(parameters, expected)


class Centred(nn.Module):
    """The forward pass reads a buffer, and moves it to the mean of the batch."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        output = (x - self.centre) * self.weight
        self.centre = (self.centre + x.mean(0)) / 2
        return output


BUFFERS: list[dict[str, Any]] = [{}, {"broadcast_buffers": False}]
if "forward_sync_buffers" in inspect.signature(nn.parallel.DistributedDataParallel).parameters:
    BUFFERS.append({"forward_sync_buffers": False})


@pytest.mark.parametrize("arguments", BUFFERS, ids=str)
def test_buffers_that_forward_passes_read_are_rank_0_s_or_each_worker_s(arguments: dict[str, Any]) -> None:
    is_common = not arguments

    def task(world: World) -> tuple[Tensor, Tensor, Tensor]:
        current.here().context(Chosen).strategy_name = "all-reduce"
        plain = Centred()
        model = DistributedDataParallel(plain, **arguments)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(inputs(world.rank, step)).square().mean().backward()
            optimizer.step()
        before = plain.centre.clone()
        model.eval()
        return plain.weight.detach().clone(), before, plain.centre.clone()

    models = [Centred() for _ in range(SIZE)]
    optimizer = torch.optim.SGD([models[0].weight], lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        centre = models[0].centre
        for rank, model in enumerate(models):
            model.weight, model.centre = models[0].weight, centre if is_common else model.centre
            (model(inputs(rank, step)).square().mean() / SIZE).backward()
        optimizer.step()
    workers = VirtualWorld(SIZE, seed=3).run(joined(task))
    for (weight, own, evaluated), model in zip(workers, models, strict=True):
        torch.testing.assert_close(weight, models[0].weight.detach())
        torch.testing.assert_close(evaluated, models[0].centre, msg="all evaluate with the buffers of rank 0")
        if not is_common:
            torch.testing.assert_close(own, model.centre)


def trained(name: str, register: Any, settings: Mapping[str, Any], world: World) -> Tensor:
    """Train with a hook, or with the settings that it stands for."""
    torch.manual_seed(3)
    plain: nn.Module = nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 1))
    model, optimizer = plain, sgd(plain)
    if register is None:
        optimizer = quorate.distribute(optimizer, plain, name, **settings)
    else:
        current.here().context(Chosen).strategy_name = name
        model = DistributedDataParallel(plain)
        model.register_comm_hook(*register)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(inputs(world.rank, step)).square().mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(plain.parameters()).detach()


POWER = SimpleNamespace(matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1, warm_start=True)
HOOKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "allreduce": ((None, allreduce_hook), {}),
    "fp16": ((None, fp16_compress_hook), {"compress": "half", "dtype": "float16", "dense_below": 0}),
    "bf16": ((None, bf16_compress_hook), {"compress": "half", "dtype": "bfloat16", "dense_below": 0}),
    "powerSGD": ((POWER, powerSGD_hook), {"compress": "power-sgd", "rank": 2, "start": 2, "min_rate": 1}),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_of_torch_has_the_bits_of_its_codec(hook: str) -> None:
    register, settings = HOOKS[hook]

    def run(register: Any, settings: Mapping[str, Any]) -> list[Tensor]:
        return VirtualWorld(SIZE, seed=3).run(joined(lambda world: trained("all-reduce", register, settings, world)))

    hooked, distributed, dense = run(register, {}), run(None, settings), run(None, {})
    for ours, theirs in zip(hooked, distributed, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(hooked[0], dense[0]) == (hook == "allreduce")


def test_an_argument_that_torch_does_not_have_is_a_type_error() -> None:
    def task(world: World) -> None:
        DistributedDataParallel(nn.Linear(4, 1), find_unused=True)

    with pytest.raises(TypeError, match="unexpected keyword argument 'find_unused'"):
        VirtualWorld(1, seed=3).run(joined(task))


def test_a_hook_after_the_first_forward_pass_is_refused() -> None:
    def task(world: World) -> None:
        current.here().context(Chosen).strategy_name = "all-reduce"
        model = DistributedDataParallel(nn.Linear(4, 1))
        optimizer = sgd(model)
        model(inputs(world.rank, 0)).sum().backward()
        optimizer.step()
        model.register_comm_hook(None, fp16_compress_hook)

    with pytest.raises(ConfigurationError, match="register_comm_hook was called after the first forward pass"):
        VirtualWorld(SIZE, seed=3).run(joined(task))
