"""Programs that tests fork find what those do that are started, and their workers die with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.launching import is_running, until
from tests.support.programs import QUORATE, Program, run

FACTS = """
import inspect, json, multiprocessing, os, signal, sys, threading
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "folder": os.getcwd(), "main": [__name__, __file__, __package__],
    "environment": {name: value for name, value in os.environ.items() if name not in OWN},
    "signals": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "stdin": sys.stdin.read(),
    "streams": [(each.encoding, each.errors, each.isatty()) for each in (sys.stdin, sys.stdout, sys.stderr)],
    "children": [multiprocessing.get_start_method(), str(multiprocessing.parent_process())],
    "threads": threading.active_count(),
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
        timeout=240.0,
    )


def test_a_forked_program_finds_itself_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "facts.py").write_text(FACTS)
    environment = {**os.environ, "OF_THE_TEST": "7"}
    started = json.loads(_started(["facts.py", "--x", "a b"], tmp_path, environment).stdout)
    forked = json.loads(run(["facts.py", "--x", "a b"], cwd=tmp_path, env=environment).stdout)
    assert {name: (fact, forked[name]) for name, fact in started.items() if fact != forked[name]} == {}
    assert forked["environment"]["OF_THE_TEST"] == "7"


WAITS = """
    import os, sys, time
    from pathlib import Path
    (Path(sys.argv[1]) / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    (Path(sys.argv[1]) / f"parent-{os.environ['RANK']}").write_text(str(os.getppid()))
    time.sleep(600)
"""


def test_its_workers_are_its_own_and_die_with_it(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(textwrap.dedent(WAITS))
    program = Program([*QUORATE, "run", "-n", "2", "waits.py", str(tmp_path)], cwd=tmp_path)
    try:
        paths = [tmp_path / f"{kind}-{rank}" for kind in ("pid", "parent") for rank in range(2)]
        until(lambda: all(path.exists() and path.read_text() for path in paths), "the workers")
        *pids, first, second = (int(path.read_text()) for path in paths)
        assert first == second and first != program.pid, "its zygote"
        program.send_signal(signal.SIGKILL)
        until(lambda: not any(is_running(pid) for pid in (first, *pids)), "their end")
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
