"""However a process was started, `join` finds its place."""

from __future__ import annotations

import functools
import json
import os
import socket
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import quorate
from quorate.core.contracts import Board
from quorate.launch.worker.world import World
from quorate.records.records import records_of, rows
from tests.support.processes import run_real_board, run_real_world
from tests.support.programs import QUORATE, run


def with_a_group_of_ones_own(folder: str, board: Board, rank: int, size: int) -> tuple[bool, float, float]:
    for name in ("QUORATE_BOARD", "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    mine = dist.group.WORLD
    world = quorate.join()
    assert (world.rank, world.size) == (rank, size)
    mean = world.mean(float(rank))
    x = torch.ones(3) * rank
    dist.all_reduce(x)
    world.barrier()
    return dist.group.WORLD is mine, mean, float(x[0])


def test_a_default_group_that_is_there_is_used_and_stays(tmp_path: Path) -> None:
    found = run_real_board(2, functools.partial(with_a_group_of_ones_own, str(tmp_path)))
    assert found == [(True, 0.5, 1.0)] * 2


def with_a_late_rank_0(board: Board, rank: int, size: int) -> bool:
    connect = dist.init_process_group

    def late(*args: Any, **settings: Any) -> None:
        connect(*args, **settings)
        time.sleep(0.3)
        board.set("rank 0 is connected", b"")

    if rank == 0:
        dist.init_process_group = late
    quorate.join()
    return board.get("rank 0 is connected") is not None


def test_nobody_leaves_before_all_are_connected() -> None:
    """A worker whose neighbour leaves at once, with an error, would connect to nobody until its limit."""
    assert run_real_board(3, with_a_late_rank_0) == [True] * 3


def calls_of_a_world(world: World) -> dict[str, object]:
    rank = world.rank
    return {
        "same": quorate.join() is world,
        "first": world.is_first,
        "mean": world.mean(float(rank)),
        "weighted": world.mean(float(rank), weight=float(rank)),
        "tensor": world.mean(torch.tensor([[rank, 2 * rank]])).tolist(),
        "half": str(world.mean(torch.ones(2, dtype=torch.bfloat16)).dtype),
        "gathered": world.gather({"rank": rank, "words": ["a"] * rank}),
        "ragged": [x.tolist() for x in world.gather(torch.arange(rank))],
        "group": dist.is_initialized() and dist.get_world_size() == world.size,
    }


def test_the_calls_of_a_world() -> None:
    size = 3
    for rank, said in enumerate(run_real_world(size, calls_of_a_world)):
        assert said == {
            "same": True,
            "first": rank == 0,
            "mean": 1.0,
            "weighted": pytest.approx(5 / 3),
            "tensor": [[1.0, 2.0]],
            "half": "torch.bfloat16",
            "gathered": [{"rank": r, "words": ["a"] * r} for r in range(size)],
            "ragged": [list(range(r)) for r in range(size)],
            "group": True,
        }


SCRIPT = """
    import torch, quorate
    world = quorate.join()
    model = torch.nn.Linear(3, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(3):
        model(torch.full((2, 3), float(world.rank))).sum().backward()
        optimizer.step()
    print(f"end {world.rank} {world.size} {world.mean(float(world.rank))}\\n", end="")
"""


@pytest.mark.parametrize("how", ["alone", "torchrun", "run", "virtual"])
def test_one_script_runs_unchanged_however_it_is_started(how: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    words = {
        "alone": [str(script)],
        "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2", *meeting, str(script)],
        "run": [*QUORATE, "run", "-n", "2", str(script)],
        "virtual": [*QUORATE, "run", "--virtual", "5", str(script)],
    }[how]
    ended = run(words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    size = {"alone": 1, "torchrun": 2, "run": 2, "virtual": 5}[how]
    assert f"end 0 {size} {(size - 1) / 2}" in ended.stdout
    assert "Traceback" not in ended.stderr
    kept = list((tmp_path / "runs").glob("*/run.json"))
    assert len(kept) == (how != "alone")
    for about in kept:
        assert json.loads(about.read_text())["workers"] == size
        for rank in range(size):
            kinds = [
                row["kind"] for row in rows(records_of(about.parent, rank)) if row["kind"] not in ("memory", "load")
            ]
            assert kinds == ["start", "distribute", "step", "step", "step", "end"]


LEAVES = """
    import sys, quorate, torch
    world = quorate.join()
    model = torch.nn.Linear(3, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(100000):
        if step == 20 and world.rank == 1:
            sys.exit(3)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
"""


def test_a_worker_that_leaves_with_a_status_ends_the_run(tmp_path: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(textwrap.dedent(LEAVES))
    ended = run([*QUORATE, "run", "-n", "3", str(script)], cwd=tmp_path)
    assert ended.returncode == 1
    assert "rank 1" in ended.stderr
    assert "exited with status 3" in ended.stderr
    assert "Traceback" not in ended.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
