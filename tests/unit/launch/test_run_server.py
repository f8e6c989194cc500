"""Runs whose workers are forked: what a script finds, does and leaves is as in processes of its own; none is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate.launch.local.processes import Conclusion
from quorate.launch.run.overrides import Overrides
from quorate.launch.warm import forks
from quorate.launch.warm.forks import CAN_FORK
from quorate.launch.warm.request import RunRequest, VirtualRun
from quorate.launch.warm.run_server import RunServer
from tests.support.launching import LIMIT, is_running, until

HEAD = "import atexit, json, os, random, signal, sys, threading, time\nfrom pathlib import Path\n"

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="a process that has imported torch cannot be forked here")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the processes are that fork."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def forking(place: Path) -> Iterator[RunServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("TORCHELASTIC_RUN_ID", "another launcher's")
        server = RunServer()
        (place / "run").mkdir()
        (place / "nothing.py").touch()
        _end(server, RunRequest(script="nothing.py", size=1, folder=place / "run"))  # the server begins with the first
    with server:
        yield server


@pytest.fixture(scope="module")
def starting() -> Iterator[RunServer]:
    with RunServer(is_forking=False) as server:
        yield server


def _write(place: Path, text: str) -> str:
    script = place / "script.py"
    script.write_text(HEAD + textwrap.dedent(text))
    return str(script)


def _request(script: str, folder: Path, size: int = 1, **chosen: object) -> RunRequest:
    folder.mkdir(exist_ok=True)
    for log in folder.glob("rank-*.log"):
        log.unlink()
    return RunRequest(script=script, size=size, folder=folder, **chosen)  # type: ignore[arg-type]


def _end(server: RunServer, request: RunRequest) -> Conclusion:
    ended = server.start(request).wait(LIMIT)
    assert ended is not None, f"the run had not ended after {LIMIT:g} s"
    return ended


FACTS = """
import __main__, inspect, subprocess, warnings
OWN = ('QUORATE_BOARD', 'MASTER_PORT', 'PYTEST_CURRENT_TEST', 'TORCHINDUCTOR_CACHE_DIR')  # torch sets the last
descriptors = {}
for name in os.listdir('/proc/self/fd'):
    if os.path.exists(f'/proc/self/fd/{name}'):
        descriptors[name] = os.readlink(f'/proc/self/fd/{name}')
