"""A model in torch's DDP or FSDP is refused, whenever it got there: the strategy would never happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

IN_DDP = "the model is in torch's DistributedDataParallel, which averages gradients itself"


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[None]:
    """torch's process group, of this process alone, which is what wrappers need."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def refusals(task: Callable[[], Any], size: int = 2) -> list[str]:
    def live(wire: Wire) -> str:
        current.enter(wire, thread_only=True)
        quorate.join()
        with pytest.raises(ConfigurationError) as raised:
            task()
        return str(raised.value)

    return VirtualWorld(size, timeout=5.0).run(live)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))


def distribute(model: nn.Module, wrapped: nn.Module | None = None, **choice: Any) -> Any:
    return quorate.distribute(
        torch.optim.SGD(model.parameters(), lr=0.1), model if wrapped is None else wrapped, **choice
    )


class Around(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> Any:
        return self.part(x)


def inner(model: nn.Module) -> None:
    around = DistributedDataParallel(model)
    distribute(model)
    del around


def sharded(model: nn.Module) -> None:
    fully_shard(model)
    distribute(model)


BEFORE = {
    "DDP": (lambda model: distribute(DistributedDataParallel(model)), IN_DDP),
    "a part in DDP": (lambda model: distribute(Around(DistributedDataParallel(model))), IN_DDP),
    "the model inside DDP": (inner, IN_DDP),
    "FSDP2": (sharded, "the model is in torch's FSDPModule, which keeps a piece of the model on each worker"),
    "FSDP": (
        lambda model: distribute(FullyShardedDataParallel(model, device_id=torch.device("cpu"))),
        "the model is in torch's FullyShardedDataParallel",
    ),
}


@pytest.mark.filterwarnings("ignore:FSDP")
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("how", BEFORE)
def test_what_is_wrapped_before_is_refused_by_distribute(how: str, size: int) -> None:
    task, words = BEFORE[how]
    assert all(said.startswith(words) for said in refusals(lambda: task(net()), size))


def trained(model: nn.Module, wrap: Callable[[nn.Module], nn.Module], *, after: int = 0) -> None:
    optimizer = distribute(model, strategy="local-sgd")
    for step in range(after + 1):
        if step == after:
            wrapped: Any = wrap(model)
        called = wrapped if step == after else model
        called(torch.randn(2, 3)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("wrap", [DistributedDataParallel, lambda model: DistributedDataParallel(Around(model))])
def test_ddp_that_comes_later_is_refused_by_the_next_backward(wrap: Callable[[Any], Any], after: int) -> None:
    said = refusals(lambda: trained(net(), wrap, after=after))
    assert all(
        sentence.startswith(IN_DDP) and "put around it after quorate.distribute()" in sentence for sentence in said
    ), said


@pytest.mark.parametrize("wrap", [fully_shard, lambda model: Around(fully_shard(model))])
def test_fsdp_that_comes_later_is_refused_by_the_first_backward(wrap: Callable[[Any], Any]) -> None:
    said = refusals(lambda: trained(net(), wrap))
    assert all("torch's FSDPModule" in sentence and "put around it after" in sentence for sentence in said), said


def test_another_model_may_be_in_ddp() -> None:
    @joined
    def live(world: quorate.World) -> bool:
        other, model = DistributedDataParallel(net()), net()
        optimizer = distribute(model)
        other(model[0](torch.randn(2, 3))[:, :3]).square().mean().backward()
        optimizer.step()
        current.here().leave()
        return True

    assert all(VirtualWorld(2).run(live))
