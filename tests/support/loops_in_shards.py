"""Ordinary training loops that end alike with a whole model in one process and with a model in shards.

A loop takes a `ShardsCell` and returns tensors: what its test compares. In one process, each step sees the batches of
all workers joined, so that its gradient is the mean of the gradients of the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import QuorateError
from quorate.sharding.torch_errors import in_words

WIDTH, INPUTS, EXAMPLES, STEPS = 64, 8, 4, 2


class Block(nn.Module):
    """A residual block of 16,640 parameters, enough to be gathered as one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Net(nn.Module):
    """Two blocks between two linear layers of the root."""

    def __init__(self, seed: int = 0, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(INPUTS, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """A language model whose head has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(19, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 19, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclass
class ShardsCell:
    """One loop, on the joined batch (`zero=None`), or as one of the workers that hold one replica in shards."""

    rank: int = 0
    size: int = 2
    zero: Any = None
    steps: int = 0

    def parallelize(self, model: Any, **settings: Any) -> Any:
        """`quorate.parallelize` with the stage of the cell."""
        return model if self.zero is None else quorate.parallelize(model, zero=self.zero, **settings)

    def distribute(self, optimizer: Any, model: nn.Module) -> Any:
        """`quorate.distribute` under `all-reduce`."""
        return optimizer if self.zero is None else quorate.distribute(optimizer, model)

    def made(self, model: Any, **settings: Any) -> tuple[Any, Any]:
        """The model in shards, and its distributed optimizer."""
        model = self.parallelize(model, **settings)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
        return model, self.distribute(optimizer, model)

    def step(self, optimizer: Any) -> None:
        """`optimizer.step()`, counted once it has returned."""
        optimizer.step()
        self.steps += 1

    def batch(self, step: int, *shape: int) -> Tensor:
        """The inputs of this worker, or those of all workers joined."""
        ranks = range(self.size) if self.zero is None else [self.rank]
        sizes = (EXAMPLES, *(shape or (INPUTS,)))
        return torch.cat([torch.randn(sizes, generator=torch.Generator().manual_seed(97 * step + r)) for r in ranks])

    def tokens(self, step: int, count: int) -> Tensor:
        """As `batch`, of rows of numbers below `count`."""
        ranks = range(self.size) if self.zero is None else [self.rank]
        draws = [torch.Generator().manual_seed(97 * step + r) for r in ranks]
        return torch.cat([torch.randint(0, count, (EXAMPLES, 6), generator=draw) for draw in draws])

    def end(self, model: nn.Module, optimizer: Any, *more: Any) -> list[Tensor]:
        """Finish; returns the whole parameters, and what else is compared."""
        if self.zero is not None:
            optimizer.finish()
        return [whole(x) for x in (*model.parameters(), *more)]


Loop = Callable[[ShardsCell], Sequence[Tensor]]


def whole(x: Any) -> Tensor:
    """All of a tensor that may be in shards, or a number."""
    found = x.full_tensor() if hasattr(x, "full_tensor") else torch.as_tensor(x)
    return found.detach().clone()


def loss_of(model: Any, x: Tensor) -> Tensor:
    """The squared error of the sum of inputs."""
    return (model(x) - x.sum(1, keepdim=True)).square().mean()  # type: ignore[no-any-return]


def trained(cell: ShardsCell, model: Any, optimizer: Any, loss: Any = loss_of, begin: int = 0, **at: Any) -> None:
    """Steps with what happens before a backward pass, after it, and after a step."""
    for step in range(begin, begin + STEPS):
        optimizer.zero_grad()
        loss(model, cell.batch(step)).backward()
        if "graded" in at:
            at["graded"](model)
        cell.step(optimizer)
        if "stepped" in at:
            at["stepped"](model)


def of_model(make: Callable[[], Any]) -> Loop:
    """Make a loop with nothing out of the ordinary but its model."""

    def loop(cell: ShardsCell) -> list[Tensor]:
        model, optimizer = cell.made(make())
        trained(cell, model, optimizer)
        return cell.end(model, optimizer)

    return loop


def _loop_with(at: str, does: Callable[[Any, list[Any]], object]) -> Loop:
    @wraps(does)
    def loop(cell: ShardsCell) -> list[Tensor]:
        model, optimizer = cell.made(Net())
        seen: list[Any] = []
        trained(cell, model, optimizer, **{at: lambda m: does(m, seen)})
        return cell.end(model, optimizer, *seen)

    return loop


graded, stepped = partial(_loop_with, "graded"), partial(_loop_with, "stepped")
"""Make loops of a function of the model, called after each backward pass or step, and of what it has seen."""


def by_loss(loss: Callable[[Any, Tensor], Tensor]) -> Loop:
    """Make a loop of a loss."""

    @wraps(loss)
    def loop(cell: ShardsCell) -> list[Tensor]:
        model, optimizer = cell.made(Net())
        trained(cell, model, optimizer, loss)
        return cell.end(model, optimizer)

    return loop


@dataclass(frozen=True)
class InShards:
    """How a loop ended on one worker."""

    tensors: Sequence[Tensor] = ()
    error: str = ""
    """The class and the message of its error; empty where it returned."""
    steps: int = 0


def _ended(loop: Loop, zero: Any, world: Any) -> InShards:
    cell = ShardsCell(world.rank, world.size, zero)
    try:
        return InShards([x.detach() for x in loop(cell)], steps=cell.steps)
    except (RuntimeError, NotImplementedError, QuorateError) as error:
        sentence = in_words(error) or error  # as where an error ends a script
        return InShards((), f"{type(sentence).__name__}: {sentence}", cell.steps)


def all_ended(loops: Mapping[str, Loop], zero: Any, world: Any) -> dict[str, InShards]:
    """How each loop ends on this worker of a model in shards, one after the other."""
    torch.set_num_threads(1)
    return {name: _ended(loop, zero, world) for name, loop in loops.items()}


def difference(found: InShards, loop: Loop) -> float:
    """The greatest difference from the same loop in one process, in parts of one plus the number; infinite where shapes
    differ."""
    wanted = [x.detach() for x in loop(ShardsCell())]
    if [x.shape for x in wanted] != [x.shape for x in found.tensors]:
        return float("inf")
    pairs = zip(found.tensors, wanted, strict=True)
    return max(float(((a - b).abs() / (1 + b.abs())).max()) for a, b in ((a.double(), b.double()) for a, b in pairs))
