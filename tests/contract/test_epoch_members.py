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

from quorate.records.rows import Divided
from quorate.records.tape import Tape, _take
from tests.support.streams import Training

COUNT, VICTIM, EPOCHS = 36, 1, 3
STRATEGIES = ("all-reduce", "eager-majority", "local-sgd", "d-psgd")


def data() -> TensorDataset:
    return TensorDataset(torch.ones(COUNT, 3), torch.arange(COUNT))


def training(strategy: str, dies: int, **options: Any) -> Training:
    share = {"share": "static", "batch_size": 2, **options}
    return Training(strategy=strategy, epochs=EPOCHS, dies=(VICTIM, dies), stream=data, options=share)


def times(workers: list[list[tuple[int, int]]], epoch: int) -> Counter[int]:
    return Counter(number for seen in workers for of, number in seen if of == epoch)


@pytest.mark.covering(("strategy", "dies"), product(STRATEGIES, [0, 3, 6]))
def test_the_next_epochs_have_each_example_once(strategy: str, dies: int, capsys: pytest.CaptureFixture[str]) -> None:
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
        assert f"rank 1 died in epoch {epoch}. About {left} batches of it are left out" in said


def test_a_newcomer_is_counted_from_the_next_epoch_on() -> None:
    """It takes the place of the dead worker, and the next epochs are divided among three again."""
    workers = training("all-reduce", 3).run_with_a_death(3, joins_at=0.1)
    assert [times(workers, epoch) for epoch in range(1, EPOCHS)] == [Counter(range(COUNT))] * (EPOCHS - 1)
    assert len({number for epoch, number in workers[3] if epoch == 2}) == COUNT // 3


@pytest.mark.parametrize("after", [2, 3])
def test_a_checkpoint_after_a_death_continues_with_each_example_once(after: int) -> None:
    """In the middle of an epoch that the living have divided."""
    positions: dict[int, Any] = {}

    def stops(loader: Any, rank: int, steps: int) -> bool:
        if steps == 9:
            positions[rank] = json.loads(json.dumps(loader.state_dict()))
        return steps == 9

    first = training("all-reduce", 3).run_with_a_death(3, stops=stops)
    second, _ = training("all-reduce", 3).run(after, before=[positions[rank] for rank in sorted(positions)])
    assert times(first, 1).total() < COUNT
    assert times([*first, *second], 1) == Counter(range(COUNT))


def test_records_and_a_replay_have_the_members(tmp_path: Path) -> None:
    tape = Tape(folder=tmp_path, size=3)
    row = Divided(loader=1, epoch=2, members=(0, 2)).as_json()
    _take(tape, 0, json.loads(json.dumps(row)))
    assert tape.divided == {(1, 2): (0, 2)}
