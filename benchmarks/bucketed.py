"""Training with batches of examples of about equal length, the same for all workers of a step: sorted, not shuffled.

    quorate run -n 4 benchmarks/bucketed.py stdlib-functions --batch 16 --epochs 2 --evaluations 8

The obvious cure for batches of unequal work, where what is unequal is known beforehand. The work and the evaluations
are those of the script in which every workload is trained; each piece is cut into chunks of `--chunk` steps of all
workers, a chunk is sorted by length and cut into steps, and the steps of the piece come in drawn order.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

import quorate
from quorate.compare.train_workload import Piece, pieces_of, quality, schedule_of
from quorate.core.settings import settings_for
from quorate.workloads import workloads


def bucketed(lengths: list[int], step: int, chunk: int, seed: int) -> list[int]:
    """An order of examples of these `lengths` in which every `step` that follow each other are about equally long.

    Only within chunks of `chunk` steps, so that what comes early and what comes late is drawn as before.
    """
    steps = []
    for begin in range(0, len(lengths), step * chunk):
        places = range(begin, min(begin + step * chunk, len(lengths)))
        rising = sorted(places, key=lambda place: lengths[place])
        steps += [rising[first : first + step] for first in range(0, len(rising), step)]
    drawn = torch.randperm(len(steps), generator=torch.Generator().manual_seed(seed)).tolist()
    drawn.sort(key=lambda place: len(steps[place]) < step)  # an incomplete one comes last
    return [place for number in drawn for place in steps[number]]


class Sorted(torch.utils.data.Dataset[Any]):
    """A piece in that order."""

    def __init__(self, piece: Piece, lengths: torch.Tensor, step: int, chunk: int, seed: int) -> None:
        self._piece = piece
        own = [int(lengths[piece.place(index)]) for index in range(len(piece))]
        self._order = bucketed(own, step, chunk, seed)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Any:
        return self._piece[self._order[index]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train one workload on batches of equal length.")
    parser.add_argument("workload")
    parser.add_argument("--settings", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--evaluations", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=16, help="steps of all workers that are sorted together")
    options = parser.parse_args()

    world = quorate.join()
    kind = workloads.get(options.workload)
    workload = kind(**settings_for(kind, options.settings))
    model = workload.model(seed=world.seed).to(world.device)
    optimizer: Any = quorate.distribute(workload.optimizer(model), model)
    schedule = schedule_of(workload, optimizer, None)
    train: Any = workload.dataset(train=True)
    step, seen = options.batch * world.size, 0
    for length in pieces_of(round(options.epochs * len(train)), options.evaluations, step):
        piece = Sorted(Piece(train, world.seed, seen, length), train.lengths, step, options.chunk, world.seed + seen)
        model.train()
        for batch in quorate.loader(piece, options.batch, collate_fn=workload.collate, shuffle=False):
            workload.loss(model, batch.to(world.device)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()
        seen += length
        with world.evaluate():
            model.eval()
            found = quality(workload, model, world, options.batch)
        if world.is_first:
            quorate.log(**found, examples=seen)
    optimizer.finish()


if __name__ == "__main__":
    main()
