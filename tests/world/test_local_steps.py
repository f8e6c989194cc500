"""Local steps among real workers: the numbers of the virtual world, unequal workers, evaluations."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.launch.run.overrides import Overrides
from quorate.launch.warm.forks import CAN_FORK
from quorate.launch.warm.request import RunRequest
from quorate.launch.warm.run_server import RunServer
from quorate.records.records import records_of, rows
from tests.support.scene import Scene, Trainer, apart, squares

SIZE = 3
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("local-sgd", {"sync_every": 3, "momentum": "average"}),
    ("slowmo", {"sync_every": 2, "slow_every": 2}),
    ("diloco", {"sync_every": 6, "fragments": 2, "overlap": 2}),
    ("decoupled-diloco", {"sync_every": 4, "fragments": 2, "overlap": 0, "wait_for": "all", "grace": 5.0}),
    ("decoupled-diloco", {"sync_every": 4, "overlap": 0, "wait_for": "all", "grace": 5.0, "learners": 2}),
    ("hierarchical-local-sgd", {"sync_every": 1, "across_every": 3, "group_size": 2}),
    ("adaptive-local-sgd", {"sync_every": 2}),
    ("eager-averaging", {"sync_every": 2, "wait_for": "all", "grace": 5.0}),  # a loaded machine is no pause
]


def late(pause: float, rank: int, step: int) -> float:
    return pause * rank


def scene(strategy: str, settings: dict[str, Any], *, pause: float = 0.0, uneven: int = 0) -> Scene:
    fields: dict[str, Any] = {"model": (6, 8, 2), "heavy": 0.9, "loss": apart, "rests": (10,)}
    fields["steps"] = [16 + uneven * rank for rank in range(SIZE)]
    return Scene(strategy, SIZE, pause=functools.partial(late, pause), settings=settings, **fields)


@pytest.mark.parametrize(("strategy", "settings"), VARIANTS)
def test_real_workers_come_to_the_numbers_of_virtual_ones(strategy: str, settings: dict[str, Any]) -> None:
    trained = scene(strategy, settings)
    torch.testing.assert_close(trained.end(real=True), trained.ends()[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("local-sgd", {"sync_every": "50ms"}),
        ("eager-averaging", {"sync_every": 2, "wait_for": 1}),
        ("diloco", {"sync_every": 4, "fragments": 2, "overlap": 1}),
        ("decoupled-diloco", {"sync_every": 4, "fragments": 2, "overlap": 1, "wait_for": 1}),
        ("async-local-sgd", {"sync_every": 3}),
        ("async-local-sgd", {"sync_every": 3, "learners": 2}),
        ("fed-buff", {"sync_every": 3, "late": "turn"}),
        ("hierarchical-local-sgd", {"sync_every": "20ms", "across_every": 3}),
    ],
)
def test_unequal_workers_end_equal(strategy: str, settings: dict[str, Any]) -> None:
    assert scene(strategy, settings, pause=0.01, uneven=4).end(real=True).isfinite().all()


def wait_before(trainer: Trainer) -> None:
    """Rank 2 computes its first gradient until the others have made five steps; the sixth is a mean of all."""
    if trainer.rank == 2 and trainer.step == 0:
        trainer.wire.board.wait(["five steps of 0", "five steps of 1"], timeout=240.0)
    if trainer.rank != 2 and trainer.step == 5:
        trainer.wire.board.set(f"five steps of {trainer.rank}", b"")


def test_in_a_group_nobody_waits_for_one_that_computes() -> None:
    fields: dict[str, Any] = {"model": (300, 300), "loss": squares, "before": wait_before}
    Scene("group-averaging", SIZE, rate=0.01, sync_every=6, group_size=4, **fields).end(real=True)


KILLED = """
import hashlib, os, signal, sys
from pathlib import Path
import torch, quorate

torch.set_num_threads(1)
world = quorate.join()
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
for step in range(14):
    (model(torch.randn(4, 6)) - world.rank).square().mean().backward()
    if (world.rank, step) == (1, 7):
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    optimizer.zero_grad()
with world.evaluate():
    ranks = world.gather(world.rank)
optimizer.finish()
bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
Path(sys.argv[1], f"end-{world.rank}").write_text(f"{ranks} {hashlib.sha256(bits).hexdigest()}")
"""


@pytest.mark.skipif(not CAN_FORK, reason="a process that has imported torch cannot be forked here")
@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("eager-averaging", {"sync_every": 3, "wait_for": "all"}),
        ("decoupled-diloco", {"sync_every": 4, "fragments": 2, "overlap": 1}),
        ("decoupled-diloco", {"sync_every": 4, "learners": 2}),
        ("group-averaging", {"sync_every": 3, "group_size": 2}),
        ("hierarchical-local-sgd", {"sync_every": 1, "across_every": 3}),
    ],
)
def test_the_others_go_on_when_one_is_killed(
    strategy: str, settings: dict[str, Any], tmp_path: Path, server: RunServer
) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(KILLED)
    folder.mkdir()
    overrides = Overrides(strategy=strategy, settings=settings)
    request = RunRequest(script=str(script), size=SIZE, folder=folder, arguments=[str(tmp_path)], overrides=overrides)
    ended = server.start(request).wait(30.0)
    assert ended is not None and ended.status == 0, ended
    ends = [path.read_text() for path in sorted(tmp_path.glob("end-*"))]
    assert len(ends) == 2 and ends[0] == ends[1] and ends[0].startswith("[0, 2] ")
    gone = [row for rank in (0, 2) for row in rows(records_of(folder, rank)) if row["kind"] == "gone"]
    assert [(row["rank"], row["left"]) for row in gone] == [(1, 2)]
