"""The axes of the workers: so many replicas of the model, of so many stages, each in so many shards, each computed by
so many workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError

REPLICAS, STAGES, SHARDS, TENSOR = "replicas", "stages", "shards", "tensor"
AXES = (REPLICAS, STAGES, SHARDS, TENSOR)
Zero = Literal[1, 2, 3]
"""A stage of ZeRO: shards of the optimizer's state (1), of gradients as well (2), and of parameters (3)."""
ZEROS: tuple[Zero, ...] = (1, 2, 3)
Offload = Literal["optimizer", "all", "disk"]
"""Tensors kept in host memory: the optimizer's state, with its step computed there; parameters as well; or the
optimizer's state in memory-mapped files."""
OFFLOADS: tuple[Offload, ...] = ("optimizer", "all", "disk")


@dataclass(frozen=True)
class Axes:
    """`replicas` x `stages` x `shards` x `tensor` workers; the last one varies fastest with the rank. Workers that
    compute layers together have the nearest ranks, then those that hold shards of the same layers, then stages.
    """

    replicas: int
    shards: int
    tensor: int = 1
    stages: int = 1

    @property
    def in_words(self) -> str:
        """The axes as text, in the form of the command line."""
        stages = f",{STAGES}={self.stages}" * (self.stages > 1)
        return f"{REPLICAS}={self.replicas}{stages},{SHARDS}={self.shards}" + (
            f",{TENSOR}={self.tensor}" * (self.tensor > 1)
        )

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The sizes, in the order of `AXES`."""
        return self.replicas, self.stages, self.shards, self.tensor

    @property
    def of_replica(self) -> int:
        """Number of workers of one replica."""
        return self.stages * self.shards * self.tensor

    @property
    def batches(self) -> int:
        """Number of different batches in a step: workers along the axes `stages` and `tensor` share
        one."""
        return self.replicas * self.shards


def axes_for(
    size: int, replicas: int | None, shards: int | None, tensor: int | None = None, stages: int | None = None
) -> Axes:
    """Return the axes of `size` workers; any other size that is None is 1.

    Where `replicas` is None it follows from the other sizes; else `shards` does. Raises `ConfigurationError`.
    """
    sizes = {REPLICAS: replicas, STAGES: stages, SHARDS: shards, TENSOR: tensor}
    for name, number in sizes.items():
        if number is not None and is_no_size(number):
            raise ConfigurationError(
                f"{name}={number!r} is not a size of a mesh; it must be a whole number (at least 1)"
            )
    if all(number is None for number in sizes.values()):
        raise ConfigurationError(
            "a mesh needs replicas=, stages=, shards= or tensor=; the remaining size follows from the others"
        )
    product = (replicas or 1) * (stages or 1) * (shards or 1) * (tensor or 1)
    is_right = size % product == 0 if replicas is None or shards is None else size == product
    if not is_right:
        asked = ",".join(f"{name}={number}" for name, number in sizes.items() if number is not None)
        named = [name for name in AXES if name in (REPLICAS, SHARDS) or sizes[name] is not None]
        times = " times ".join(named)
        raise ConfigurationError(f"{size} workers cannot be laid out as {asked}; {times} is the number of workers")
    left = size // product
    if replicas is None:
        return Axes(left, shards or 1, tensor or 1, stages or 1)
    return Axes(replicas, shards or left, tensor or 1, stages or 1)


def is_no_size(number: object) -> bool:
    """Return whether `number` is no whole number of at least 1."""
    return isinstance(number, bool) or not isinstance(number, int) or number < 1


def axes_from_text(text: str, size: int) -> Axes:
    """Parse axes in the form of the command line: `replicas=2,shards=2`. Raises `ConfigurationError`."""
    sizes: dict[str, int] = {}
    for item in text.split(","):
        name, _, number = item.strip().partition("=")
        if name not in AXES or name in sizes or not (number.isdecimal() and len(number) < 7):
            raise ConfigurationError(
                f'"{text}" is not a mesh; write replicas=R,stages=L,shards=S,tensor=T (some may be left out), in '
                "whole numbers"
            )
        sizes[name] = int(number)
    return axes_for(size, sizes.get(REPLICAS), sizes.get(SHARDS), sizes.get(TENSOR), sizes.get(STAGES))


def stage_of(zero: object) -> Zero:
    """Return `zero` as a stage of ZeRO. Raises `ConfigurationError` for any other value."""
    known_stage = next((stage for stage in ZEROS if stage == zero and not isinstance(zero, bool)), None)
    if known_stage is None:
        raise ConfigurationError(f"zero={zero!r} is unknown; known: {', '.join(map(str, ZEROS))}")
    return known_stage


def rows_of(count: int, shards: int, shard: int) -> range:
    """Return the rows of a tensor of `count` rows that lie on `shard`: equally many on each, fewer on the last ones
    (torch's `Shard(0)`)."""
    each = -(-count // shards)
    return range(min(count, shard * each), min(count, (shard + 1) * each))


def offload_of(offload: object) -> Offload | None:
    """Return `offload` as a kind of offloading. Raises `ConfigurationError` for an unknown one."""
    kind = next((known for known in OFFLOADS if known == offload), None)
    if kind is None and offload is not None:
        raise ConfigurationError(f"offload={offload!r} is unknown; known: {', '.join(OFFLOADS)}")
    return kind
