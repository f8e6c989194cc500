"""Starting and ending workers, with scripts that import nothing heavy: what they get, and that none is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quorate.core.errors import PeerFailed
from quorate.launch.local.chaos import Chaos
from quorate.launch.local.children import Command
from quorate.launch.local.live_goodput import LiveGoodput
from quorate.launch.local.process_group import Crew
from quorate.launch.local.processes import environment, run_shown
from quorate.launch.local.verdict import Ending, log_of, status_in_words
from quorate.launch.run.overrides import Overrides
from quorate.wire.board import MemoryBoard, SocketBoard
from quorate.wire.failure import FAILED, ended, read_failure
from tests.support.launching import LIMIT, Launch, all_shown, is_running, until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Writes a script; `WORDS` in it is the folder in which it leaves word for the test."""

    def write(text: str) -> str:
        path = tmp_path / "script.py"
        head = "import json, os, signal, subprocess, sys, time\nfrom pathlib import Path\n"
        head += f"WORDS, RANK = Path({str(tmp_path)!r}), os.environ['RANK']\n"
        path.write_text(head + textwrap.dedent(text))
        return str(path)

    return write


@pytest.fixture
def launch(tmp_path: Path, folder: Path) -> Iterator[Callable[..., Launch]]:
    """Starts `run_shown` in a process of its own, so that the test can send it signals."""
    launches: list[Launch] = []

    def start(script: str, size: int, grace: float = 10.0) -> Launch:
        launches.append(Launch(script, size, folder, grace))
        return launches[-1]

    yield start
    for launch in launches:
        launch.end()


def _words(tmp_path: Path, *names: str) -> list[str]:
    """Return the contents of the files `names` of the script's workers, once all exist."""
    paths = [tmp_path / name for name in names]
    until(lambda: all(path.exists() and path.read_text() for path in paths), f"{names} in {tmp_path}")
    return [path.read_text() for path in paths]


