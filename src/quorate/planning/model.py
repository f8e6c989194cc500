"""A planner's view of a model: successive blocks, with their seconds, numbers and bytes."""

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
    """One or more layers that are not cut into stages. Seconds and bytes are of one example on one worker."""

    name: str
    forward: float
    backward: float
    """Seconds of the gradient of its input."""
    weight: float
    """Seconds of the gradient of its weights."""
    numbers: int
    """Parameters."""
    fixed: tuple[float, float] = (0.0, 0.0)
    """Seconds of a forward and of a backward pass that do not depend on the number of examples."""
    saved: float
    """Bytes kept for the backward pass, in all."""
    output: float = 0.0
    """Bytes of the input of the next block."""
    sums: float = 0.0
    """Bytes that are summed over the tensor axis in a forward pass, in two sums; the same in the backward pass."""
    cut: float = 0.0
    """The share of numbers that is divided over the tensor axis."""
    seconds_cut: tuple[float, float] | None = None
    """The share of the seconds of a forward and of a backward pass that is divided there; None: that of numbers."""
    fixed_cut: tuple[float, float] | None = None
    """`fixed` where the block is divided; None: the same."""
    saved_cut: float = 0.0
    """The divided share of the bytes kept."""
    again: float = 0.0
    """Bytes kept while the block is computed again (activation checkpointing); 0: it is not."""
    again_cut: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all passes."""
        return self.forward + self.backward + self.weight

    def passes(self, tensor: int) -> tuple[float, float, float]:
        """Return the seconds of the three passes on each of `tensor` workers, for each example."""
        forward, backward = self.seconds_cut or (self.cut, self.cut)
        share = _share(backward, tensor)
        return self.forward * _share(forward, tensor), self.backward * share, self.weight * share

    def fixed_on(self, tensor: int) -> tuple[float, float]:
        """Return `fixed` on each of `tensor` workers."""
        return self.fixed if tensor == 1 or self.fixed_cut is None else self.fixed_cut

    def numbers_held(self, tensor: int) -> int:
        """Return the parameters that each of `tensor` workers holds."""
        return round(self.numbers * _share(self.cut, tensor))


def _share(cut: float, tensor: int) -> float:
    return 1 - cut + cut / tensor


@dataclass(frozen=True)
class Stage:
    """Successive blocks on each of `tensor` workers; fields are the sums of those of `Block`."""

    blocks: tuple[Block, ...]
    tensor: int

    @cached_property
    def passes(self) -> tuple[float, float, float]:
        """Seconds of the three passes, for each example."""
        each = [block.passes(self.tensor) for block in self.blocks]
        return sum(passes[0] for passes in each), sum(passes[1] for passes in each), sum(passes[2] for passes in each)

    @cached_property
    def fixed(self) -> tuple[float, float, float]:
        """Seconds of the three passes that do not depend on the number of examples."""
        each = [block.fixed_on(self.tensor) for block in self.blocks]
        return sum(fixed[0] for fixed in each), sum(fixed[1] for fixed in each), 0.0

    @cached_property
    def numbers(self) -> int:
        """Parameters held."""
        return sum(block.numbers_held(self.tensor) for block in self.blocks)

    @cached_property
    def saved(self) -> float:
        """Bytes kept for the backward pass."""
        return sum(block.saved * _share(block.saved_cut, self.tensor) for block in self.blocks)

    @cached_property
    def again(self) -> float:
        """Bytes kept while one of its blocks is computed again, at most."""
        return max(block.again * _share(block.again_cut, self.tensor) for block in self.blocks)

    @cached_property
    def sums(self) -> tuple[int, float]:
        """The number of sums over the tensor axis in a forward pass, and their bytes."""
        return 2 * sum(block.sums > 0 for block in self.blocks), sum(block.sums for block in self.blocks)

    @cached_property
    def sums_again(self) -> tuple[int, float]:
        """The same for recomputed blocks."""
        again = [block.sums for block in self.blocks if block.again and block.sums]
        return 2 * len(again), sum(again)

    @property
    def output(self) -> float:
        """Bytes of the input of the next stage."""
        return self.blocks[-1].output


@dataclass(frozen=True, kw_only=True)
class Model:
    """Blocks in the order in which they compute, and the costs of their numbers."""

    name: str
    blocks: Sequence[Block]
    batch: int
    """Examples of a step, of all workers together."""
    bytes_each: float = 4
    """Bytes of a parameter between steps, and of its gradient."""
    gathered_each: float = 4
    """Bytes of a parameter in use."""
    kept_each: float = 8.0
    """Bytes of the optimizer's state for a parameter."""
    update: float = 0.0
    """Seconds of the optimizer's step, for each number."""
    gathering: float = 0.0
    """Seconds of a worker, for each number, around a gather over shards: packing, hooks, and mapping memory again."""
    reducing: float = 0.0
    """The same around a reduction."""
    outside: float = 0.0
    """Seconds of a step between passes and updates, on each worker, such as reading its batch."""
    crowding: float = 1.0
    """The factor by which a step exceeds its share of a core's time where several workers share each core."""
    by_processor: Model | None = None
    """The model without seconds in which workers waited for each other; with shared cores, others compute in these.

    None: it was not timed.
    """
    spread: Sequence[float] = ()
    """Timed steps of one worker, divided by the usual time around them, from the shortest on; empty: they do not
    vary."""
    flops: float = 0.0
    """Operations of one example in all passes; 0: not known."""
    tied: int = 0
    """Numbers that the first and the last block share."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Reasons why the layers cannot be cut over so many workers."""
    known_tensors: Sequence[int] = ()
    """The only numbers of workers over which layers can be cut, 1 among them; empty: all but the refused ones."""
    can_be_cut: bool = True
    """Whether any tensor axis is possible."""
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Results of earlier calculations."""

    @property
    def numbers(self) -> int:
        """All parameters, each once."""
        return sum(block.numbers for block in self.blocks) - self.tied

    def stages(self, count: int, tensor: int = 1) -> tuple[Stage, ...]:
        """Return `count` stages of successive blocks, at least one in each; the longest is as short as possible."""
        key = (count, tensor)
        if key not in self.memo:
            ends = self._ends(count)
            parts = zip([0, *ends], [*ends, len(self.blocks)], strict=True)
            self.memo[key] = tuple(Stage(tuple(self.blocks[begin:end]), tensor) for begin, end in parts)
        cut: tuple[Stage, ...] = self.memo[key]
        return cut

    def begins(self, count: int) -> list[str]:
        """Return the names of the blocks with which so many stages begin, without the first stage."""
        return [stage.blocks[0].name for stage in self.stages(count)[1:]]

    def _ends(self, count: int) -> list[int]:
        """Return the ends of stages, as `sharding.stages.cut.cut_evenly` chooses, by seconds. Cost: O(blocks^2 x
        stages)."""
        key = ("ends", count)
        if key not in self.memo:
            sums = [0.0, *accumulate(block.seconds + sum(block.fixed) for block in self.blocks)]
            row, begins = [0.0, *[float("inf")] * len(self.blocks)], []
            for stage in range(1, count + 1):
                costs = [(float("inf"), 0)] * stage + [
                    min((max(row[begin], sums[end] - sums[begin]), -begin) for begin in range(stage - 1, end))
                    for end in range(stage, len(self.blocks) + 1)
                ]
                row = [cost for cost, _ in costs]
                begins.append([-begin for _, begin in costs])
            ends = [len(self.blocks)]
            for choices in reversed(begins[1:]):
                ends.append(choices[ends[-1]])
            self.memo[key] = ends[:0:-1]
        chosen: list[int] = self.memo[key]
        return chosen

    def numbers_of(self, stages: Sequence[Stage]) -> int:
        """Return the parameters of a worker that has `stages`; tied ones count once where it has all."""
        return sum(stage.numbers for stage in stages) - self._tied(stages)

    def held(self, stages: Sequence[Stage], zero: Mode, shards: int) -> int:
        """Return the bytes of a worker that has `stages`, without activations (see `sharding.memory`)."""
        key = (tuple(map(id, stages)), zero, shards)
        if key not in self.memo:
            blocks, tensor = [block for stage in stages for block in stage.blocks], stages[0].tensor
            left_out = [0] * (len(blocks) - 1) + [self._tied(stages)]
            sizes = [self._size(block, tensor, without) for block, without in zip(blocks, left_out, strict=True)]
            self.memo[key] = held(Held(sizes=sizes), zero, shards).total
        nbytes: int = self.memo[key]
        return nbytes

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
