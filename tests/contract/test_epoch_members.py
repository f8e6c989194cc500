"""After a death, and after a join, the next epoch of a static share has each example once."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from quorate.records.tape import Tape
from tests.support.streams import Training

COUNT, VICTIM, EPOCHS = 36, 1, 3
STRATEGIES = ("all-reduce", "eager-majority", "local-sgd", "d-psgd")


def data() -> TensorDataset:
    return TensorDataset(torch.randn(COUNT, 3), torch.arange(COUNT))


def training(strategy: str, dies: int, **options: Any) -> Training:
    share = {"share": "static", "batch_size": 2, **options}
    return Training(strategy=strategy, epochs=EPOCHS, dies=(VICTIM, dies), stream=data, options=share)


def times(workers: list[list[tuple[int, int]]], epoch: int) -> Counter[int]:
    return Counter(number for seen in workers for of, number in seen if of == epoch)


@pytest.mark.covering(("strategy", "dies"), product(STRATEGIES, [0, 3, 6]))
def test_the_next_epochs_have_each_example_once(
    strategy: str, dies: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With 36 examples, three workers have six batches of two, and two workers have nine."""
    workers = training(strategy, dies).run_with_a_death(3)
    lost = COUNT - times(workers, 0).total()
    assert max(times(workers, 0).values()) == 1
    assert lost == 2 * (6 - dies) if dies < 6 else lost == 0
    last = [times(workers, epoch) for epoch in range(1 + (dies == 6), EPOCHS)]
    assert last == [Counter(range(COUNT))] * len(last)
    said = capsys.readouterr().err
    assert said.count(f"rank {VICTIM} died in epoch") == 1
    if strategy == "all-reduce":
        epoch, left = (1, 6) if dies == 6 else (0, 6 - dies)
        assert f"rank 1 died in epoch {epoch}: about {left} batches of it are left out" in said
