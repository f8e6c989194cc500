"""The effect of the end of a worker's script on others, among real workers: an error, a death, or none."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from quorate.launch.local.children import Command
from quorate.launch.local.processes import Conclusion
from quorate.launch.warm.forks import CAN_FORK
from quorate.launch.warm.request import RunRequest
from quorate.launch.warm.run_server import RunServer
from tests.support.launching import until

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="a process that has imported torch cannot be forked here")

SCRIPT = """
import os, signal, sys, time
import torch
import quorate

strategy, settings, how = {strategy!r}, {settings!r}, {how!r}
world = quorate.join(timeout=200.0)
model = torch.nn.Linear(3, 2)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, strategy, **settings)
for step in range(30):
    if step == 9 and world.rank == 1:
        exec(how)
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.002)
optimizer.finish()
print("finished")
"""


def _run(server: RunServer, folder: Path, strategy: str, how: str, **settings: str) -> tuple[Conclusion, list[str]]:
    (folder / "run").mkdir()
    (folder / "script.py").write_text(SCRIPT.format(strategy=strategy, settings=settings, how=how))
    request = RunRequest(script=str(folder / "script.py"), size=3, folder=folder / "run")
    ended = server.start(request).wait(60.0)
    assert ended is not None
    return ended, [(folder / "run" / f"rank-{rank}.log").read_text() for rank in range(3)]


ERRORS = {
    "raise ValueError('bad sample')": "raised ValueError: bad sample",
    "sys.exit(5)": "exited with status 5",
    "sys.exit('no data')": "exited with status 1",
    "raise SystemExit(5)": "exited with status 5",
}


@pytest.mark.parametrize(("strategy", "how"), [*(("quorum", how) for how in ERRORS), ("d-psgd", next(iter(ERRORS)))])
def test_an_error_in_the_script_ends_the_run(server: RunServer, tmp_path: Path, strategy: str, how: str) -> None:
    ended, logs = _run(server, tmp_path, strategy, how)
    assert ended.status == 1
    assert ended.why is not None
    assert ended.why.startswith("rank 1 (host ")
    assert ERRORS[how] in ended.why.partition("\n")[0]
    for rank in (0, 2):
        assert "finished" not in logs[rank]
        assert ERRORS[how] in logs[rank]


@pytest.mark.parametrize(
    "text", ["raise SystemExit(main())", "from sys import exit\nexit(3)", "import sys\nsys.exit(3)"]
)
def test_a_program_whose_end_it_does_not_notice_itself_is_watched(tmp_path: Path, text: str) -> None:
    (tmp_path / "script.py").write_text(text)
    assert ("quorate.run" in Command(script=str(tmp_path / "script.py")).words) == ("sys.exit(" not in text)


@pytest.mark.parametrize("how", ["raise ValueError('bad sample')", "sys.exit(5)"])
def test_who_is_to_go_on_does_and_the_run_has_failed(server: RunServer, tmp_path: Path, how: str) -> None:
    ended, logs = _run(server, tmp_path, "eager-majority", how, on_error="continue")
    assert [log.rstrip().endswith("finished") for log in logs] == [True, False, True]
    assert ended.status == 1
    assert ended.why is not None
    assert ended.why.endswith(f'the others went on (on_error="continue"); its log is {tmp_path / "run" / "rank-1.log"}')


@pytest.mark.parametrize("how", ["os._exit(0)", "os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_process_that_is_gone_in_the_middle_is_a_death(server: RunServer, tmp_path: Path, how: str) -> None:
    ended, logs = _run(server, tmp_path, "eager-majority", how)
    assert ended == Conclusion(0)
    assert [log.rstrip().endswith("finished") for log in logs] == [True, False, True]


def test_an_error_behind_the_training_is_one(server: RunServer, tmp_path: Path) -> None:
    ended, _ = _run(server, tmp_path, "quorum", "ends = __import__('atexit').register(os._exit, 5)")
    assert ended.status == 1


@pytest.mark.parametrize("how", ["sys.exit(5)", "raise ValueError('of the child')"])
@pytest.mark.parametrize("strategy", ["all-reduce", "eager-solo"])
def test_the_end_of_a_forked_child_is_its_own(server: RunServer, tmp_path: Path, strategy: str, how: str) -> None:
    forks = f"child = os.fork()\nif not child: {how}\nos.waitpid(child, 0)"
    ended, logs = _run(server, tmp_path, strategy, forks)
    assert ended == Conclusion(0), logs
    assert all("finished" in log for log in logs)


JOINS = """
import os, signal, sys
from pathlib import Path
import torch.distributed