def test_each_worker_finds_its_place_in_the_environment(
    script: Callable[[str], str], tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another launcher's")
    monkeypatch.setenv("QUORATE_STRATEGY", "another run's")
    monkeypatch.delenv("OMP_NUM_THREADS")
    text = "(WORDS / f'env-{RANK}').write_text(json.dumps([dict(os.environ), sys.argv[1:]]))"
    command = Command(
        script=script(text), arguments=["-n", "--help", "--", "a b"], overrides=Overrides(settings={"wait_for": "all"})
    )
    assert run_shown(command, 2, folder).status == 1  # the script has no use for the setting
    for rank, written in enumerate(_words(tmp_path, "env-0", "env-1")):
        variables, arguments = json.loads(written)
        assert arguments == ["-n", "--help", "--", "a b"]
        expected = {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "QUORATE_RUN": str(folder),
            "QUORATE_SETTINGS": '{"wait_for": "all"}',
        }  # fmt: skip
        assert {name: variables.get(name) for name in expected} == expected
        assert variables["QUORATE_BOARD"].startswith("unix:")
        assert int(variables["MASTER_PORT"]) > 0
        assert not {"TORCHELASTIC_RUN_ID", "QUORATE_STRATEGY"} & variables.keys()


def test_the_goodput_of_the_run_is_looked_at(
    script: Callable[[str], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[Path, int, list[int]]] = []
    monkeypatch.setattr(
        LiveGoodput, "look", lambda self, failures, alive: looked.append((self._folder, failures, alive))
    )
    assert run_shown(Command(script=script("import time; time.sleep(1)")), 2, folder).status == 0
    assert looked[0] == (folder, 0, [0, 1])


def test_a_strategy_is_told_to_the_workers(folder: Path) -> None:
    command = Command(script="s", overrides=Overrides(strategy="gossip"))
    assert environment(1, "b", folder, command)["QUORATE_STRATEGY"] == "gossip"


def test_threads_the_user_has_chosen_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert environment(1, "b", folder, Command(script="s"))["OMP_NUM_THREADS"] == "7"


def test_of_our_own_variables_workers_have_what_is_meant_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUORATE_GPU_BACKEND", "host")
    monkeypatch.setenv("QUORATE_BOARD", "another launcher's")
    variables = environment(1, "b", tmp_path, Command(script="s"))
    assert variables["QUORATE_GPU_BACKEND"] == "host" and variables["QUORATE_BOARD"] == "unix:b"


def test_the_board_and_its_folder_are_gone_afterwards(
    script: Callable[[str], str], tmp_path: Path, folder: Path
) -> None:
    text = "(WORDS / 'board').write_text(os.environ['QUORATE_BOARD'].removeprefix('unix:'))"
    assert run_shown(Command(script=script(text)), 1, folder).status == 0
    board = Path(_words(tmp_path, "board")[0])
    assert not board.parent.exists()


def test_every_ranks_output_is_kept_and_rank_0s_is_shown(script: Callable[[str], str], folder: Path) -> None:
    text = r"""
    os.write(1, b'out \xff\r50%\r' + RANK.encode() + b'\n')
    os.write(2, b'err ' + RANK.encode() + b'\n')
    """
    finished = subprocess.run(
        Launch.words(script(text), 3, folder, 10.0), capture_output=True, timeout=LIMIT, check=True
    )
    assert finished.stdout == b"out \xff\r50%\r0\n"
    assert finished.stderr == b"err 0\n"
    for rank in range(3):
        kept = (folder / f"rank-{rank}.log").read_bytes()
        assert sorted(kept.split(b"\n")) == [b"", b"err %d" % rank, b"out \xff\r50%%\r%d" % rank]


def test_rank_0_has_a_terminal_where_we_have_one(script: Callable[[str], str], folder: Path) -> None:
    text = """
    print(sys.stdout.isatty(), sys.stderr.isatty(), RANK == '0' and os.get_terminal_size(1).columns)
    """
    ours, theirs = os.openpty()
    subprocess.run(["stty", "cols", "97"], stdin=theirs, check=True)
    launcher = subprocess.Popen(Launch.words(script(text), 2, folder, 10.0), stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        assert launcher.wait(LIMIT) == 0
        assert all_shown(ours) == "True True 97\r\n"
    finally:
        launcher.kill()
        launcher.wait()
        os.close(ours)
    assert (folder / "rank-0.log").read_bytes() == b"True True 97\n"
    assert (folder / "rank-1.log").read_bytes() == b"False False False\n"


def test_rank_0s_terminal_follows_the_size_of_ours(script: Callable[[str], str], tmp_path: Path, folder: Path) -> None:
    text = """
    (WORDS / 'begun').write_text('x')
    while os.get_terminal_size(1).columns != 123:
        time.sleep(0.01)
    """
    ours, theirs = os.openpty()
    subprocess.run(["stty", "cols", "97"], stdin=theirs, check=True)
    launcher = subprocess.Popen(Launch.words(script(text), 1, folder, 10.0), stdout=theirs, stderr=theirs)
    try:
        _words(tmp_path, "begun")
        subprocess.run(["stty", "cols", "123"], stdin=theirs, check=True)
        launcher.send_signal(signal.SIGWINCH)  # which the kernel sends where it is the controlling terminal
        assert launcher.wait(LIMIT) == 0
    finally:
        launcher.kill()
        launcher.wait()
        os.close(ours)
        os.close(theirs)


def test_a_reader_that_goes_away_stops_the_showing_only(script: Callable[[str], str], folder: Path) -> None:
    text = """
    for i in range(20000):
        print('line', i)
    """
    launcher = subprocess.Popen(Launch.words(script(text), 1, folder, 10.0), stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.wait(LIMIT) == 0
    assert (folder / "rank-0.log").read_text().endswith("line 19999\n")


def test_a_killed_rank_is_named_and_ends_the_run(
    script: Callable[[str], str], tmp_path: Path, folder: Path, launch: Callable[..., Launch]
) -> None:
    text = """
    (WORDS / f'pid-{RANK}').write_text(str(os.getpid()))
    print('last word of', RANK)
    if RANK == '2':
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    """
    launched = launch(script(text), 3, grace=0.2)
    pids = [int(word) for word in _words(tmp_path, "pid-0", "pid-1", "pid-2")]
    assert launched.wait() == 1
    lines = launched.said.splitlines()
    assert lines[0].endswith(f"was killed by signal 9 (SIGKILL); its log is {folder / 'rank-2.log'}")
    assert lines[0].startswith("quorate: rank 2 (host ")
    assert lines[1:] == ["  | last word of 2", "After that ranks 0 and 1 were stopped with SIGTERM."]
    assert not any(is_running(pid) for pid in pids)


def test_survivors_read_who_failed_and_may_leave_by_themselves(
    script: Callable[[str], str], tmp_path: Path, launch: Callable[..., Launch]
) -> None:
    text = """
    if RANK == '1':
        sys.exit(3)
    (WORDS / 'board').write_text(os.environ['QUORATE_BOARD'].removeprefix('unix:'))
    while not (WORDS / 'leave').exists():
        time.sleep(0.01)
    sys.exit(5)
    """
    launched = launch(script(text), 2)
    board = SocketBoard(_words(tmp_path, "board")[0])
    board.wait([FAILED], LIMIT)
    failure = read_failure(board)
    board.close()
    (tmp_path / "leave").write_text("x")
    assert launched.wait() == 1
    assert isinstance(failure, PeerFailed)
    assert failure.ranks == (1,)
    assert f"{failure}; its log is" in launched.said
    assert "After that rank 0 exited with status 5." in launched.said


def test_who_ignores_sigterm_is_killed(
    script: Callable[[str], str], tmp_path: Path, launch: Callable[..., Launch]
) -> None:
    text = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (WORDS / f'pid-{RANK}').write_text(str(os.getpid()))
    if RANK == '0':
        while not (WORDS / 'pid-1').exists():
            time.sleep(0.01)
        sys.exit(1)
    time.sleep(600)
    """
    launched = launch(script(text), 2, grace=0.05)
    pids = [int(word) for word in _words(tmp_path, "pid-0", "pid-1")]
    assert launched.wait() == 1
    assert "rank 1 was stopped with SIGKILL" in launched.said
    assert not any(is_running(pid) for pid in pids)


def test_wrong_input_of_the_script_stays_wrong_input(script: Callable[[str], str], folder: Path) -> None:
    assert run_shown(Command(script=script("sys.exit(2)")), 2, folder).status == 2


def test_an_interrupt_of_one_worker_is_that_of_the_run(script: Callable[[str], str], folder: Path) -> None:
    assert run_shown(Command(script=script("if RANK == '1': sys.exit(130)")), 2, folder).status == 130


@pytest.mark.parametrize("how", ["sys.exit(0)", "sys.exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_a_worker_has_started_ends_with_it(
    script: Callable[[str], str], tmp_path: Path, folder: Path, how: str
) -> None:
    text = f"""
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
    (WORDS / 'grandchild').write_text(str(child.pid))
    {how}
    """
    run_shown(Command(script=script(text)), 1, folder)
    assert not is_running(int(_words(tmp_path, "grandchild")[0]))


STAYS = """
(WORDS / f'pid-{RANK}').write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGHUP, 130)]
)
def test_a_signal_is_passed_on(
    script: Callable[[str], str], tmp_path: Path, launch: Callable[..., Launch], signum: signal.Signals, status: int
) -> None:
    launched = launch(script(STAYS), 2)
    pids = [int(word) for word in _words(tmp_path, "pid-0", "pid-1")]
    launched.send(signum)
    assert launched.wait() == status
    assert not any(is_running(pid) for pid in pids)
    assert "KeyboardInterrupt" in log_of(tmp_path / "run", 0).read_text() or signum != signal.SIGINT
    assert "Traceback" not in launched.said, "what is interrupted before it has joined is in its log only"


def test_ever_so_many_requests_leave_the_sentence(
    script: Callable[[str], str], tmp_path: Path, launch: Callable[..., Launch]
) -> None:
    launched = launch(script(STAYS), 2)
    _words(tmp_path, "pid-0", "pid-1")
    for _ in range(50):
        launched.send(signal.SIGHUP)
        time.sleep(0.001)
    assert launched.wait() == 130
    assert "ended by SIGHUP; every worker has ended" in launched.said


def test_a_request_for_stacks_ends_nobody(
    script: Callable[[str], str], tmp_path: Path, launch: Callable[..., Launch]
) -> None:
    launched = launch(script(STAYS), 2)
    pids = [int(word) for word in _words(tmp_path, "pid-0", "pid-1")]
    launched.send(signal.SIGUSR2)
    time.sleep(0.3)
    assert all(is_running(pid) for pid in pids), "who has not joined takes this signal as its end"
    launched.send(signal.SIGTERM)
    assert launched.wait() == 75
    assert "0 workers have been told to write their stacks" in launched.said
    assert not any(is_running(pid) for pid in pids)


def test_who_is_stopped_says_so_and_stops_the_workers(
    script: Callable[[str], str], tmp_path: Path, launch: Callable[..., Launch]
) -> None:
    launched = launch(script(STAYS), 2)
    pids = [int(word) for word in _words(tmp_path, "pid-0", "pid-1")]
    launched.send(signal.SIGTSTP)
    until(lambda: all(_state(pid) == "T" for pid in (launched.pid, *pids)), "all to be stopped")
    launched.send(signal.SIGCONT)
    until(lambda: all(_state(pid) in "SR" for pid in (launched.pid, *pids)), "all to go on")
    launched.send(signal.SIGTERM)
    assert launched.wait() == 75
    assert "quorate: stopped, and the workers with it; fg or bg lets all go on" in launched.said


def _state(pid: int) -> str:
    return subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout[0]


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_second_signal_leaves_at_once(
    script: Callable[[str], str], tmp_path: Path, launch: Callable[..., Launch], signum: signal.Signals, status: int
) -> None:
    text = f"""
    def note(signum, frame):
        (WORDS / f'noted-{{RANK}}').write_text('x')
    signal.signal({int(signum)}, note)
    """
    launched = launch(script(textwrap.dedent(text) + STAYS), 2, grace=60.0)
    pids = [int(word) for word in _words(tmp_path, "pid-0", "pid-1")]
    launched.send(signum)
    _words(tmp_path, "noted-0", "noted-1")
    assert all(is_running(pid) for pid in pids)
    launched.send(signum)
    assert launched.wait() == status
    assert not any(is_running(pid) for pid in pids)


SAVES = """
def save(signum, frame):
    time.sleep(1.0)
    (WORDS / f'saved-{RANK}').write_text('x')
    os._exit(75)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
"""


@pytest.mark.parametrize(
    ("signum", "within", "is_saved"),
    [(signal.SIGTERM, None, True), (signal.SIGTERM, "0.01", False), (signal.SIGINT, None, False),
     (signal.SIGINT, "9", True)],
)  # fmt: skip
def test_a_save_ends_unless_a_limit_ends_it(
    script: Callable[[str], str],
    tmp_path: Path,
    launch: Callable[..., Launch],
    monkeypatch: pytest.MonkeyPatch,
    signum: signal.Signals,
    within: str | None,
    is_saved: bool,
) -> None:
    if within is not None:
        monkeypatch.setenv("QUORATE_LEAVE_WITHIN", within)
    text = SAVES if within != "0.01" else SAVES.replace("1.0", "60.0")
    launched = launch(script(text + STAYS), 2, grace=0.1)
    _words(tmp_path, "pid-0", "pid-1")
    launched.send(signum)
    assert launched.wait() == (75 if signum == signal.SIGTERM else 130)
    assert [(tmp_path / f"saved-{rank}").exists() for rank in range(2)] == [is_saved] * 2


def test_workers_die_with_a_killed_launcher(
    script: Callable[[str], str], tmp_path: Path, launch: Callable[..., Launch]
) -> None:
    launched = launch(script(STAYS), 3)
    pids = [int(word) for word in _words(tmp_path, "pid-0", "pid-1", "pid-2")]
    launched.send(signal.SIGKILL)
    until(lambda: not any(is_running(pid) for pid in pids), "the workers' end")


def test_what_workers_have_started_dies_with_a_killed_launcher(
    script: Callable[[str], str], tmp_path: Path, launch: Callable[..., Launch]
) -> None:
    text = """
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
    (WORDS / f'child-{RANK}').write_text(str(child.pid))
    if RANK == '0':
        forked = os.fork()
        if not forked:
            (WORDS / 'forked').write_text(str(os.getpid()))
            time.sleep(600)
    """
    launched = launch(script(textwrap.dedent(text) + STAYS), 2)
    pids = [int(word) for word in _words(tmp_path, "pid-0", "pid-1", "child-0", "child-1", "forked")]
    launched.send(signal.SIGKILL)
    until(lambda: not any(is_running(pid) for pid in pids), "the end of all")


def test_where_the_kernel_does_not_see_to_it_a_pipe_does(tmp_path: Path) -> None:
    text = """
    import os, sys, time
    from quorate.launch.local.orphans import watch_launcher
    watch_launcher()
    print(os.environ.get('QUORATE_LAUNCHER_FD'), flush=True)
    time.sleep(600)
    """
    watched, held = os.pipe()
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, "QUORATE_LAUNCHER_FD": str(watched)},
        pass_fds=[watched],
        stdout=subprocess.PIPE,
    )
    os.close(watched)
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == b"None\n"
        assert worker.poll() is None
        os.close(held)
        assert worker.wait(2.0) == 1
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


