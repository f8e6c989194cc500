"""The trainings of `published_codecs.py` and `sparse_loco.py`: small tasks, among virtual workers.

Two tasks, both with data drawn anew: handwritten digits with noise in every pixel, and the next byte of the standard
library after four others. The models are perceptrons whose weights are matrices of 128 by 128 and alike. What is learnt
in a step does not depend on the network where all wait for all: so losses come from here, and seconds are reckoned from
the bytes.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from outer_trainings import BEFORE, BYTES, task_of
from torch import nn
from torch.nn.functional import cross_entropy

import quorate
from quorate.core.contracts import Wire
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld

HIDDEN, EMBEDDED, BATCH = 128, 32, 32
"""Examples of each worker in a step."""
AVERAGED = 0.7
"""What is left of a running mean of losses at the next look."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How workers agree."""

    name: str
    strategy: str = "all-reduce"
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Told:
    """What one training tells."""

    losses: Sequence[tuple[int, float]]
    """On held-out examples: of the replica of rank 0 behind so many steps; infinite where it is no number."""
    nbytes: float
    """Sent by a worker in a step, in the mean; what evaluations send is left out."""

    def steps_to(self, loss: float) -> int | None:
        """After which it was as low; None where it never was."""
        return next((step for step, found in self.losses if found <= loss), None)


def model_of(task: str, seed: int) -> nn.Module:
    """The same on all workers."""
    torch.manual_seed(seed)
    if task == "digits":
        widths = (64, HIDDEN, HIDDEN, 10)
        first: list[nn.Module] = []
    else:
        widths = (BEFORE * EMBEDDED, HIDDEN, HIDDEN, BYTES)
        first = [nn.Embedding(BYTES, EMBEDDED), nn.Flatten()]
    layers = [nn.Linear(inside, out) for inside, out in pairwise(widths)]
    between = [one for layer in layers[:-1] for one in (layer, nn.ReLU())]
    return nn.Sequential(*first, *between, layers[-1])


def trained(
    task: str,
    way: Way,
    rate: float,
    seed: int,
    steps: int,
    *,
    workers: int = 4,
    every: int = 5,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    until: float | None = None,
) -> Told:
    """One training; it ends at the first look that finds a loss of `until`, or no number."""
    examples = task_of("digits" if task == "digits" else "stdlib-bytes")
    inputs, wanted = examples.held_out()

    def live(wire: Wire) -> Told:
        place = current.enter(wire, thread_only=True)
        try:
            world, model = quorate.join(), model_of(task, seed)
            plain: Any = optimizer(model.parameters(), lr=rate)
            distributed: Any = quorate.distribute(plain, model, way.strategy, **way.settings)
            draw = torch.Generator().manual_seed(1000 * seed + world.rank)
            looks, mean = list[tuple[int, float]](), math.inf
            bytes_out = distributed.__dict__["_quorate_worker"].timer._meter.bytes_out
            sent = 0
            for step in range(1, steps + 1):
                distributed.zero_grad()
                before = sum(bytes_out.values())
                x, y = examples.drawn(BATCH, draw)
                cross_entropy(model(x), y).backward()
                distributed.step()
                sent += sum(bytes_out.values()) - before
                if step % every == 0:
                    with world.evaluate(), torch.no_grad():
                        found = float(cross_entropy(model(inputs), wanted))
                    mean = found if math.isinf(mean) else AVERAGED * mean + (1 - AVERAGED) * found
                    looks.append((step, mean if math.isfinite(mean) else math.inf))
                    if not math.isfinite(mean) or (until is not None and mean <= until):
                        break
            distributed.finish()
            return Told(looks, sent / step)
        finally:
            place.leave()

    world = VirtualWorld(workers, seed=seed, generators=True)
    with contextlib.redirect_stderr(io.StringIO()):
        told: Told = world.run(live)[0]
    return told


def numbers_of(task: str) -> int:
    """Of the model."""
    return sum(p.numel() for p in model_of(task, 0).parameters())


def shapes_of_resnet18() -> list[tuple[str, tuple[int, ...]]]:
    """The parameters of ResNet18 for images of 32 by 32 pixels and 10 classes: 11,173,962 numbers.

    Four stages of two blocks of two convolutions (3 by 3), each with a batch norm behind it; the first block of a stage
    that halves the image has one more convolution (1 by 1).
    """
    shapes: list[tuple[str, tuple[int, ...]]] = []

    def convolution(name: str, out: int, inside: int, side: int) -> None:
        shapes.append((f"{name}.weight", (out, inside, side, side)))
        shapes.extend([(f"{name}.norm.weight", (out,)), (f"{name}.norm.bias", (out,))])

    convolution("first", 64, 3, 3)
    inside = 64
    for stage, out in enumerate((64, 128, 256, 512), 1):
        for block in (0, 1):
            convolution(f"{stage}.{block}.one", out, inside, 3)
            convolution(f"{stage}.{block}.two", out, out, 3)
            if inside != out:
                convolution(f"{stage}.{block}.shortcut", out, inside, 1)
            inside = out
    return [*shapes, ("last.weight", (10, 512)), ("last.bias", (10,))]