if os.environ["RANK"] == "1":
    {where}
import quorate
(Path(__file__).parent / f"joins-{{os.environ['RANK']}}").write_text(str(os.getpid()))
quorate.join(timeout=200.0)
"""
IS_KILLED = "os.kill(os.getpid(), signal.SIGKILL)"

BREAKS = f"""pass
def breaks(*arguments, **named):
    if os.environ["RANK"] == "1":
        {IS_KILLED}
    raise RuntimeError("Connection reset by peer")
torch.distributed.init_process_group = breaks
"""
"""An error that torch may raise on the others when one dies while all connect."""


@pytest.mark.parametrize(
    "where", [IS_KILLED, f"torch.distributed.init_process_group = lambda *a, **k: {IS_KILLED}", BREAKS]
)
def test_a_death_before_all_have_joined_is_a_sentence(server: RunServer, tmp_path: Path, where: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "script.py").write_text(JOINS.format(where=where))
    ended = server.start(RunRequest(script=str(tmp_path / "script.py"), size=3, folder=tmp_path / "run")).wait(60.0)
    assert ended is not None
    assert ended.status == 1
    for rank in (0, 2):
        log = (tmp_path / "run" / f"rank-{rank}.log").read_text()
        assert log.startswith("quorate: rank 1 (host ") and log.count("\n") == 1, log
        assert "was killed by signal 9 (SIGKILL)" in log


def test_an_interrupt_before_all_have_joined_is_a_sentence(server: RunServer, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "script.py").write_text(JOINS.format(where="import time; time.sleep(600)"))
    run = server.start(RunRequest(script=str(tmp_path / "script.py"), size=2, folder=tmp_path / "run"))
    until(lambda: (tmp_path / "joins-0").exists(), "rank 0")
    run.send(signal.SIGINT)
    ended = run.wait(60.0)
    assert ended is not None
    assert ended.status == 130
    assert (tmp_path / "run" / "rank-0.log").read_text() in ("quorate: interrupted\n", "")


def test_a_second_default_process_group_is_refused_in_one_sentence(server: RunServer, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    text = "import quorate, torch.distributed\nquorate.join()\ntorch.distributed.init_process_group('gloo')\n"
    (tmp_path / "script.py").write_text(text)
    ended = server.start(RunRequest(script=str(tmp_path / "script.py"), size=2, folder=tmp_path / "run")).wait(60.0)
    assert ended is not None
    assert ended.status == 2
    lines = (tmp_path / "run" / "rank-0.log").read_text().splitlines()
    (sentence,) = [line for line in lines if "ProcessGroupGloo.cpp" not in line]  # torch's, where rank 1 is gone sooner
    assert sentence.startswith("quorate: quorate.join() has started torch's default process group already; leave out")
    assert sentence.endswith("script.py, line 3)")


CALLBACK = """
import quorate
from quorate.core.errors import ConfigurationError
from quorate.core.script_errors import CallbackErrors
from quorate.wire import current

quorate.join(timeout=200.0)
error = ConfigurationError("so not")
current.here().context(CallbackErrors).note(error)
raise RuntimeError(f"UNKNOWN: {error}\\nTraceback (most recent call last):\\nDetected at node compute")
"""


def test_an_error_in_a_callback_of_a_library_is_one_sentence(server: RunServer, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "script.py").write_text(CALLBACK)
    ended = server.start(RunRequest(script=str(tmp_path / "script.py"), size=2, folder=tmp_path / "run")).wait(60.0)
    assert ended is not None
    assert ended.status == 2
    log = (tmp_path / "run" / "rank-0.log").read_text()
    assert log.startswith("quorate: so not (") and log.endswith("script.py, line 10)\n") and log.count("\n") == 1, log
