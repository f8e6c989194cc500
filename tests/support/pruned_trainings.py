"""Trainings of a small net that is pruned on the way, with workers that die, join and resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.core.contracts import Wire
from quorate.replica.masks import masks_of
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)


@dataclass
class End:
    """What one worker has at the end."""

    parameters: Tensor
    masks: Tensor
    """Of all pruned parameters, behind one another."""
    moments_are_zero: bool
    """Whether all tensors of the optimizer's state are zero where numbers are pruned."""
    pruning: Any
    seen: list[Any]


@dataclass(kw_only=True)
class Pruned:
    """`size` workers train under a strategy; `amount` is pruned after the update `at`, or after their step `once`."""

    strategy: str
    size: int = 3
    settings: Mapping[str, Any] = field(default_factory=dict)
    amount: float = 0.8
    at: int = 5
    once: int = -1
    steps: int = 12
    prunes: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[Any], torch.optim.Optimizer] = SGD
    joins: Mapping[int, float] = field(default_factory=dict)
    dies: Mapping[int, int] = field(default_factory=dict)
    """By rank, the step before which a worker dies."""
    pause: float = 0.01
    root: Path | None = None
    saves: int = 0
    loads: bool = False
    after: Callable[[Any, int], Any] | None = None

    def run(self) -> list[End]:
        """Return the ends of the workers that live, by rank."""
        world = VirtualWorld(self.size, joiners=len(self.joins), timeout=60.0)
        outcomes = world.outcomes(self._live)
        for outcome in outcomes:
            assert outcome.is_crashed == (outcome.rank in self.dies), outcome
            if outcome.error is not None and not outcome.is_crashed:
                raise outcome.error
        return [outcome.result for outcome in outcomes if outcome.result is not None]

    def _live(self, wire: Wire) -> End:
        wire.clock.sleep(self.joins.get(wire.rank, 0.0))
        return joined(self.train)(wire)

    def train(self, world: quorate.World) -> End:
        """Train in a world that is joined."""
        if self.root is not None:
            current.here().context(CheckpointContext).root = self.root
            current.here().context(CheckpointContext).listeners = [lambda sentence: None]
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2))
        settings = {"with_one_worker": "algorithm", **self.settings}
        optimizer: Any = quorate.distribute(self.make(model.parameters()), model, self.strategy, **settings)
        at = self.at if self.once < 0 else 1 << 40
        schedule = quorate.shrink.Cubic(begin=at, steps=1, every=1, initial=self.amount)
        pruning = quorate.shrink.prune(optimizer, **{"amount": self.amount, "schedule": schedule, **self.prunes})
        began, seen = (quorate.load() or 0) if self.loads else 0, []
        worker = optimizer.__dict__["_quorate_worker"]
        step = began or (worker.updates if world.wire.is_newcomer else 0)
        while step < self.steps:
            if self.dies.get(world.rank) == step:
                world.wire.crash()  # type: ignore[attr-defined]
            world.wire.clock.sleep(self.pause)
            draw = torch.Generator().manual_seed(1000 * step + world.rank)
            inputs = torch.randn(8, 6, generator=draw)
            optimizer.zero_grad()
            (model(inputs) - inputs[:, :2]).square().mean().backward()
            optimizer.step()
            pruning.step()
            step += 1
            if step == self.once:
                pruning.again(self.amount)
            if step == self.saves:
                quorate.save()
            seen.append(None if self.after is None else self.after(optimizer, step))
        optimizer.finish()
        return end_of(optimizer, model, pruning, seen)


def end_of(optimizer: Any, model: nn.Module, pruning: Any, seen: list[Any]) -> End:
    """Return what a worker has now."""
    of, masks = masks_of(optimizer).by_tensor, pruning.masks
    moments = [
        not bool(x[of[p].pruned].any())
        for p in model.parameters()
        for x in optimizer.state.get(p, {}).values()
        if p in of and isinstance(x, Tensor) and x.shape == p.shape
    ]
    momentum = optimizer.__dict__["_quorate_worker"].replica.momentum
    own = {} if momentum is None else momentum.own
    moments += [not bool(own[p].m[mask.pruned].any()) for p, mask in of.items() if p in own]
    assert all(not p.detach()[mask.pruned].any() for p, mask in of.items()), "pruned numbers stay zero"
    joined_masks = torch.cat([masks[name].reshape(-1) for name in sorted(masks)]) if masks else torch.empty(0)
    parameters = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])
    return End(parameters, joined_masks, all(moments), pruning, seen)
