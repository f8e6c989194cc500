"""Live bytes of real workers beside the formula, and what their records say of them."""

from __future__ import annotations

import gc
import json
import sys
from functools import partial
from operator import sub
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.observe.memory_use import InUse, in_use
from quorate.records.records import records_of, rows
from quorate.sharding.memory import Mode, Model, Size, held
from tests.support.processes import run_real_world
from tests.support.programs import quorate as quorate_command

WIDTH, BLOCKS, WORKERS = 256, 16, 2
"""8.4 million numbers; messages, of which the newest stay in shared memory, are a small part of it."""
KNOWS = sys.platform.startswith("linux") and in_use().live is not None


class Block(nn.Module):
    """0.5 million numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.relu(self.up(x)))
        return y


def model_of(blocks: int) -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(blocks)), nn.Linear(WIDTH, 16))


def now() -> InUse:
    gc.collect()
    return in_use()


def train(world: Any, model: nn.Module, zero: Mode) -> tuple[object, list[InUse]]:
    """What is in use at the end of the last forward pass, and of its step."""
    quorate.parallelize(model, world.mesh(shards=world.size), zero=zero)
    optimizer: Any = quorate.distribute(torch.optim.AdamW(model.parameters()), model)
    seen: list[InUse] = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, WIDTH)).square().mean()
        seen = [now()]
        loss.backward()
        optimizer.step()
        seen.append(now())
    return (model, optimizer), seen


def task(zero: Mode, world: Any) -> list[tuple[int, int, int]]:
    """Bytes more than before: allocated ones, and shared memory; and shared memory more than at the start.

    Of the first training some messages may still lie there before the second, which takes their memory: so what is more
    than before may be less than the second takes.
    """
    torch.set_num_threads(1)
    start = now()
    kept = train(world, model_of(1), zero)  # what torch loads and keeps with the first training is no model's
    before = now()
    model = model_of(BLOCKS)
    other, seen = train(world, model, zero)
    del kept, other
    return [
        (sub(one.allocated, before.allocated), sub(one.shared, before.shared), sub(one.shared, start.shared))
        for one in seen
    ]


def foreseen() -> Model:
    return Model(
        sizes=[
            Size(
                numbers=p.numel(), rows=p.shape[0], bytes=4 * p.numel(), gathered_bytes=4 * p.numel(),
                kept_like=8 * p.numel(), block="" if name.startswith(f"{BLOCKS}.") else name.partition(".")[0],
            )
            for name, p in model_of(BLOCKS).named_parameters()
        ]
    )  # fmt: skip


@pytest.mark.skipif(not KNOWS, reason="live bytes are those of glibc")
@pytest.mark.parametrize("zero", [2, 3])
def test_live_bytes_are_those_of_the_formula(zero: Mode) -> None:
    """After a step gradients are there, until `zero_grad`; and the newest messages, which are pieces of blocks, and lie
    in shared memory: one more of these, until the other worker has read it."""
    piece = 4 * sum(p.numel() for p in Block().parameters()) // WORKERS
    wanted = held(foreseen(), zero, WORKERS)
    for (forward, *_), (allocated, more, shared) in run_real_world(WORKERS, partial(task, zero), 120.0):
        assert 1.0 <= allocated / wanted.between_steps < 1.05
        assert max(shared, more) < wanted.exchanged + piece
        whole = forward - allocated
        assert whole < 1.25 * wanted.gathered
        assert (whole > wanted.between_steps / 4) == (zero == 2), "ZeRO 2 keeps all of it until the backward pass"


RECORDED = """
import torch, quorate
world = quorate.join()
model = quorate.parallelize(torch.nn.Linear(200, 101), world.mesh(shards=2), zero=2)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
for _ in range(2):
    model(torch.ones(3, 200)).sum().backward()
    optimizer.step()
"""


def test_records_say_what_was_foreseen_and_what_it_was(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECORDED)
    ended = quorate_command(tmp_path, "run", "-n", "2", "--name", "one", "train.py")
    assert ended.returncode == 0, ended.stderr
    for rank, rows_of_it in enumerate((51, 50)):
        found = list(rows(records_of(tmp_path / "runs" / "one", rank)))
        told = next(row for row in found if row["kind"] == "distribute")
        own = 4 * rows_of_it * 201
        assert (told["zero"], told["shards"]) == (2, 2), json.dumps(told)
        assert told["foreseen"] == {"parameters": own, "gradients": own, "optimizer": own}
        said = [row for row in found if row["kind"] == "memory"]
        assert said[0]["step"] == 0
        assert said[0]["resident"] > 0 if sys.platform.startswith("linux") else "resident" not in said[0]