def a_function(): pass
signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
facts = {
    'argv': sys.argv, 'orig_argv': sys.orig_argv, 'path': sys.path[:2], 'folder': os.getcwd(),
    'main': [__name__, __file__, __package__, __spec__ and __spec__.name, __cached__, __doc__],
    'loader': str(type(__loader__)),
    'is_main': __main__.a_function is a_function, 'source': inspect.getsource(a_function), 'names': sorted(globals()),
    'environment': {k: v for k, v in os.environ.items() if k not in OWN},
    'from C': subprocess.check_output('echo $QUORATE_SEED $RANK', shell=True, text=True),
    'session': [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
    'signals': [str(signal.getsignal(s)) for s in signals],
    'blocked': len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    'descriptors': descriptors, 'stdin': sys.stdin.read(), 'tty': sys.stdout.isatty(),
    'streams': [(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through) for s in
                (sys.stdin, sys.stdout, sys.stderr)],
    'hooks': [sys.exit is sys.__dict__['exit'], threading.excepthook is threading.__excepthook__],
    'threads': len(threading.enumerate()), 'tasks': len(os.listdir('/proc/self/task')),
    'filters': len(warnings.filters) > 0, 'recursion': sys.getrecursionlimit(),
}
Path(sys.argv[1], f"facts-{os.environ['RANK']}").write_text(json.dumps(facts))
"""


@pytest.mark.parametrize("is_module", [False, True])
def test_a_script_finds_itself_in_a_process_of_its_own(
    forking: RunServer,
    starting: RunServer,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_module: bool,
) -> None:
    monkeypatch.chdir(place)
    _write(place, FACTS)
    facts = []
    for server in (starting, forking):
        request = _request(
            "script" if is_module else "script.py",
            tmp_path / "run",
            2,
            arguments=[str(tmp_path), "--x", "a b"],
            is_module=is_module,
            overrides=Overrides(seed=7, settings={"wait_for": "all"}),
        )
        ended = _end(server, request)
        assert ended.status == 1 and "wait_for=all was asked for, and no worker used it" in str(ended.why)
        facts.append([json.loads((tmp_path / f"facts-{rank}").read_text()) for rank in range(2)])
    for started, of_forked in zip(*facts, strict=True):
        assert {name: (fact, of_forked[name]) for name, fact in started.items() if fact != of_forked[name]} == {}
    assert facts[1][1]["from C"] == "7 1\n"


ENDS = {
    "nothing": "",
    "an exception": """
        def f(): raise ValueError('of the script')
        try: f()
        except ValueError as e: raise KeyError(1) from e
        """,
    "a status": "sys.exit(3)",
    "wrong input": "sys.exit(2)",
    "a great status": "sys.exit(256 + 4)",
    "a message": "sys.exit('cannot go on')",
    "what is no python": "x = (",
    "an interrupt": "raise KeyboardInterrupt",
    "a signal": "os.kill(os.getpid(), signal.SIGKILL)",
    "leaving at once": "os._exit(4)",
    "a hook": """
        sys.excepthook = lambda kind, error, trace: print('told of', kind.__name__)
        raise ValueError
        """,
    "an exit function": """
        atexit.register(lambda: print('second', Path))
        atexit.register(print, 'first')
        raise SystemExit(5)
        """,
    "an exit function that leaves": "atexit.register(os._exit, 6)",
    "a thread": "threading.Thread(target=lambda: (time.sleep(0.1), print('a thread was waited for'))).start()",
    "a daemon": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "a file left open": "f = open(Path(__file__).parent / 'kept', 'w'); f.write('x' * 10)",
    "a file left open in a module": """
        import colorsys
        colorsys.f = open(Path(__file__).parent / 'kept', 'w')
        colorsys.f.write('y')
        """,
    "an object with an end": """
        class A:
            def __del__(self): print('the end of A')
        a = A()
        """,
    "a pool": """
        from concurrent.futures import ThreadPoolExecutor
        ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.1), print('pooled')))
        """,
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_a_script_ends_as_in_a_process_of_its_own(
    forking: RunServer, starting: RunServer, tmp_path: Path, text: str
) -> None:
    script, left = _write(tmp_path, "print('begun')\n" + textwrap.dedent(text)), []
    for server in (starting, forking):
        (tmp_path / "kept").unlink(missing_ok=True)
        ended = _end(server, _request(script, tmp_path / "run"))
        kept = (tmp_path / "kept").read_text() if (tmp_path / "kept").exists() else None
        left.append((ended, (tmp_path / "run" / "rank-0.log").read_text(), kept))
    assert left[0] == left[1]
    assert ("left open" in next(name for name, of in ENDS.items() if of == text)) == (left[1][2] is not None)


@pytest.mark.parametrize(("script", "is_module"), [("missing.py", False), ("missing_module", True)])
def test_what_is_not_there_is_told_in_the_same_words(
    forking: RunServer,
    starting: RunServer,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    is_module: bool,
) -> None:
    monkeypatch.chdir(place)
    left = []
    for server in (starting, forking):
        ended = _end(server, _request(script, tmp_path / "run", is_module=is_module))
        left.append((ended, (tmp_path / "run" / "rank-0.log").read_text()))
    assert left[0] == left[1]
    assert left[1][0].status == (1 if is_module else 2)


def test_default_generators_begin_anywhere_as_in_a_fresh_process(forking: RunServer, tmp_path: Path) -> None:
    text = """
    import numpy, torch
    print(json.dumps([random.random(), numpy.random.rand(), torch.rand(1).item()]))
    """
    drawn = []
    for run in ("one", "another"):
        assert _end(forking, _request(_write(tmp_path, text), tmp_path / run, 3)) == Conclusion(0)
        drawn += [json.loads((tmp_path / run / f"rank-{rank}.log").read_text()) for rank in range(3)]
    assert [len(set(of_one)) for of_one in zip(*drawn, strict=True)] == [6, 6, 6]


def test_texts_have_one_hash_on_all_workers(forking: RunServer, starting: RunServer, tmp_path: Path) -> None:
    text = "print(hash('cat'), os.environ['PYTHONHASHSEED'])"
    lines = set()
    for name, server in (("forked", forking), ("started", starting)):
        assert _end(server, _request(_write(tmp_path, text), tmp_path / name, 2)) == Conclusion(0)
        lines |= {(tmp_path / name / f"rank-{rank}.log").read_text() for rank in range(2)}
    assert len(lines) == 1


def _words(place: Path, *names: str) -> list[int]:
    paths = [place / name for name in names]
    until(lambda: all(path.exists() and path.read_text() for path in paths), f"{names} in {place}")
    return [int(path.read_text()) for path in paths]


STAYS = """
HERE = Path(__file__).parent
(HERE / f"parent-{os.environ['RANK']}").write_text(str(os.getppid()))
(HERE / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.parametrize("is_forking", [True, False])
def test_a_killed_rank_is_named_and_ends_the_run(tmp_path: Path, forking: RunServer, is_forking: bool) -> None:
    text = "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n" + STAYS
    folder = tmp_path / "run"
    with RunServer(is_forking=False) as starting:
        ended = _end(forking if is_forking else starting, _request(_write(tmp_path, text), folder, 3, grace=0.2))
    assert ended.status == 1
    assert ended.why is not None
    assert f"was killed by signal 9 (SIGKILL); its log is {folder / 'rank-1.log'}" in ended.why
    assert "After that ranks 0 and 2 were stopped with SIGTERM." in ended.why
    assert not any(is_running(pid) for pid in _words(tmp_path, "pid-0", "pid-2"))


@pytest.mark.parametrize("is_forking", [True, False])
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)])
def test_a_signal_is_passed_on(tmp_path: Path, is_forking: bool, signum: signal.Signals, status: int) -> None:
    with RunServer(is_forking=is_forking, imported=()) as server:
        run = server.start(_request(_write(tmp_path, STAYS), tmp_path / "run", 2))
        pids = _words(tmp_path, "pid-0", "pid-1")
        assert run.wait(0.0) is None
        run.send(signum)
        assert run.wait(LIMIT) == Conclusion(status, f"ended by {signum.name}; every worker has ended")
        assert not any(is_running(pid) for pid in pids)
        log = (tmp_path / "run" / "rank-0.log").read_text()
        assert ("KeyboardInterrupt" in log) == (signum == signal.SIGINT)


