"""The axes of the workers: so many replicas of the model, of so many stages, each in so many shards, each computed by
so many workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError

REPLICAS, STAGES, SHARDS, TENSOR = "replicas", "stages", "shards", "tensor"
AXES = (REPLICAS, STAGES, SHARDS, TENSOR)
Zero = Literal[1, 2, 3]
"""A stage of ZeRO: what is sharded is the optimizer's state (1), gradients as well (2), and parameters (3)."""
ZEROS: tuple[Zero, ...] = (1, 2, 3)
Offload = Literal["optimizer", "all", "disk"]
"""What rests in host memory: what the optimizer keeps, and its step is made there; parameters as well; or the first in
memory-mapped files."""
OFFLOADS: tuple[Offload, ...] = ("optimizer", "all", "disk")


@dataclass(frozen=True)
class Axes:
    """`replicas` x `stages` x `shards` x `tensor` workers, the last one varying fastest with the rank: workers that
    compute layers together have the nearest ranks, then those that hold shards of the same layers, then stages."""

    replicas: int
    shards: int
    tensor: int = 1
    stages: int = 1

    @property
    def in_words(self) -> str:
        """As the command line takes it."""
        stages = f",{STAGES}={self.stages}" * (self.stages > 1)
        return f"{REPLICAS}={self.replicas}{stages},{SHARDS}={self.shards}" + (
            f",{TENSOR}={self.tensor}" * (self.tensor > 1)
        )

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """In the order of `AXES`."""
        return self.replicas, self.stages, self.shards, self.tensor

    @property
    def of_replica(self) -> int:
        """How many workers one replica has."""
        return self.stages * self.shards * self.tensor

    @property
    def batches(self) -> int:
        """How many different batches the workers have at a time: those along the axes `stages` and
        `tensor` have the same."""
        return self.replicas * self.shards


def axes_for(
    size: int, replicas: int | None, shards: int | None, tensor: int | None = None, stages: int | None = None
) -> Axes:
    """The axes of `size` workers. Raises `ConfigurationError`.

    `replicas` is found from the others where it is None, or else `shards`; what is left out besides is 1.
    """
    given = {REPLICAS: replicas, STAGES: stages, SHARDS: shards, TENSOR: tensor}
    for name, number in given.items():
        if number is not None and _is_no_size(number):
            raise ConfigurationError(
                f"{name}={number!r} is not a size of a mesh; it must be a whole number (at least 1)"
            )
    if all(number is None for number in given.values()):
        raise ConfigurationError(
            "a mesh needs replicas=, stages=, shards= or tensor=; the remaining size follows from the others"
        )
    known = (replicas or 1) * (stages or 1) * (shards or 1) * (tensor or 1)
    is_right = size % known == 0 if replicas is None or shards is None else size == known
    if not is_right:
        asked = ",".join(f"{name}={number}" for name, number in given.items() if number is not None)
        named = [name for name in AXES if name in (REPLICAS, SHARDS) or given[name] is not None]
        times = " times ".join(named)
        raise ConfigurationError(f"{size} workers cannot be laid out as {asked}; {times} is the number of workers")
    left = size // known
    if replicas is None:
        return Axes(left, shards or 1, tensor or 1, stages or 1)
    return Axes(replicas, shards or left, tensor or 1, stages or 1)


def _is_no_size(number: object) -> bool:
    return isinstance(number, bool) or not isinstance(number, int) or number < 1


def axes_from_text(text: str, size: int) -> Axes:
    """Axes as the command line has them: `replicas=2,shards=2`. Raises `ConfigurationError`."""
    told: dict[str, int] = {}
    for item in text.split(","):
        name, _, number = item.strip().partition("=")
        if name not in AXES or name in told or not (number.isdecimal() and len(number) < 7):
            raise ConfigurationError(
                f'"{text}" is not a mesh; write replicas=R,stages=L,shards=S,tensor=T (some may be left out), in '
                "whole numbers"
            )
        told[name] = int(number)
    return axes_for(size, told.get(REPLICAS), told.get(SHARDS), told.get(TENSOR), told.get(STAGES))


def stage_of(zero: object) -> Zero:
    """A stage of ZeRO. Raises `ConfigurationError` for what is none."""
    found = next((stage for stage in ZEROS if stage == zero and not isinstance(zero, bool)), None)
    if found is None:
        raise ConfigurationError(f"zero={zero!r} is unknown; known: {', '.join(map(str, ZEROS))}")
    return found


def rows_of(count: int, shards: int, shard: int) -> range:
    """The rows of a tensor of `count` that lie on a shard: as many on each, as far as there are some (torch's
    `Shard(0)`)."""
    each = -(-count // shards)
    return range(min(count, shard * each), min(count, (shard + 1) * each))


def offload_of(offload: object) -> Offload | None:
    """Where the optimizer works. Raises `ConfigurationError` for what is unknown."""
    found = next((one for one in OFFLOADS if one == offload), None)
    if found is None and offload is not None:
        raise ConfigurationError(f"offload={offload!r} is unknown; known: {', '.join(OFFLOADS)}")
    return found
