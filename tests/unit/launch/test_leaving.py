"""Hangs that are told of, and requests to leave, among real workers: forked ones, and those of `quorate run`."""

from __future__ import annotations

import os
import re
import signal
import textwrap
from pathlib import Path

import pytest

from quorate.launch.local.processes import Conclusion
from quorate.launch.run.overrides import Overrides
from quorate.launch.warm.forks import CAN_FORK
from quorate.launch.warm.request import RunRequest
from quorate.launch.warm.run_server import RunServer
from tests.support.launching import LIMIT, all_shown, is_running, until
from tests.support.programs import QUORATE, Program

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="a process that has imported torch cannot be forked here")

HEAD = """
import os, re, signal, sys, time
from pathlib import Path
import torch
import quorate
HERE = Path(__file__).parent
(HERE / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
"""


def _script(folder: Path, text: str) -> str:
    (folder / "script.py").write_text(HEAD + textwrap.dedent(text))
    return str(folder / "script.py")


def _run(server: RunServer, folder: Path, text: str, size: int) -> tuple[Conclusion, list[str]]:
    (folder / "run").mkdir()
    ended = server.start(RunRequest(script=_script(folder, text), size=size, folder=folder / "run", grace=0.5)).wait(
        LIMIT
    )
    assert ended is not None
    return ended, [(folder / "run" / f"rank-{rank}.log").read_text() for rank in range(size)]


STUCK = {
    "computes": ("time.sleep(600)", "rank 1 computes in {script}:{line} in <module>, while ranks 0 and 2 wait"),
    "locked": (
        "re.match('(a+)+$', 'a' * 29 + 'b')",
        "rank 1 does not answer: it is in a call that keeps Python locked; its stack is in its log",
    ),
    "stopped": (
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "rank 1 does not answer: its process is stopped (as by SIGSTOP)",
    ),
}


@pytest.mark.parametrize("how", STUCK)
def test_a_wait_that_takes_too_long_tells_where_everyone_is(server: RunServer, tmp_path: Path, how: str) -> None:
    action, expected = STUCK[how]
    text = f"""
    world = quorate.join(timeout=1.0)
    world.barrier()
    world.barrier()
    if world.rank == 1:
        {action}
    world.barrier()
    """
    ended, logs = _run(server, tmp_path, text, 3)
    assert ended.status == 1
    assert "raised WireTimeout: rank " in (ended.why or "")
    (report,) = [log for log in logs if "a wait took too long" in log]
    line = (HEAD + textwrap.dedent(text)).splitlines().index(f"    {action}") + 1
    sentence = expected.format(script=tmp_path / "script.py", line=line)
    assert f"quorate: a wait took too long: {sentence}" in report
    for rank in (0, 2):
        assert re.search(rf"  rank {rank} has waited \d+\.", report)
    assert "last collectives: main/world #1 barrier; main/world #2 barrier; main/world #3 barrier" in report
    assert f"{tmp_path / 'script.py'}:{line + 1} in <module>" in report, "where the others are"
    if how == "locked":
        assert f'script.py", line {line} in <module>' in logs[1]


def test_a_second_signal_leaves_at_once(server: RunServer, tmp_path: Path) -> None:
    text = """
    world = quorate.join()
    model = torch.nn.Linear(2, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters()), model)
    (HERE / f"going-{world.rank}").write_text("x")
    time.sleep(600)  # a long step
    """
    (tmp_path / "run").mkdir()
    run = server.start(RunRequest(script=_script(tmp_path, text), size=2, folder=tmp_path / "run"))
    until(lambda: all((tmp_path / f"going-{rank}").exists() for rank in range(2)), "both")
    run.send(signal.SIGINT)
    assert run.wait(0.5) is None, "the step is to end first"
    run.send(signal.SIGINT)
    assert run.wait(LIMIT) == Conclusion(130, "ended by SIGINT; every worker has ended")


LEAVES = """
from quorate.launch.worker import ending
from quorate.observe import stopping
from quorate.wire import current
stopping.INTERRUPT_WITHIN = ending.GRACE = 0.2
world = quorate.join()
model = torch.nn.Linear(2, 1)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
plain = os._exit
def leave(status):
    (HERE / f"left-{world.rank}").write_text("saved" if (HERE / "saved").exists() else "before")
    plain(status)
os._exit = leave
def save():
    time.sleep(1.0)
    (HERE / "saved").write_text("x")
if world.rank == 0:
    current.here().context(stopping.Stop).before.append(save)
while True:
    model(torch.ones(1, 2)).sum().backward()
    (HERE / f"going-{world.rank}").write_text("x")
    time.sleep(SECONDS)  # a long step
    optimizer.step()
"""


@pytest.mark.parametrize("within", [None, 0.2])
def test_a_step_and_a_save_end_unless_a_limit_ends_them(
    server: RunServer, tmp_path: Path, within: float | None
) -> None:
    """Longer than a person's interrupt has, and than workers wait for others at a good end."""
    (tmp_path / "run").mkdir()
    script = _script(tmp_path, LEAVES.replace("SECONDS", "1.0" if within is None else "60"))
    chosen = Overrides(leave_within=within)
    run = server.start(RunRequest(script=script, size=2, folder=tmp_path / "run", grace=0.2, overrides=chosen))
    until(lambda: all((tmp_path / f"going-{rank}").exists() for rank in range(2)), "both")
    run.send(signal.SIGTERM)
    assert run.wait(LIMIT) == Conclusion(75, "ended by SIGTERM; every worker has ended")
    expected = "before" if within else "saved"
    assert [(tmp_path / f"left-{rank}").read_text() for rank in range(2)] == [expected] * 2
    sentence = "asked to leave 0.2 s ago, and the step under way did not end; leaving at once"
    assert (sentence in (tmp_path / "run" / "rank-0.log").read_text()) == (within is not None)