def test_a_signal_that_comes_late_reaches_nobody(tmp_path: Path, forking: RunServer) -> None:
    request = _request(_write(tmp_path, "print('well')"), tmp_path / "run")
    run = forking.start(request)
    assert run.wait(LIMIT) == Conclusion(0)
    run.send(signal.SIGKILL)
    assert _end(forking, request) == Conclusion(0)


def _children_of(pid: int) -> list[int]:
    lines = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(word) for word in lines.split()]


_CLIENT = """
import sys
from pathlib import Path
from quorate.launch.warm.run_server import RunServer
from quorate.launch.warm.request import RunRequest
with RunServer(is_forking=sys.argv[3] == 'True', imported=()) as server:
    server.start(RunRequest(script=sys.argv[1], size=2, folder=Path(sys.argv[2]))).wait()
"""


@pytest.mark.parametrize(("is_forking", "killed"), [(True, "client"), (True, "zygote"), (False, "client")])
def test_nobody_outlives_the_client_or_the_zygote(tmp_path: Path, is_forking: bool, killed: str) -> None:
    script = _write(tmp_path, STAYS)
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", _CLIENT, script, str(tmp_path / "run"), str(is_forking)]
    client = subprocess.Popen(command)
    try:
        ranks = _words(tmp_path, "pid-0", "pid-1")
        (parent,) = _words(tmp_path, "parent-0")
        assert (parent != client.pid) == is_forking
        waited_for = [*_children_of(client.pid), *ranks] if killed == "client" else [parent, *ranks]
        os.kill(client.pid if killed == "client" else parent, signal.SIGKILL)
        until(lambda: not any(is_running(pid) for pid in waited_for), "their end")
    finally:
        client.kill()
        client.wait()


def test_a_server_that_dies_fails_its_run_and_is_replaced(tmp_path: Path) -> None:
    with RunServer(imported=()) as server:
        run = server.start(_request(_write(tmp_path, STAYS), tmp_path / "run"))
        rank, zygote = *_words(tmp_path, "pid-0"), *_words(tmp_path, "parent-0")
        os.kill(zygote, signal.SIGKILL)
        ended = run.wait(LIMIT)
        assert ended == Conclusion(1, "the process that starts the workers was killed by signal 9 (SIGKILL)")
        until(lambda: not is_running(rank), "its end")
        assert _end(server, _request(_write(tmp_path, ""), tmp_path / "run")) == Conclusion(0)
        assert server.why_not_forking is None


