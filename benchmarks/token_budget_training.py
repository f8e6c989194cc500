"""Training on batches of so many examples, or of at most so many tokens: `tokens_per_batch=` of `quorate.loader`.

    quorate run -n 4 --min-step-time 46ms+21.8us/token benchmarks/token_budget_training.py --tokens 7056 --steps 40

Functions of the workload `stdlib-functions` are classified by the mean of their words, so that a step computes hardly
anything, and takes the time that `--min-step-time` says.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import Tensor, nn

import quorate
from quorate.core.settings import settings_for
from quorate.workloads import workloads


class MeanOfWords(nn.Module):
    """An embedding, its mean over the words of a function, and a linear layer."""

    def __init__(self, words: int, classes: int, width: int = 8) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(words, width, padding_idx=0), nn.Linear(width, classes)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        scores: Tensor = self.output(self.embedding(words).sum(1) / lengths[:, None])
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on batches of so many examples, or of equal cost.")
    parser.add_argument("--settings", type=json.loads, default={}, metavar="JSON", help="of stdlib-functions")
    parser.add_argument("--steps", type=int, required=True, help="of each worker")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--batch", type=int, help="examples in a batch")
    size.add_argument("--tokens", type=int, help="the most tokens in a batch, padding included")
    options = parser.parse_args()

    world = quorate.join()
    kind = workloads.get("stdlib-functions")
    workload: Any = kind(**settings_for(kind, options.settings))
    torch.manual_seed(world.seed)
    model = MeanOfWords(len(workload.corpus.vocabulary), len(workload.corpus.classes)).to(world.device)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    train = workload.dataset(train=True)
    cut: dict[str, Any] = {"batch_size": options.batch, "shuffle": True}
    if options.tokens is not None:
        cut = {"tokens_per_batch": options.tokens, "lengths": train.lengths.tolist()}
    loader, left = quorate.loader(train, **cut, collate_fn=workload.collate), options.steps
    while left:
        for batch in loader:
            workload.loss(model, batch.to(world.device)).backward()
            optimizer.step()
            optimizer.zero_grad()
            left -= 1
            if not left:
                break
    optimizer.finish()


if __name__ == "__main__":
    main()
