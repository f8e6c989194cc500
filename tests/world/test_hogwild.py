"""Real processes update the same memory without locks: what each does to rows of its own is as if it were alone."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import quorate
from quorate.launch.worker.world import World
from tests.support.processes import outcomes_real_world, run_real_world
from tests.support.programs import QUORATE, run

ROWS, STEPS = 30, 40


def rows_of(rank: int, step: int) -> Tensor:
    """Those that a worker looks at: none that another one does."""
    draw = torch.Generator().manual_seed(100 * rank + step)
    return rank * ROWS + torch.randint(0, ROWS - 3, (4, 3), generator=draw)


def step_on(model: nn.EmbeddingBag, optimizer: Any, rows: Tensor) -> None:
    optimizer.zero_grad()
    (model(rows) - 1.0).square().mean().backward()
    optimizer.step()


def table(size: int, seed: int) -> nn.EmbeddingBag:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    return nn.EmbeddingBag(ROWS * size, 2, mode="sum", sparse=True)


def disjoint(world: World, dies: int | None = None, steps: int = STEPS) -> tuple[list[float], list[float]]:
    """What all see halfway, and the end."""
    model = table(world.size, world.rank)
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.3), model, "hogwild")
    seen: list[float] = []
    for step in range(steps):
        if step == steps // 2:
            with world.evaluate():
                seen = model.weight.flatten().tolist()
        if dies == world.rank and step == steps - 5:
            world.wire.crash()
        step_on(model, optimizer, rows_of(world.rank, step))
    optimizer.finish()
    return seen, model.weight.flatten().tolist()


def alone(size: int, steps: int, ranks: range) -> list[float]:
    model = table(size, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for rank in ranks:
        for step in range(steps):
            step_on(model, optimizer, rows_of(rank, step))
    return model.weight.flatten().tolist()


def test_rows_of_one_worker_are_as_if_it_were_alone() -> None:
    found = run_real_world(3, disjoint)
    for seen, end in found:
        assert seen == alone(3, STEPS // 2, range(3))
        assert end == alone(3, STEPS, range(3))


def test_the_others_go_on_when_the_maker_of_the_memory_is_killed() -> None:
    killed, *left = outcomes_real_world(3, partial(disjoint, dies=0))
    assert killed.exit_code == -9
    ends = [one.result[1] for one in left if one.result is not None]
    assert len(ends) == 2 and ends[0] == ends[1]
    whole = alone(3, STEPS, range(3))
    assert ends[0][2 * ROWS :] == whole[2 * ROWS :]
    assert ends[0][: 2 * ROWS] != whole[: 2 * ROWS], "its last steps are missing"


def lets_go(world: World) -> tuple[int, int, bool]:
    """Descriptors of memory in common, while it trains and at the end; and whether the parameters are its own then."""
    model = table(world.size, world.rank)
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.3), model, "hogwild")
    step_on(model, optimizer, rows_of(world.rank, 0))
    during = _held()
    optimizer.finish()
    with torch.no_grad():
        model.weight.fill_(float(world.rank))
    world.barrier()
    return during, _held(), bool((model.weight == world.rank).all())


def _held() -> int:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum("quorate-common" in os.readlink(link) for link in links if os.path.islink(link))


def test_nothing_is_in_common_after_the_end() -> None:
    for during, after, is_own in run_real_world(2, lets_go):
        assert during > 0
        assert after == 0
        assert is_own


SCRIPT = """
import quorate, torch
world = quorate.join()
torch.set_num_threads(1)
torch.manual_seed(world.rank)
model = torch.nn.Linear(3, 1)
optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=0.01), model)
data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 180).view(60, 3), torch.ones(60, 1))
for x, y in quorate.loader(data, batch_size=2):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
optimizer.finish()
print(world.gather(float(model.weight.sum())))
"""


def test_a_script_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = run([*QUORATE, "run", "-n", "2", "--strategy", "hogwild", "script.py"], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    first, second = ended.stdout.strip().strip("[]").split(", ")
    assert first == second
