"""Streams of numbers for tests, and trainings over them in the virtual world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import IterableDataset

import quorate
from quorate.core.errors import Stopped
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined


class Numbers(IterableDataset[Any]):
    """0 … count−1, each with an input; it cannot say its place."""

    def __init__(self, count: int) -> None:
        self.count, self.reads = count, 0

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            self.reads += 1
            yield torch.full((3,), float(number)), number


class Placed(IterableDataset[Any]):
    """The same, with torchdata's protocol: its state is that of the stream."""

    def __init__(self, count: int) -> None:
        self.count, self.reads, self._at, self._begin = count, 0, 0, 0

    def __iter__(self) -> Iterator[Any]:
        self._at, self._begin = self._begin, 0
        while self._at < self.count:
            self._at += 1
            self.reads += 1
            yield torch.full((3,), float(self._at - 1)), self._at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._begin = state["at"]


class Sharded(IterableDataset[Any]):
    """Numbers in shards of unequal lengths, with `num_shards` and `shard`, as in Hugging Face `datasets`."""

    def __init__(self, count: int, shards: int, chosen: tuple[int, ...] | None = None) -> None:
        self.count, self._shards = count, shards
        self._chosen = tuple(range(shards)) if chosen is None else chosen
        self._at = 0

    @property
    def num_shards(self) -> int:
        return len(self._chosen)

    def shard(self, num_shards: int, index: int) -> Sharded:
        return Sharded(self.count, self._shards, self._chosen[index::num_shards])

    def __iter__(self) -> Iterator[Any]:
        begin, self._at = self._at, 0
        numbers = [n for shard in self._chosen for n in range(self.count) if int(n**0.5) % self._shards == shard]
        for place, number in enumerate(numbers[begin:], begin):
            self._at = place + 1
            yield torch.full((3,), float(number)), number
        self._at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training over a stream under one strategy."""

    strategy: str
    stream: type[IterableDataset[Any]] | Any
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    epochs: int = 1
    dies: tuple[int, int] | None = None
    """A worker, and the number of steps after which it dies, with another batch in hand."""

    def run(
        self, size: int, *, stop: int | None = None, before: list[Any] | None = None, seed: int = 0
    ) -> tuple[list[list[tuple[int, int]]], list[Any]]:
        """Return what each worker has computed, (epoch, number), and the loaders' positions. Worker r ends after
        `stop` + r steps where no step waits for others, and after `stop` elsewhere."""

        def live(world: quorate.World) -> tuple[list[tuple[int, int]], Any]:
            torch.manual_seed(0)
            model = torch.nn.Linear(3, 1)
            plain = torch.optim.SGD(model.parameters(), lr=1e-4)
            optimizer = quorate.distribute(plain, model, self.strategy, **self.settings)
            loader = quorate.loader(self.stream(), **{"batch_size": 2, **self.options})
            if before is not None:
                loader.load_state_dicts(before)
            seen: list[tuple[int, int]] = []
            steps, position = 0, None
            while loader.epoch < self.epochs and position is None:
                for inputs, numbers in loader:
                    world.wire.clock.sleep(0.01 * (1 + world.rank))
                    model(inputs).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    seen += [(loader.epoch, number) for number in numbers.tolist()]
                    steps += 1
                    if stop is not None and steps == stop:
                        position = loader.state_dict()
                        break
                else:
                    loader.set_epoch(loader.epoch + 1)
            optimizer.finish()
            return seen, loader.state_dict() if position is None else position

        workers = VirtualWorld(size, seed=seed).run(joined(live))
        return [seen for seen, _ in workers], [position for _, position in workers]

    def run_with_a_death(
        self,
        size: int,
        *,
        joins_at: float | None = None,
        stops: Callable[[Any, int, int], bool] = lambda loader, rank, steps: False,
    ) -> list[list[tuple[int, int]]]:
        """Return what each worker has computed, of which `dies` has died; with `joins_at`, another one joins then.

        `stops` says, of a loader, a rank and its number of steps, whether the worker ends there."""
        assert self.dies is not None, "a worker dies"
        victim, steps_left = self.dies
        computed: dict[int, list[tuple[int, int]]] = {}

        def live(world: quorate.World) -> None:
            torch.manual_seed(0)
            model = torch.nn.Linear(3, 1)
            plain = torch.optim.SGD(model.parameters(), lr=1e-4)
            optimizer = quorate.distribute(plain, model, self.strategy, on_death="continue", **self.settings)
            loader = quorate.loader(self.stream(), **{"batch_size": 2, **self.options})
            seen = computed.setdefault(world.rank, [])
            steps, has_stopped = 0, False
            for _ in range(loader.epoch, self.epochs):
                for inputs, numbers in () if has_stopped else loader:
                    world.wire.clock.sleep(0.01 * (1 + world.rank))
                    if (world.rank, steps) == (victim, steps_left):
                        world.wire.crash()
                    model(inputs).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    seen += [(loader.epoch, number) for number in numbers.tolist()]
                    steps += 1
                    if has_stopped := stops(loader, world.rank, steps):
                        break
            optimizer.finish()

        def begin(wire: Any) -> None:
            if wire.is_newcomer:
                wire.clock.sleep(joins_at or 0.0)
            joined(live)(wire)

        outcomes = VirtualWorld(size, joiners=0 if joins_at is None else 1, timeout=60.0).outcomes(begin)
        for rank, outcome in enumerate(outcomes):
            is_too_late = rank >= size and isinstance(outcome.error, Stopped)
            if outcome.error is not None and not outcome.is_crashed and not is_too_late:
                raise outcome.error
        return [computed.get(rank, []) for rank in range(len(outcomes))]
