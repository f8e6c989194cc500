"""Quorums between replicas of shards: late replicas, stopped ones and dead ones, on real processes."""

from __future__ import annotations

import re
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quorate
from quorate.launch.warm.forks import CAN_FORK
from quorate.report.reading.run import read_run
from quorate.wire import current
from tests.support.processes import run_real_world
from tests.support.programs import quorate as run_quorate
from tests.support.sharded_trainings import Model, batch, whole

SCRIPT = textwrap.dedent(
    """
    import os, signal, subprocess, sys, time
    import torch, quorate
    from torch import nn
    import torch.nn.functional as F

    def end(rank, how):
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stands still":
            subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)

    world = quorate.join()
    who, how, steps = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 33), nn.Sequential(nn.Linear(33, 33), nn.ReLU()), nn.Linear(33, 1))
    model = quorate.parallelize(model, world.mesh(shards=2))
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model,
                                   "eager-solo", max_staleness=4)
    for step in range(steps):
        if (world.rank, step) == (who, 20):
            end(world.rank, how)
        time.sleep(0.02)
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(100 * step + world.rank))
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    with world.evaluate():
        numbers = torch.cat([p.full_tensor().detach().reshape(-1) for p in model.parameters()])
        error = max(world.gather((model(x) - x.sum(1, keepdim=True)).square().mean().item()))
    print("ended", f"{numbers.double().sum().item():.17g}", error < 1, flush=True)
    """
)


def launched(folder: Path, size: int, *words: str, restarts: int = 0) -> tuple[int, str, list[str]]:
    """The status, what was said, and how each worker has ended ("" where it has not)."""
    (folder / "script.py").write_text(SCRIPT)
    options = ("--name", "here", "-n", str(size), "--restart", str(restarts))
    done = run_quorate(folder, "run", *options, "script.py", *words)
    logs = [(folder / "runs" / "here" / f"rank-{rank}.log").read_text() for rank in range(size + restarts)]
    ends = [next((line for line in log.splitlines() if line.startswith("ended")), "") for log in logs]
    return done.returncode, done.stderr, ends


@pytest.mark.parametrize(("size", "who"), [(6, 0), (6, 1), (4, 3)])
def test_replicas_go_on_without_one_that_has_lost_a_worker(size: int, who: int, tmp_path: Path) -> None:
    """Also where it was the one that led."""
    status, said, ends = launched(tmp_path, size, str(who), "dies", "40")
    assert status == 0, said
    mate = who ^ 1
    assert (
        f"rank {who} (replica {who // 2}, shard {who % 2}; host " in said and "was killed by signal 9 (SIGKILL)" in said
    )
    assert f"rank {mate} (replica {who // 2}, shard {mate % 2}; host " in said
    assert f"left, as rank {who} of its replica had died" in said
    live = {one.round.live for one in read_run(tmp_path / "runs" / "here").merged()}
    assert {size - 2, size} <= live <= {*range(2, size + 1, 2)}, "counted by their workers; one may stand still"
    assert re.search(r"of (\d to )?\d workers in each", said)
    assert [rank for rank, end in enumerate(ends) if not end] == sorted([who, mate])
    assert len({end for end in ends if end}) == 1 and ends[who ^ 2].endswith("True")


@pytest.mark.parametrize("who", [0, 3])
def test_a_replica_that_is_begun_anew_joins_with_all_its_pieces(who: int, tmp_path: Path) -> None:
    steps = "100" if CAN_FORK else "400"  # programs that import torch take seconds to join
    status, said, ends = launched(tmp_path, 4, str(who), "dies", steps, restarts=2)
    assert status == 0, said
    assert "rank 4 is started in place of rank" in said and "rank 5 is started in place of rank" in said
    assert [rank for rank, end in enumerate(ends) if not end] == sorted([who, who ^ 1])
    assert len({end for end in ends if end}) == 1 and ends[who ^ 2].endswith("True")


@pytest.mark.parametrize("who", [1, 2])
def test_a_replica_that_stood_still_goes_on_from_a_copy(who: int, tmp_path: Path) -> None:
    status, said, ends = launched(tmp_path, 4, str(who), "stands still", "60")
    assert status == 0, said
    assert len(set(ends)) == 1 and ends[0].endswith("True"), ends
    applied = (tmp_path / "runs" / "here" / f"rank-{who}.jsonl").read_text()
    assert '"is_copy":true' in applied.replace(" ", "")


def late(strategy: str, optimizer: str, steps: int, world: Any) -> torch.Tensor:
    """All parameters at the end; replica 1 is late, under eager-solo until replica 0 has made all its steps."""
    torch.set_num_threads(1)
    model: Any = quorate.parallelize(Model(), world.mesh(replicas=2), zero=3)
    made: Any = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer](model.parameters(), lr=1e-2)
    trained: Any = quorate.distribute(made, model, strategy)
    board = current.here().wire.board
    for step in range(steps):
        if world.rank >= 2:
            time.sleep(0.05)
            while strategy == "eager-solo" and step == 1 and board.get("replica 0 is ready") is None:
                time.sleep(0.01)
        ids, targets = batch(step, range(world.rank, world.rank + 1))
        with trained.accumulate():
            F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()
        F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        trained.step()
        trained.zero_grad()
    if world.rank == 0:
        board.set("replica 0 is ready", b"")
    trained.finish()
    return torch.cat([whole(p).reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize(("strategy", "optimizer"), [("eager-solo", "adamw"), ("eager-majority", "sgd")])
def test_a_late_replica_is_not_waited_for_and_ends_with_the_same(strategy: str, optimizer: str) -> None:
    first, *others = run_real_world(4, partial(late, strategy, optimizer, 6), 120.0)
    assert all(torch.equal(other, first) for other in others)
