"""The script that trains every workload with any strategy; an ordinary script that uses the API only.

    quorate run -n 4 …/train_workload.py digits --epochs 3 --evaluations 6

The work is `epochs` times the training set, over all workers together, in as many equal pieces as there are
evaluations. Every piece is one pass of a loader of its own, so that it ends for all workers together however it is
divided among them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, Subset

import quorate
from quorate.core.settings import settings_for
from quorate.core.workload import Workload, per_example, total
from quorate.data.assignment import epoch_order
from quorate.launch.worker.world import World
from quorate.workloads import workloads


class Piece(Dataset[Any]):
    """`length` examples of `data` from the place `begin` of an endless sequence of shuffled epochs."""

    def __init__(self, data: Any, seed: int, begin: int, length: int) -> None:
        self.data = data
        self.begin, self.length = begin, length
        self._examples: int = len(self.data)
        examples = self._examples
        epochs = range(begin // examples, (begin + length - 1) // examples + 1)
        self._orders = {epoch: epoch_order(examples, seed=seed, epoch=epoch) for epoch in epochs}

    def place(self, index: int) -> int:
        """Return the index in the data of an example of the piece."""
        epoch, place = divmod(self.begin + index, self._examples)
        return int(self._orders[epoch][place])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.data[self.place(index)]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return several examples, at once where the data supports it."""
        places = [self.place(index) for index in indices]
        together = getattr(self.data, "__getitems__", None)
        examples: list[Any] = [self.data[place] for place in places] if together is None else together(places)
        return examples


def pieces_of(work: int, pieces: int, step: int) -> list[int]:
    """Return the lengths of about equal pieces of `work` examples, all but the last multiples of `step`."""
    size = max(1, round(work / pieces / step)) * step
    lengths = [size] * min(pieces - 1, (work - 1) // size)
    return [*lengths, work - sum(lengths)]


def quality(workload: Workload[Any], model: torch.nn.Module, world: World, batch_size: int) -> dict[str, float]:
    """Return the quality of `model` on the test set, every example once, over all workers."""
    data: Any = workload.dataset(train=False)
    part = Subset(data, range(world.rank, len(data), world.size))
    counts = []
    with torch.no_grad():
        processes = workload.loader_workers
        for batch in DataLoader(part, batch_size=batch_size, collate_fn=workload.collate, num_workers=processes):
            counts.append(dict(workload.quality(model, batch.to(world.device))))
    return per_example(total(each for each in world.gather(total(counts)) if each))


def with_shares(lengths: Sequence[int], shares: Sequence[float], step: int) -> list[tuple[int, bool, float]]:
    """Return pieces that also end at these shares of the work: each with whether it is evaluated, and its share or 0.

    A piece of no examples is at the begin; other shares end pieces at multiples of `step`, at least one before the end.
    """
    ends = list(itertools.accumulate(lengths))
    work = ends[-1]
    last = max(0, (work - 1) // step * step)
    by_end = {min(last, round(share * work / step) * step): share for share in sorted(shares)}
    cuts = sorted({*ends, *by_end})
    return [
        (end - begin, end in ends and end > 0, by_end.get(end, 0.0))
        for begin, end in itertools.pairwise([0, *cuts])
        if end > begin or end in by_end
    ]


RISES = 0.02
"""Share of the work in which a falling learning rate first rises."""


def rate_at(share: float) -> float:
    """Return the factor of a learning rate that rises from 0, and falls along a cosine to 0 at the end of the work."""
    if share < RISES:
        return share / RISES
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (share - RISES) / (1.0 - RISES)))


def schedule_of(workload: Workload[Any], optimizer: Any, step_share: float | None) -> LambdaLR | None:
    """Return the schedule of the learning rate: falling to 0 if a step is `step_share` of the work, else the workload's
    own. None: the rate is constant."""
    if step_share is not None:
        return LambdaLR(optimizer, lambda steps: rate_at((steps + 1) * step_share))
    if type(workload).rate is Workload.rate:
        return None
    return LambdaLR(optimizer, lambda steps: workload.rate(steps + 1))


def main() -> None:
    """Train the workload that the command line names."""
    parser = argparse.ArgumentParser(description="Train one workload.")
    parser.add_argument("workload")
    parser.add_argument("--settings", type=json.loads, default={}, metavar="JSON", help="of the workload")
    parser.add_argument("--epochs", type=float, help="number of passes over the training set (the workload's)")
    parser.add_argument("--evaluations", type=int, default=5, help="evenly over the work")
    parser.add_argument("--batch", type=int, help="examples per worker and step (the workload's)")
    parser.add_argument("--falls", action="store_true", help="let the learning rate fall along a cosine")
    parser.add_argument("--endless", action="store_true", help="go on until the time is up (quorate run --seconds)")
    parser.add_argument("--target", type=float, help="end when the quality is at least as good as this")
    options = parser.parse_args()

    world = quorate.join()
    kind = workloads.get(options.workload)
    workload = kind(**settings_for(kind, options.settings, options.workload))
    batch_size: int = options.batch or workload.batch_size
    train: Any = workload.dataset(train=True)  # before the first step, so that reading it is no training time
    model = workload.model(seed=world.seed).to(world.device)
    optimizer: Any = quorate.distribute(workload.optimizer(model), model)
    work = max(1, round((workload.epochs if options.epochs is None else options.epochs) * len(train)))
    of_a_step = batch_size * world.size / work
    schedule = schedule_of(workload, optimizer, of_a_step if options.falls else None)
    lengths = pieces_of(work, max(1, options.evaluations), batch_size * world.size)
    shrinking = quorate.shrink.chosen(optimizer)  # of quorate compare --shrink
    pieces: Any = with_shares(lengths, shrinking.shares, batch_size * world.size)
    seen = number = 0
    if world.is_first:
        print("\n".join(workload.describe()[:1]), flush=True)
    for length, is_evaluated, share in itertools.cycle([(lengths[0], True, 0.0)]) if options.endless else pieces:
        if not length:
            shrinking.reached(share)
            continue
        piece = Piece(train, world.seed, seen, length)
        model.train()
        batches = 0
        loader = quorate.loader(
            piece, batch_size, collate_fn=workload.collate, num_workers=workload.loader_workers, seed=world.seed
        )
        for batch in loader:
            workload.loss(model, batch.to(world.device)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()
            batches += 1
        if not is_evaluated:
            seen += length
            shrinking.reached(share)
            continue
        number += 1
        with world.evaluate():
            of_all = sum(world.gather(batches))
            if not of_all:  # time is up
                break
            seen += min(length, of_all * batch_size)
            model.eval()
            results = quality(workload, model, world, batch_size)
        if world.replicas_differ:  # beside their mean, single replicas: each on its part of the test set
            with world.evaluate(at="replica"):
                single = quality(workload, model, world, batch_size)
            results |= {f"replica_{workload.headline}": single[workload.headline]}
        if world.is_first:
            quorate.log(**results, examples=seen)
            figures = "  ".join(f"{name} {value:.4f}" for name, value in sorted(results.items()))
            of_pieces = "" if options.endless else f"/{len(lengths)}"
            print(f"evaluation {number}{of_pieces}  examples {seen}  {figures}", flush=True)
        if options.target is not None and is_reached(results[workload.headline], options.target, workload):
            break
        shrinking.reached(share)
    optimizer.finish()


def is_reached(value: float, target: float, workload: Workload[Any]) -> bool:
    """Whether `value` of the workload's headline is at least as good as `target`."""
    return value >= target if workload.higher_is_better else value <= target


if __name__ == "__main__":
    main()