def test_where_no_server_starts_workers_are_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "ZYGOTE", "quorate.no_zygote")
    with RunServer() as server:
        script = _write(tmp_path, "print(sys.orig_argv[1], open('/proc/self/cmdline').read().count('script.py'))")
        assert _end(server, _request(script, tmp_path / "run")) == Conclusion(0)
        assert (tmp_path / "run" / "rank-0.log").read_text() == f"{script} 1\n"
        assert server.why_not_forking is not None
        assert "exited with status 1, saying: " in server.why_not_forking
        assert "No module named quorate.no_zygote" in server.why_not_forking
        monkeypatch.undo()
        assert _end(server, _request(script, tmp_path / "again")) == Conclusion(0)
        assert (tmp_path / "again" / "rank-0.log").read_text() == f"{script} 1\n", "it is not tried again"


@pytest.mark.parametrize("is_forking", [True, False])
def test_leaving_the_context_ends_the_run(tmp_path: Path, is_forking: bool) -> None:
    with RunServer(is_forking=is_forking, imported=()) as server:
        server.start(_request(_write(tmp_path, STAYS), tmp_path / "run"))
        (rank,) = _words(tmp_path, "pid-0")
    until(lambda: not is_running(rank), "its end")


VIRTUAL = """
import quorate
world = quorate.join()
print(world.rank, world.size, os.environ.get("QUORATE_SEED"), os.environ.get("QUORATE_IMBALANCE"), sys.argv[1:])
f = open(Path(__file__).parent / "kept", "a")
f.write(".")
if sys.argv[1:] == ["fails"] and world.rank == 1:
    raise ValueError("of the script")
world.barrier()
"""


@pytest.mark.parametrize("is_forking", [True, False])
def test_virtual_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forking: RunServer, is_forking: bool) -> None:
    monkeypatch.setenv("QUORATE_IMBALANCE", "one-of:1ms")
    script, folder = _write(tmp_path, VIRTUAL), tmp_path / "run"
    virtual = VirtualRun(seed=3, compute="constant:5ms", latency=1e-3)
    with RunServer(is_forking=False) as starting:
        server = forking if is_forking else starting
        request = _request(script, folder, 3, virtual=virtual, overrides=Overrides(seed=3), arguments=["a"])
        assert _end(server, request) == Conclusion(0)
        assert (folder / "rank-2.log").read_text() == "2 3 3 None ['a']\n"
        assert (tmp_path / "kept").read_text() == "..."
        if not is_forking:  # it imports torch, and is started in the same way
            return
        failed = _end(server, _request(script, folder, 3, virtual=virtual, arguments=["fails"]))
    assert failed.status == 1
    assert failed.why == f"rank 1 raised ValueError: of the script; its log is {folder / 'rank-1.log'}"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_virtual_run_is_interrupted(tmp_path: Path, forking: RunServer, signum: signal.Signals) -> None:
    text = """
    import quorate
    world = quorate.join()
    while True:
        world.barrier()
        (Path(__file__).parent / "pid.new").write_text(str(os.getpid()))
        (Path(__file__).parent / "pid.new").replace(Path(__file__).parent / "pid")
    """
    run = forking.start(_request(_write(tmp_path, text), tmp_path / "run", 2, virtual=VirtualRun()))
    pid = _words(tmp_path, "pid")[0]
    run.send(signum)
    status = 75 if signum == signal.SIGTERM else 130
    assert run.wait(LIMIT) == Conclusion(status, f"ended by {signum.name}; every worker has ended")
    assert not is_running(pid)


TRAINING = """
import torch, quorate
world = quorate.join()
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
optimizer = quorate.distribute(torch.optim.AdamW(model.parameters()), model)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 2))
for x, y in quorate.loader(data, 4, num_workers=int(sys.argv[1])):
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
print(world.rank, json.dumps(list(map(float, torch.cat([p.flatten() for p in model.parameters()])))))
"""


def test_training_gives_the_same_numbers_and_records(tmp_path: Path, forking: RunServer, starting: RunServer) -> None:
    script, left = _write(tmp_path, TRAINING), []
    for server, name in ((starting, "started"), (forking, "forked")):
        request = _request(script, tmp_path / name, 2, arguments=["1" if server is forking else "0"])
        assert _end(server, request) == Conclusion(0)
        logs = [(tmp_path / name / f"rank-{rank}.log").read_text() for rank in range(2)]
        rows = [json.loads(line) for line in (tmp_path / name / "rank-1.jsonl").read_text().splitlines()]
        steps = [(row["step"], row["loss"], row["examples"], row["bytes_out"]) for row in rows if row["kind"] == "step"]
        names = sorted(path.name.partition(".")[0] for path in (tmp_path / name).iterdir())
        left.append((logs, steps, names))
    assert left[0] == left[1]
    assert len(left[0][1]) == 4