def test_a_save_behind_the_training_ends(server: RunServer, tmp_path: Path) -> None:
    text = """
    world = quorate.join()
    model = torch.nn.Linear(2, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.finish()
    (HERE / f"going-{world.rank}").write_text("x")
    time.sleep(1.0)
    (HERE / f"saved-{world.rank}").write_text("x")
    """
    (tmp_path / "run").mkdir()
    run = server.start(RunRequest(script=_script(tmp_path, text), size=2, folder=tmp_path / "run"))
    until(lambda: all((tmp_path / f"going-{rank}").exists() for rank in range(2)), "both")
    run.send(signal.SIGTERM)
    assert run.wait(LIMIT) == Conclusion(0)
    assert all((tmp_path / f"saved-{rank}").exists() for rank in range(2))


def test_before_a_training_a_worker_leaves_at_once(server: RunServer, tmp_path: Path) -> None:
    text = """
    world = quorate.join()
    (HERE / f"going-{world.rank}").write_text("x")
    time.sleep(600)
    """
    (tmp_path / "run").mkdir()
    run = server.start(RunRequest(script=_script(tmp_path, text), size=2, folder=tmp_path / "run"))
    until(lambda: all((tmp_path / f"going-{rank}").exists() for rank in range(2)), "both")
    run.send(signal.SIGTERM)
    assert run.wait(LIMIT) == Conclusion(75, "ended by SIGTERM; every worker has ended")


TRAINS = """
world = quorate.join()
model = torch.nn.Linear(2, 1)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
step = 0
while True:
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step == 3:
        (HERE / f"going-{world.rank}").write_text("x")
        print("going", flush=True)
    time.sleep(0.005)
"""


def test_what_a_worker_has_forked_ends_with_it(server: RunServer, tmp_path: Path) -> None:
    text = TRAINS.replace("step = 0", "step = 0\nchild = os.fork()\nif not child: time.sleep(600)")
    (tmp_path / "run").mkdir()
    run = server.start(RunRequest(script=_script(tmp_path, text), size=2, folder=tmp_path / "run"))
    until(lambda: all((tmp_path / f"going-{rank}").exists() for rank in range(2)), "both")
    run.send(signal.SIGUSR1)
    assert run.wait(LIMIT) == Conclusion(75, "ended by SIGUSR1; every worker has ended")


def test_a_closed_terminal_ends_a_run_of_the_command_line(tmp_path: Path) -> None:
    script = _script(tmp_path, TRAINS)
    terminal, theirs = os.openpty()
    words = [*QUORATE, "run", "-n", "2", "--name", "r", script]
    running = Program(words, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, has_terminal=True)
    os.close(theirs)
    try:
        until(lambda: all((tmp_path / f"going-{rank}").exists() for rank in range(2)), "both")
    finally:
        os.close(terminal)  # the kernel sends SIGHUP
    assert running.wait(LIMIT) == 130
    for rank in range(2):
        assert not is_running(int((tmp_path / f"pid-{rank}").read_text()))
    assert '"status": 130' in (tmp_path / "runs" / "r" / "outcome.json").read_text()


def test_ctrl_c_at_a_terminal_ends_a_run_of_the_command_line_in_order(tmp_path: Path) -> None:
    script = _script(tmp_path, TRAINS)
    ours, theirs = os.openpty()
    words = [*QUORATE, "run", "-n", "1", "--name", "r", script]
    running = Program(words, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        until(lambda: (tmp_path / "going-0").exists(), "it")
        running.send_signal(signal.SIGINT)
        assert running.wait(LIMIT) == 130
        said = all_shown(ours)
        assert "ended by SIGINT; every worker has ended" in said
        assert "Traceback" not in said
    finally:
        running.kill()
        running.wait()
        os.close(ours)


@pytest.mark.parametrize("strategy", ["all-reduce", "quorum"])
def test_who_is_told_to_make_room_saves_and_goes_on_from_there(
    server: RunServer, tmp_path: Path, strategy: str
) -> None:
    text = f"""
    world = quorate.join()
    model = torch.nn.Linear(2, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, "{strategy}")
    start = quorate.load() or 0
    (HERE / f"start-{{world.rank}}").write_text(str(start))
    for step in range(start, start + 10 if start else 10_000):
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 5:
            (HERE / f"going-{{world.rank}}").write_text("x")
        time.sleep(0.002)
    """
    (tmp_path / "run").mkdir()
    request = RunRequest(script=_script(tmp_path, text), size=2, folder=tmp_path / "run")
    run = server.start(request)
    until(lambda: all((tmp_path / f"going-{rank}").exists() for rank in range(2)), "both")
    run.send(signal.SIGTERM)
    assert run.wait(LIMIT) == Conclusion(75, "ended by SIGTERM; every worker has ended")
    assert server.start(request).wait(LIMIT) == Conclusion(0)
    assert {int((tmp_path / f"start-{rank}").read_text()) >= 6 for rank in range(2)} == {True}