class _Played:
    """A child that ends when the test says so."""

    pid = None

    def __init__(self) -> None:
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status


def test_of_two_deaths_seen_together_the_signal_is_the_cause() -> None:
    board, children = MemoryBoard(), [_Played(), _Played(), _Played()]
    crew = Crew(children, board)
    assert not crew.watch(0.0)
    children[0].status, children[1].status, children[2].status = 1, 0, -9
    assert crew.watch(LIMIT)
    assert crew.first_failure == Ending(2, -9)
    failure = read_failure(board)
    assert failure is not None
    assert failure.args[0].endswith("was killed by signal 9 (SIGKILL)")
    assert [board.get(ended(rank)) for rank in range(3)] == [None, b"0", None]


def test_the_goodput_is_told_of_deaths_and_strikes_until_workers_are_asked_to_leave() -> None:
    children, shown, asked = [_Played(), _Played()], [], []
    crew = Crew(children, MemoryBoard(), shows=lambda rank, text: shown.append(text))

    class Goodput:
        def look(self, failures: int, alive: list[int]) -> str | None:
            asked.append((failures, alive))
            return "goodput so far 80%" if failures else None

    crew.goodput = cast(LiveGoodput, Goodput())
    crew.watch(0.0)
    assert asked == [(0, [0, 1])] and shown == []
    crew.outlived.append(Ending(2, -9))
    crew.chaos = cast(Chaos, SimpleNamespace(strikes=3, look=lambda: None, end=lambda: None))
    crew.watch(0.0)
    assert asked[1:] == [(4, [0, 1])] and shown == ["quorate: goodput so far 80%\n"]
    crew._plan = [(time.monotonic() + LIMIT, signal.SIGTERM)]
    crew.watch(0.0)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "exited with status 3"), (-9, "was killed by signal 9 (SIGKILL)"), (-100, "was killed by signal 100")],
)
def test_statuses_in_words(status: int, words: str) -> None:
    assert status_in_words(status) == words
