"""Layouts of a model over workers: axes, ZeRO, the schedule of a pipeline, and the strategy of replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from quorate.planning.model import Model
from quorate.sharding.memory import Mode
from quorate.sharding.stages.orders import SCHEDULES, Placement, refusal, stages_of

USUAL = "all-reduce"
"""The strategy between replicas with which layouts are searched."""
AXES = ("replicas", "stages", "shards", "tensor")
_MOST_CHUNKS = 4
_MOST_PARTS = 64
"""Micro-batches for each worker of a pipeline, or of an accumulation; more change a step only little."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A mesh of `replicas` x `stages` x `shards` x `tensor` workers; those of the last axis have neighbouring ranks."""

    replicas: int = 1
    stages: int = 1
    """Workers of a pipeline."""
    shards: int = 1
    tensor: int = 1
    zero: Mode = 0
    """0 without shards."""
    schedule: str = ""
    """Empty without a pipeline."""
    chunks: int = 1
    """Stages of each worker of a pipeline."""
    microbatches: int = 1
    """Micro-batches of a worker's batch; without a pipeline, gradients are accumulated over them."""
    strategy: str = ""
    """With its settings, as `quorate run --strategy` takes it; empty where there is one replica."""

    @property
    def workers(self) -> int:
        """The number of all workers."""
        return self.replicas * self.stages * self.shards * self.tensor

    @property
    def reduces(self) -> int:
        """The number of reductions of gradients over shards in a step."""
        return self.microbatches if self.zero in (2, 3) and not self.schedule else 1

    @property
    def keeps_whole_gradients(self) -> bool:
        """Whether gradients of shards are full until the last micro-batch."""
        return self.shards > 1 and self.microbatches > self.reduces

    @property
    def owned(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each worker of a pipeline."""
        if not self.schedule:
            return ((0,),)
        return _owned(self.stages, self.chunks, SCHEDULES[self.schedule].placement)

    @property
    def mesh(self) -> str:
        """The value of `quorate run --mesh`, such as `replicas=2,shards=4`; empty for one worker."""
        return ",".join(f"{name}={getattr(self, name)}" for name in AXES if getattr(self, name) > 1)

    @property
    def in_words(self) -> str:
        """Axes longer than 1, with their settings."""
        axes = self.mesh.replace(",", ", ") or "replicas=1"
        zero = f", zero={self.zero}" if self.shards > 1 else ""
        how = f", {self.schedule}" if self.schedule else ""
        chunks = f" x{self.chunks}" if self.chunks > 1 else ""
        parts = f", {self.microbatches} micro-batches" if self.microbatches > 1 else ""
        return f"{axes}{zero}{how}{chunks}{parts}" + (f", {self.strategy}" if self.strategy else "")


@lru_cache(maxsize=1024)
def _owned(workers: int, chunks: int, placement: Placement) -> tuple[tuple[int, ...], ...]:
    return tuple(stages_of(worker, workers, chunks, placement) for worker in range(workers))


@dataclass(frozen=True)
class Refused:
    """A choice of `axes` with which no layout is possible, and the reason."""

    axes: str
    why: str


def axes_of(workers: int, longest: dict[str, int] | None = None) -> Iterator[Layout]:
    """Yield all products of four numbers that equal `workers`; `longest` limits those of some axes."""
    limits = longest or {}
    for tensor in _divisors(workers, limits.get("tensor")):
        for shards in _divisors(workers // tensor, limits.get("shards")):
            for stages in _divisors(workers // tensor // shards, limits.get("stages")):
                replicas = workers // tensor // shards // stages
                if replicas <= limits.get("replicas", replicas):
                    yield Layout(replicas=replicas, stages=stages, shards=shards, tensor=tensor)


def refusal_of(axes: Layout, model: Model) -> Refused | None:
    """Return why no layout with these axes is possible."""
    tensor, stages = axes.tensor, axes.stages
    if tensor > 1 and not model.can_be_cut:
        return Refused("tensor", "no layers were found that can be cut")
    if tensor in model.refused:
        return Refused(f"tensor={tensor}", model.refused[tensor])
    if model.known_tensors and tensor not in model.known_tensors:
        return Refused(f"tensor={tensor}", "it was not asked whether layers can be cut over so many")
    if stages > len(model.blocks):
        return Refused(f"stages={stages}", f"the model has {len(model.blocks)} block{'s' * (len(model.blocks) != 1)}")
    if model.batch % (axes.replicas * axes.shards):
        return Refused(
            f"replicas x shards = {axes.replicas * axes.shards}", f"a batch of {model.batch} does not divide evenly"
        )
    return None


def layouts_with(axes: Layout, model: Model) -> Iterator[Layout]:
    """Yield all proposed layouts with these axes, which `refusal_of` does not refuse.

    With shards and a pipeline, gradients are reduced once a step, so ZeRO 1 and 2 are the same, and 1 is used. A split
    backward pass and ZeRO 3 exclude each other: if parameters are freed between its two parts, some weights get no
    gradient.
    """
    each = model.batch // (axes.replicas * axes.shards)
    for schedule, chunks, microbatches in _parts(axes.stages, each, len(model.blocks)):
        for zero in _zeros(axes, schedule, microbatches):
            yield Layout(
                replicas=axes.replicas, stages=axes.stages, shards=axes.shards, tensor=axes.tensor, zero=zero,
                schedule=schedule, chunks=chunks, microbatches=microbatches,
                strategy=USUAL if axes.replicas > 1 else "",
            )  # fmt: skip


def _zeros(axes: Layout, schedule: str, microbatches: int) -> tuple[Mode, ...]:
    if axes.shards == 1:
        return (0,)
    if schedule:
        return (1,) if SCHEDULES[schedule].is_split else (1, 3)
    return (2, 3) if microbatches == 1 else (1, 2, 3)


def _parts(stages: int, each: int, blocks: int) -> Iterator[tuple[str, int, int]]:
    """Yield schedules, stages of a worker, and micro-batches of a batch of `each` examples."""
    counts = [number for number in _divisors(each, stages * _MOST_PARTS) if _is_round(number, stages, each)]
    if stages == 1:
        yield from (("", 1, number) for number in counts)
        return
    for name, schedule in SCHEDULES.items():
        for chunks in (schedule.chunks,) if schedule.chunks else range(2, _MOST_CHUNKS + 1):
            if stages * chunks > blocks:
                continue
            for number in counts:
                if number >= stages and not refusal(name, stages, chunks, number):
                    yield name, chunks, number


def _is_round(number: int, stages: int, each: int) -> bool:
    """Return whether `number` is a power of two, one times the stages, or the whole batch."""
    over = number // stages if number % stages == 0 else number
    return number == each or not number & (number - 1) or not over & (over - 1)


def _divisors(number: int, most: int | None = None) -> list[int]:
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    divisors = sorted({*small, *(number // divisor for divisor in small)})
    return [divisor for divisor in divisors if most is None or divisor <= most]
