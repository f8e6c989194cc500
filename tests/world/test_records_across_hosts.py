"""What a run on two hosts leaves behind: times on one clock, and all of it in one folder."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from quorate.records.records import records_of, rows
from quorate.report.reading.run import RunRecords, read_run
from tests.support.hosts import Host, are_possible, hosts
from tests.support.programs import Program
from tests.support.seats import on_hosts

pytestmark = pytest.mark.skipif(not are_possible(), reason="needs root on Linux, to make network namespaces")

SCRIPT = """
    import sys, time, types, torch, quorate
    from quorate.launch.worker import recording
    from quorate.wire.real.wall_clock import WallClock
    from quorate.wire.real import clock_exchange
    import os
    clock_exchange.BETWEEN = 1.0
    if os.environ["RANK"] != "0":  # its clocks are off: by 1000 s and 3 s, and the one drifts by 100 ppm
        begun = time.monotonic()
        WallClock.now = lambda self: 1000.0 + time.monotonic() + 1e-4 * (time.monotonic() - begun)
        recording.time = types.SimpleNamespace(time=lambda: time.time() + 3.0)
    world = quorate.join(records=True, timeout=60)
    model = torch.nn.Linear(3, 3)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    until = time.monotonic() + float(sys.argv[1])
    going, done = 1.0, None
    while going:
        time.sleep(0.02 * world.rank)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        quorate.log(true=time.monotonic(), before_was_done=done)
        done = time.monotonic()
        going = world.mean(float(time.monotonic() < until))
        going = float(going == 1.0)
    optimizer.finish()
"""


@pytest.fixture(scope="module")
def two() -> Iterator[list[Host]]:
    with hosts(2) as found:
        yield found


def run(on: Sequence[Host], folder: Path, script: str, *arguments: str, **more: str) -> list[tuple[int, str, str]]:
    """By rank: exit status, stdout, stderr."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    children = []
    try:
        for host, seat in zip(on, on_hosts(on), strict=True):
            environment = {**os.environ, **seat, **more}
            children.append(Program([str(path), *arguments], cwd=folder, env=environment, inside=host.pid))
        said = [child.communicate() for child in children]
        return [(child.wait(), *words) for child, words in zip(children, said, strict=True)]
    finally:
        for child in children:
            child.kill()
            child.wait()


def records(folder: Path) -> RunRecords:
    """Of the one run there."""
    (found,) = (folder / "runs").iterdir()
    return read_run(found)


def test_times_are_right_to_the_uncertainty_that_is_recorded(two: list[Host], tmp_path: Path) -> None:
    for status, _, err in run(two, tmp_path, SCRIPT, "4"):
        assert status == 0, err
    found = records(tmp_path)
    lines = (found.folder / "rank-1.jsonl").read_text().splitlines()
    assert sum('"start"' in line for line in lines) == 1, "hosts with one file system write there once"
    assert found.clock_uncertainty < 1.0, "and the time of day is 3 s wrong"
    checked = 0
    for one in found.ranks:
        own = zip(read_again(found, one.rank), one.logs, one.logs[1:], strict=False)
        for time, log, after in own:  # it was written between two looks at the true clock
            wrong = one.clock.uncertainty(time) + 1e-6
            assert float(log.values["true"]) - wrong <= log.time <= float(after.values["before_was_done"]) + wrong
            checked += 1
    assert checked > 20
    steps = found.steps
    late = [slow.arrive - quick.arrive for quick, slow in zip(steps[0], steps[1], strict=True)]
    assert 0.0 < sorted(late)[len(late) // 2] < 0.5, "rank 1 sleeps for 20 ms"


def read_again(found: RunRecords, rank: int) -> list[float]:
    """The times of its log rows as it wrote them."""
    return [row["time"] for row in rows(records_of(found.folder, rank), ("log",))]


APART = """
    import ctypes, os, signal, sys, time, torch, quorate
    from quorate.launch.worker import recording
    recording.LAST_WORDS = 30.0  # this machine may be busy
    rank, ending = int(os.environ["RANK"]), sys.argv[1]
    os.makedirs("runs", exist_ok=True)
    if rank == int(os.environ["WORLD_SIZE"]) - 1:  # a file system of its own
        libc = ctypes.CDLL(None, use_errno=True)
        here = os.path.abspath("runs").encode()
        assert libc.unshare(0x20000) == 0
        assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
        assert libc.mount(b"none", here, b"tmpfs", 0, None) == 0
    world = quorate.join(records=True, timeout=60)
    model = torch.nn.Linear(3, 3)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, strategy=sys.argv[2])
    victim = {"well": -1, "killed there": 1, "raises there": 1, "raises at home": 0, "the keeper dies": 0}[ending]
    for step in range(40):
        time.sleep(0.1 if ending in ("killed there", "the keeper dies") else 0.02)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        if step == 25 and rank == victim:
            if ending.startswith("raises"):
                raise ValueError("enough")
            from quorate.wire.failure import report_death
            if ending == "the keeper dies":
                report_death(world.wire.board, rank, "was killed")  # as a launcher says it
            os.kill(os.getpid(), signal.SIGKILL)
    optimizer.finish()
"""


@pytest.mark.parametrize(
    ("ending", "least", "is_whole"),
    [
        ("well", 40, True),
        pytest.param("killed there", 5, False, marks=pytest.mark.on_hosts),
        pytest.param("raises there", 26, False, marks=pytest.mark.on_hosts),
        ("raises at home", 24, False),
    ],
)
def test_rows_come_home(two: list[Host], tmp_path: Path, ending: str, least: int, is_whole: bool) -> None:
    """The second host has a file system of its own."""
    ended = run(two, tmp_path, APART, ending, "all-reduce")
    assert (ended[0][0] == 0) == is_whole, ended[0][2]
    found = records(tmp_path)
    assert [one.rank for one in found.ranks] == [0, 1]
    there = found.ranks[1]
    assert len(there.steps) >= least and [step.step for step in there.steps] == list(range(1, len(there.steps) + 1))
    assert there.start["host"] == "second" and (there.end is not None) == is_whole
    assert not list(found.folder.glob(".kept-*")), "marks are taken away"


def test_another_worker_beside_it_keeps_on_where_the_keeper_died(two: list[Host], tmp_path: Path) -> None:
    ended = run([two[0], two[0], two[1]], tmp_path, APART, "the keeper dies", "eager-majority")
    assert [status for status, _, _ in ended] == [-9, 0, 0], ended
    found = records(tmp_path)
    assert [len(one.steps) for one in found.ranks][1:] == [40, 40]
    assert found.ranks[2].end is not None and found.ranks[2].start["host"] == "second"
    lines = (found.folder / "rank-2.jsonl").read_text().splitlines()
    assert sum('"start"' in line for line in lines) == 1
