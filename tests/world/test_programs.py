"""Programs that tests fork find, write and leave what those do that are started; so do the workers that they start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.launching import is_running, until
from tests.support.programs import QUORATE, Program, run

FACTS = """
import inspect, json, multiprocessing, os, signal, sys, threading
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "folder": os.getcwd(), "main": [__name__, __file__, __package__],
    "environment": {name: value for name, value in os.environ.items() if name not in OWN},
    "signals": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "stdin": sys.stdin.read(),
    "files": sorted(name for name in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{name}")),
    "streams": [(each.encoding, each.errors, each.isatty()) for each in (sys.stdin, sys.stdout, sys.stderr)],
    "children": [multiprocessing.get_start_method(), str(multiprocessing.parent_process())],
    "threads": threading.active_count(), "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
}))
""".replace("OWN", "('KMP_DUPLICATE_LIB_OK', 'KMP_INIT_AT_FORK', 'TORCHINDUCTOR_CACHE_DIR')")  # torch sets these


def _started(words: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_forked_program_finds_itself_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "facts.py").write_text(FACTS)
    environment = {**os.environ, "OF_THE_TEST": "7"}
    started = json.loads(_started(["facts.py", "--x", "a b"], tmp_path, environment).stdout)
    forked = json.loads(run(["facts.py", "--x", "a b"], cwd=tmp_path, env=environment).stdout)
    assert {name: (fact, forked[name]) for name, fact in started.items() if fact != forked[name]} == {}
    assert forked["environment"]["OF_THE_TEST"] == "7"


@pytest.mark.parametrize(
    "text",
    [
        "print('out'); print('err', file=sys.stderr)",
        "sys.exit(3)",
        "sys.exit('cannot go on')",
        "raise ValueError('of the script')",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "raise KeyboardInterrupt",
        "import atexit; atexit.register(print, 'last'); print('first')",
    ],
)
def test_it_ends_as_one_that_was_started(tmp_path: Path, text: str) -> None:
    (tmp_path / "script.py").write_text(f"import os, signal, sys\n{text}\n")
    found = [
        (ended.returncode, ended.stdout, ended.stderr)
        for ended in (_started(["script.py"], tmp_path, dict(os.environ)), run(["script.py"], cwd=tmp_path))
    ]
    assert found[0] == found[1]


WAITS = """
    import os, sys, time
    from pathlib import Path
    (Path(sys.argv[1]) / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    (Path(sys.argv[1]) / f"launcher-{os.environ['RANK']}").write_text(str(os.getppid()))
    time.sleep(60)
"""


def test_its_workers_are_its_own_and_die_with_it(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(textwrap.dedent(WAITS))
    program = Program([*QUORATE, "run", "-n", "2", "waits.py", str(tmp_path)], cwd=tmp_path)
    try:
        paths = [tmp_path / f"{kind}-{rank}" for kind in ("pid", "launcher") for rank in range(2)]
        until(lambda: all(path.exists() and path.read_text() for path in paths), "the workers")
        *pids, one, other = (int(path.read_text()) for path in paths)
        assert one == other == program.pid
        program.send_signal(signal.SIGKILL)
        until(lambda: not any(is_running(pid) for pid in pids), "their end")
    finally:
        program.kill()
        program.communicate()


def test_who_has_ended_is_not_running_whether_collected_or_not() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert is_running(child.pid)
        child.kill()
        until(lambda: not is_running(child.pid), "its end, which nobody has collected")
        child.wait()
        assert not is_running(child.pid)
