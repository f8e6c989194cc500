"""Rounds of a model of two megabytes on two hosts of two workers: equal bits, and no host carries it for all."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Host, are_possible, hosts
from tests.support.programs import Program

pytestmark = pytest.mark.skipif(not are_possible(), reason="needs root on Linux, to make network namespaces")

SCRIPT = """
    import hashlib, os, signal, sys, torch, quorate
    from quorate.rounds.progress import RoundTask
    from quorate.wire.failure import report_death
    torch.set_num_threads(1)
    world = quorate.join(timeout=200, records=False)
    victim, steps, width = int(sys.argv[1]), 12, 500_000

    def through_the_cable():
        (line,) = [line for line in open("/proc/net/dev") if "cable" in line]
        numbers = line.split(":")[1].split()
        return int(numbers[0]), int(numbers[8])

    send, left = RoundTask._send, [6]

    def sends(task, to, header, vector):
        send(task, to, header, vector)
        left[0] -= header["kind"] in ("part", "piece")
        if not left[0]:  # a launcher says so
            report_death(world.wire.board, world.rank, "was killed")
            os.kill(os.getpid(), signal.SIGKILL)

    if world.rank == victim:
        RoundTask._send = sends
    model = torch.nn.Linear(width, 1, bias=False)
    optimizer = quorate.distribute(
        torch.optim.SGD(model.parameters(), lr=1e-9), model, "quorum", wait_for=3, on_death="continue"
    )
    before = through_the_cable()
    for step in range(steps):
        model(torch.full((1, width), 1.0 + world.rank + step)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.finish()
    rounds = optimizer.__dict__["_quorate_worker"].rounds.version
    share = max(now - then for now, then in zip(through_the_cable(), before)) / (4 * width * rounds)
    digest = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()
    print("equal", len(set(world.gather(digest))) == 1, "share", share, "rounds", rounds, flush=True)
"""


@pytest.fixture(scope="module")
def two() -> Iterator[list[Host]]:
    with hosts(2) as found:
        yield found


def run(two: list[Host], folder: Path, victim: int, port: int) -> list[tuple[int, str, str]]:
    """By rank: exit status, stdout, stderr."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    children = []
    try:
        for rank in range(4):
            own = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2}
            said = {"MASTER_ADDR": two[0].address, "MASTER_PORT": port, "QUORATE_TOKEN": "a secret that is long", **own}
            environment = {**os.environ, **{name: str(value) for name, value in said.items()}}
            children.append(Program([str(path), str(victim)], cwd=folder, env=environment, inside=two[rank // 2].pid))
        ended = []
        for child in children:
            out, err = child.communicate()
            ended.append((child.returncode, out, err))
        return ended
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.parametrize("victim", [-1, 1, 2], ids=["all live", "one beside the leader dies", "a head dies"])
def test_all_end_with_the_same_bits(two: list[Host], tmp_path: Path, victim: int) -> None:
    for rank, (status, out, err) in enumerate(run(two, tmp_path, victim, 29431 + victim)):
        if rank == victim:
            assert status == -signal.SIGKILL, (status, out, err)
            continue
        assert status == 0, err
        told = out.split()
        assert told[:2] == ["equal", "True"]
        assert float(told[3]) < (1.3 if victim < 0 else 2.5), "of two hosts each sends half of it, twice"
