"""A model as a planner sees it: blocks one after another, with their seconds, numbers and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from quorate.sharding.memory import Mode, Size, held
from quorate.sharding.memory import Model as Held


@dataclass(frozen=True, kw_only=True)
class Block:
    """One layer, or more, that is not cut into stages. Seconds and bytes are of one example on one worker."""

    name: str
    forward: float
    backward: float
    """Of the gradient of its input."""
    weight: float
    """Of the gradient of its weights."""
    numbers: int
    """Parameters."""
    fixed: tuple[float, float] = (0.0, 0.0)
    """Seconds of a forward and of a backward pass that are no longer for more examples."""
    saved: float
    """Bytes kept for the backward pass, whole."""
    output: float = 0.0
    """Bytes handed on to the next block."""
    sums: float = 0.0
    """Bytes that are summed over the tensor axis in a forward pass, in two sums; backward as many."""
    cut: float = 0.0
    """The share of numbers that is divided over the tensor axis."""
    seconds_cut: tuple[float, float] | None = None
    """The share of the seconds of a forward and of a backward pass that is divided there; None: as of numbers."""
    fixed_cut: tuple[float, float] | None = None
    """`fixed` where the block is divided; None: the same."""
    saved_cut: float = 0.0
    """The same of the bytes kept."""
    again: float = 0.0
    """Bytes kept while the block is computed again (activation checkpointing); 0: it is not."""
    again_cut: float = 0.0

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward + self.weight

    def passes(self, tensor: int) -> tuple[float, float, float]:
        """Seconds of the three passes on each of `tensor` workers, for each example."""
        forward, backward = self.seconds_cut or (self.cut, self.cut)
        share = _share(backward, tensor)
        return self.forward * _share(forward, tensor), self.backward * share, self.weight * share

    def fixed_on(self, tensor: int) -> tuple[float, float]:
        """`fixed`, on each of `tensor` workers."""
        return self.fixed if tensor == 1 or self.fixed_cut is None else self.fixed_cut

    def numbers_held(self, tensor: int) -> int:
        """By each of `tensor` workers."""
        return round(self.numbers * _share(self.cut, tensor))


def _share(cut: float, tensor: int) -> float:
    return 1 - cut + cut / tensor


@dataclass(frozen=True)
class Stage:
    """Neighbouring blocks on each of so many workers of a tensor axis; fields as of `Block`, in sum."""

    blocks: tuple[Block, ...]
    tensor: int

    @cached_property
    def passes(self) -> tuple[float, float, float]:
        """Seconds of the three passes, for each example."""
        each = [one.passes(self.tensor) for one in self.blocks]
        return sum(one[0] for one in each), sum(one[1] for one in each), sum(one[2] for one in each)

    @cached_property
    def fixed(self) -> tuple[float, float, float]:
        """Seconds of the three passes, however many examples they are of."""
        each = [one.fixed_on(self.tensor) for one in self.blocks]
        return sum(one[0] for one in each), sum(one[1] for one in each), 0.0

    @cached_property
    def numbers(self) -> int:
        """Parameters held."""
        return sum(one.numbers_held(self.tensor) for one in self.blocks)

    @cached_property
    def saved(self) -> float:
        """Bytes kept for the backward pass."""
        return sum(one.saved * _share(one.saved_cut, self.tensor) for one in self.blocks)

    @cached_property
    def again(self) -> float:
        """Bytes kept while one of its blocks is computed again, at most."""
        return max(one.again * _share(one.again_cut, self.tensor) for one in self.blocks)

    @cached_property
    def sums(self) -> tuple[int, float]:
        """Sums over the tensor axis in a forward pass, and their bytes."""
        return 2 * sum(one.sums > 0 for one in self.blocks), sum(one.sums for one in self.blocks)

    @cached_property
    def sums_again(self) -> tuple[int, float]:
        """The same of what is computed again."""
        again = [one.sums for one in self.blocks if one.again and one.sums]
        return 2 * len(again), sum(again)

    @property
    def output(self) -> float:
        """Bytes handed on."""
        return self.blocks[-1].output


@dataclass(frozen=True, kw_only=True)
class Model:
    """Blocks in the order in which they compute, and what the optimizer makes of their numbers."""

    name: str
    blocks: Sequence[Block]
    batch: int
    """Examples of a step, of all workers together."""
    bytes_each: float = 4
    """Of a parameter, as it lies; its gradient likewise."""
    gathered_each: float = 4
    """Of a parameter, as it is used."""
    kept_each: float = 8.0
    """Of what the optimizer keeps of a parameter."""
    update: float = 0.0
    """Seconds of the optimizer's step, for each number."""
    gathering: float = 0.0
    """Seconds of a worker, for each number, around a gather over shards: to pack and unpack it, hooks, and memory that
    is mapped anew."""
    reducing: float = 0.0
    """The same around a reduction."""
    outside: float = 0.0
    """Seconds of a step between passes and updates, on each worker, as for reading its batch."""
    crowding: float = 1.0
    """How many times its share of a core's time a step takes where several workers share each core."""
    by_processor: Model | None = None
    """The same without the seconds in which workers waited for each other: where they share cores, others compute in
    these. None: it was not timed."""
    spread: Sequence[float] = ()
    """Steps of one worker that were timed, over what was usual then, from the shortest on; empty: they do not vary."""
    tied: int = 0
    """Numbers that the first and the last block have in common."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Why the layers cannot be cut over so many workers."""
    known_tensors: Sequence[int] = ()
    """The only numbers of workers that layers can be cut over, 1 among them; empty: all but the refused ones."""
    can_be_cut: bool = True
    """Whether any tensor axis is possible."""
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What has been calculated already."""

    @property
    def numbers(self) -> int:
        """All parameters, each once."""
        return sum(one.numbers for one in self.blocks) - self.tied

    def stages(self, count: int, tensor: int = 1) -> tuple[Stage, ...]:
        """`count` stages of neighbouring blocks, at least one in each; the longest is as short as can be."""
        key = (count, tensor)
        if key not in self.memo:
            ends = self._ends(count)
            parts = zip([0, *ends], [*ends, len(self.blocks)], strict=True)
            self.memo[key] = tuple(Stage(tuple(self.blocks[begin:end]), tensor) for begin, end in parts)
        found: tuple[Stage, ...] = self.memo[key]
        return found

    def begins(self, count: int) -> list[str]:
        """Names of the blocks with which so many stages begin, but for the first stage."""
        return [stage.blocks[0].name for stage in self.stages(count)[1:]]

    def _ends(self, count: int) -> list[int]:
        """Where stages end: as `sharding.stages.cut.cut_evenly` chooses, of seconds. Cost: O(blocks^2 x stages)."""
        key = ("ends", count)
        if key not in self.memo:
            sums = [0.0, *accumulate(one.seconds + sum(one.fixed) for one in self.blocks)]
            row, begins = [0.0, *[float("inf")] * len(self.blocks)], []
            for stage in range(1, count + 1):
                found = [(float("inf"), 0)] * stage + [
                    min((max(row[begin], sums[end] - sums[begin]), -begin) for begin in range(stage - 1, end))
                    for end in range(stage, len(self.blocks) + 1)
                ]
                row = [cost for cost, _ in found]
                begins.append([-begin for _, begin in found])
            ends = [len(self.blocks)]
            for choices in reversed(begins[1:]):
                ends.append(choices[ends[-1]])
            self.memo[key] = ends[:0:-1]
        known: list[int] = self.memo[key]
        return known

    def numbers_of(self, stages: Sequence[Stage]) -> int:
        """Parameters of a worker that has `stages`; what is tied counts once where it has all."""
        return sum(stage.numbers for stage in stages) - self._tied(stages)

    def held(self, stages: Sequence[Stage], zero: Mode, shards: int) -> int:
        """Bytes, but for activations, of a worker that has `stages` (see `sharding.memory`)."""
        key = (tuple(map(id, stages)), zero, shards)
        if key not in self.memo:
            blocks, tensor = [block for stage in stages for block in stage.blocks], stages[0].tensor
            left_out = [0] * (len(blocks) - 1) + [self._tied(stages)]
            sizes = [self._size(one, tensor, without) for one, without in zip(blocks, left_out, strict=True)]
            self.memo[key] = held(Held(sizes=sizes), zero, shards).total
        found: int = self.memo[key]
        return found

    def _tied(self, stages: Sequence[Stage]) -> int:
        return self.tied // stages[0].tensor if sum(len(stage.blocks) for stage in stages) == len(self.blocks) else 0

    def _size(self, block: Block, tensor: int, without: int) -> Size:
        numbers = block.numbers_held(tensor) - without
        return Size(
            numbers=numbers,
            rows=max(1, numbers),
            bytes=round(self.bytes_each * numbers),
            gathered_bytes=round(self.gathered_each * numbers),
            kept_like=round(self.kept_each * numbers),
            block=block.name,
        )
