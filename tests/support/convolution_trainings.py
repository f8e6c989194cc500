"""Training of convolutional networks by several workers together, and the same in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.convolution_nets import Bottleneck, Plain, Recalculated, Residual, groups
from tests.support.joined import joined
from tests.support.tensor_trainings import End, train
from tests.support.tensor_trainings import whole as all_of

BATCH = 3
MODELS: dict[str, Callable[[], nn.Module]] = {
    "residual": Residual,
    "bottleneck": lambda: Residual(Bottleneck, (1, 1, 1, 1)),
    "plain": Plain,
    "groups": groups,
    "recalculated": lambda: Recalculated(blocks=(1, 1, 1, 1)),
}


@dataclass(frozen=True)
class Case:
    """One training on images of `size`; without a `mesh` each worker has the whole model."""

    model: str = "residual"
    mesh: dict[str, int] = field(default_factory=lambda: {"tensor": 2})
    size: tuple[int, int] = (33, 32)
    dtype: torch.dtype = torch.float64
    strategy: str = "all-reduce"
    settings: dict[str, Any] = field(default_factory=dict)
    zero: int = 3
    clip: float | None = None


@dataclass
class Trained:
    """What is compared, with running statistics, and what the model gives after training in evaluation mode."""

    end: End
    buffers: dict[str, Tensor]
    given: Tensor


def images(case: Case, step: int, number: int) -> tuple[Tensor, Tensor]:
    """A batch, and its classes."""
    draw = torch.Generator().manual_seed(1000 * step + number)
    x = torch.randn(BATCH, 3, *case.size, generator=draw, dtype=torch.float64)
    return x.to(case.dtype), torch.randint(0, 6, (BATCH,), generator=draw)


def cut(case: Case, world: Any) -> Trained:
    """On one of several workers; their models begin differently."""
    torch.set_num_threads(1)
    torch.manual_seed(1 + world.rank)
    model = MODELS[case.model]().to(case.dtype)
    model = quorate.parallelize(model, world.mesh(**case.mesh), zero=case.zero)  # type: ignore[arg-type]
    return _trained(case, model, [world.rank // case.mesh["tensor"]])


def whole(case: Case) -> list[Trained]:
    """The same of replicas that hold the whole model, in one process."""
    replicas, shards = case.mesh.get("replicas", 1), case.mesh.get("shards", 1)

    def one(world: Any) -> Trained:
        torch.manual_seed(1)
        model = MODELS[case.model]().to(case.dtype)
        return _trained(case, model, list(range(shards * world.rank, shards * (world.rank + 1))))

    return VirtualWorld(replicas).run(joined(one))


def _trained(case: Case, model: Any, batches: list[int]) -> Trained:
    optimizer = quorate.distribute(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model, case.strategy, **case.settings
    )

    def backward(step: int) -> float:
        losses = []
        for x, y in (images(case, step, number) for number in batches):
            losses.append(F.cross_entropy(model(x), y))
        torch.stack(losses).mean().backward()
        return losses[0].item()

    class _Clip:
        clip = case.clip

    end = train(_Clip, model, optimizer, backward)  # type: ignore[arg-type]
    buffers = {name: x.detach().double().clone() for name, x in model.named_buffers()}
    model.eval()
    with torch.no_grad():
        given = model(images(case, 99, 0)[0])
    return Trained(end, buffers, given)


def kept(case: Case, root: Path, until: int, world: Any) -> dict[str, Tensor]:
    """Parameters and buffers at step `until` of a training that goes on from the newest checkpoint in `root`, and saves
    one at the end."""
    torch.set_num_threads(1)
    current.here().context(CheckpointContext).root = root
    torch.manual_seed(1 + world.rank)
    model = MODELS[case.model]().to(case.dtype)
    if case.mesh:
        model = quorate.parallelize(model, world.mesh(**case.mesh))
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model)
    loader = quorate.loader(TensorDataset(torch.arange(64)), 2)
    steps = quorate.load() or 0
    batches = iter(loader)
    for step in range(steps, until):
        next(batches)
        optimizer.zero_grad()
        x, y = images(case, step, 0)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    quorate.save()
    found = {name: x.detach().double() for name, x in model.named_buffers()}
    return found | {name: all_of(p) for name, p in model.named_parameters()}


def kept_for_backward(name: str, world: Any, *, is_cut: bool = False) -> int:
    """Bytes of activations that a forward pass keeps on this worker; parameters and what is sent are not counted."""
    torch.set_num_threads(1)
    model = MODELS[name]()
    if is_cut:
        model = quorate.parallelize(model, world.mesh(tensor=world.size))
    parameters = {getattr(p, "_local_tensor", p).data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(x: Tensor) -> Tensor:
        plain = x.detach()
        if plain.data_ptr() not in parameters:
            kept[plain.untyped_storage().data_ptr()] = plain  # which is held, so that no other has its place
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        model(torch.randn(2, 3, 128, 128)).sum()
    return sum(x.untyped_storage().nbytes() for x in kept.values())
