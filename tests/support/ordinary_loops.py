"""Ordinary training loops under a strategy, and how each ends: right, refused before any update, or named soon after.

A loop takes a `Cell` and returns what its test looks at. It makes its optimizer by `cell.distribute` and its steps by
`cell.step`, so that the ending tells how many steps had been made when a worker was stopped.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import PeerFailed
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import OF_ONE_TENSOR
from tests.support.joined import joined
from tests.support.processes import outcomes_real_world
from tests.support.scene import Scene, Trainer

FAMILIES = ("all-reduce", "eager-majority", "local-sgd", "d-psgd", "parameter-server")
"""One strategy of each family: sums, rounds, local steps, gossip, servers."""


@dataclass
class Cell:
    """One loop under one strategy, as one worker runs it."""

    world: quorate.World
    strategy: str
    settings: dict[str, Any]
    counted: int = 0
    trainers: list[Trainer] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Steps that this worker has made."""
        return self.counted + sum(trainer.step for trainer in self.trainers)

    def trainer(self, **chosen: Any) -> Trainer:
        """A trainer before its first step, of the small net unless a model is `chosen`."""
        settings = {**OF_ONE_TENSOR.get(self.strategy, {}), **self.settings, **chosen.pop("settings", {})}
        fields = {"model": (4, 6, 1), "loss": lambda t: loss_of(t.model, t.rank, t.step), **chosen}
        self.trainers.append(Scene(self.strategy, settings=settings, **fields).trainer(self.world))
        return self.trainers[-1]

    def train(self, steps: float = math.inf, **chosen: Any) -> Trainer:
        """The same after `steps`, and after `finish`."""
        return self.trainer(**chosen).train(steps).finish()

    def distribute(self, optimizer: torch.optim.Optimizer, model: nn.Module, **more: Any) -> Any:
        """`quorate.distribute` with the strategy of the cell; `more` are arguments of the loop."""
        settings = {**OF_ONE_TENSOR.get(self.strategy, {}), **self.settings, **more}
        return quorate.distribute(optimizer, model, self.strategy, **settings)

    def step(self, optimizer: Any, *given: Any) -> Any:
        """`optimizer.step(*given)`, counted once it has returned."""
        returned = optimizer.step(*given)
        self.counted += 1
        return returned


Loop = Callable[[Cell], Any]


@dataclass(frozen=True)
class Ending:
    """How one worker's loop ended."""

    result: Any = None
    kind: str | None = None
    """The name of the error's class; None where the loop returned."""
    message: str = ""
    steps: int = 0
    """Steps that this worker had made by then."""


@dataclass(frozen=True)
class Endings:
    """How a loop ended on every worker, by rank, and what was written to stderr (virtual workers only)."""

    workers: Sequence[Ending]
    told: str = field(default="", repr=False)

    def right(self) -> list[Any]:
        """What the loop returned, by rank; fails where a worker raised."""
        failed = [ending for ending in self.workers if ending.kind is not None]
        assert not failed, failed
        return [ending.result for ending in self.workers]

    def refused(self, sentence: str) -> None:
        """Fails unless a worker refused the loop in a sentence that matches, and no worker had made a step."""
        self.named(sentence, at=0, within=0)

    def named(self, sentence: str, *, at: int, within: int) -> None:
        """Fails unless some worker raised a sentence that matches, and none had made over `at + within` steps."""
        raised = [ending for ending in self.workers if ending.kind not in (None, PeerFailed.__name__)]
        assert raised, f"no worker raised: {self.workers}"
        assert any(re.search(sentence, ending.message) for ending in raised), raised
        assert max(ending.steps for ending in self.workers) <= at + within, self.workers

    def told_once(self, sentence: str) -> None:
        """Fails unless exactly one line on stderr matches."""
        lines = [line for line in self.told.splitlines() if re.search(sentence, line)]
        assert len(lines) == 1, self.told


def ended(
    loop: Loop,
    strategy: str,
    size: int = 2,
    *,
    seed: int = 1,
    generators: bool = False,
    network: Network | None = None,
    **settings: Any,
) -> Endings:
    """How `loop` ends under `strategy` among `size` virtual workers; the rest as of `VirtualWorld`."""
    with _stderr() as stderr:
        world = VirtualWorld(size, seed=seed, generators=generators, network=network)
        found = world.outcomes(joined(partial(_lived, loop, strategy, settings)))
    lives = [_ending(o.result, o.error) for o in found]
    return Endings(lives, stderr.getvalue())


def ended_for_real(loop: Loop, strategy: str, size: int = 2, *, timeout: float = 60.0, **settings: Any) -> Endings:
    """As `ended`, in processes; `loop` is a function of a module."""
    found = outcomes_real_world(size, partial(_lived, loop, strategy, settings), timeout)
    return Endings([_ending(o.result, o.error) for o in found])


def _lived(loop: Loop, strategy: str, settings: dict[str, Any], world: quorate.World) -> Ending:
    cell = Cell(world, strategy, settings)
    try:
        return Ending(loop(cell), steps=cell.steps)
    except BaseException as error:  # a worker that is ended by another's error has made steps, too
        error.steps = cell.steps  # type: ignore[attr-defined]
        raise


def _ending(result: Ending | None, error: BaseException | None) -> Ending:
    if error is None:
        return result or Ending(kind="(hung)")
    return Ending(None, type(error).__name__, str(error), getattr(error, "steps", 0))


@contextlib.contextmanager
def _stderr() -> Iterator[io.StringIO]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", text := io.StringIO())
        yield text


def every_family(*but: str) -> pytest.MarkDecorator:
    """A test for one strategy of each family, without those named."""
    return pytest.mark.parametrize("strategy", [name for name in FAMILIES if name not in but])


def small_net(seed: int = 0) -> nn.Sequential:
    """The same small regression network for every worker."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def loss_of(model: nn.Module, rank: int, step: int, examples: int = 8) -> torch.Tensor:
    """Of a batch that depends on rank and step alone."""
    x = torch.randn(examples, 4, generator=torch.Generator().manual_seed(1000 * step + rank))
    return (model(x) - x.sum(1, keepdim=True)).square().mean()
