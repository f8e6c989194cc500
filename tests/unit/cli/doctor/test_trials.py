"""Trials: programs that answer, fail, hang or lie. `tests/world/test_verbs.py` has the real ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from quorate.cli.doctor import trials
from quorate.cli.doctor.trials import bfloat16, quorate_run, tried
from quorate.core.errors import QuorateError
from tests.support.launching import is_running, until


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Make a module of the text, and return its name."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def make(text: str) -> str:
        (tmp_path / "tried_program.py").write_text(text)
        return "tried_program"

    return make


@pytest.mark.parametrize(
    ("answer", "level", "found"),
    [
        ({"right": True, "device": "cpu", "workers": 2}, "OK", "2 workers agreed on cpu"),
        ({"right": False, "device": "cpu"}, "FAIL", "the workers met, but their mean was wrong"),
        (None, "FAIL", "RuntimeError: no such interface"),
    ],
)
def test_workers_must_agree(
    answer: dict[str, object] | None, level: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*arguments: object, **options: object) -> dict[str, object]:
        if answer is None:
            raise QuorateError(found)
        return answer

    monkeypatch.setattr(trials, "tried", end)
    finding = quorate_run(["-n", "2"])
    assert (finding.level, finding.found) == (level, found) and bool(finding.fix) == (level == "FAIL")


@pytest.mark.parametrize(
    ("text", "level", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "WARN", "ONEDNN_MAX_CPU_ISA"),
        ("print('{\"right\": false}')", "WARN", "do not train in bfloat16"),
        ("print('{\"right\": true}')", "OK", "are right"),
    ],
)
def test_a_cpu_that_cannot_do_bfloat16_is_a_warning(
    text: str, level: str, words: str, program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "PROGRAM", program(text))
    assert bfloat16().level == level and words in bfloat16().found + bfloat16().fix


def test_the_last_line_is_the_answer(program: Callable[[str], str]) -> None:
    assert tried(program("print('words'); print('{\"right\": true}')")) == {"right": True}
    with pytest.raises(QuorateError, match="it ended without an answer"):
        tried(program("print('nothing')"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ValueError('of the program')", "ValueError: of the program"),
        ("import sys; sys.exit(5)", "it exited with status 5"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", r"it was killed by signal 4 \(SIGILL\)"),
    ],
)
def test_the_last_words_say_why(text: str, words: str, program: Callable[[str], str]) -> None:
    with pytest.raises(QuorateError, match=words):
        tried(program(text))


def test_who_hangs_is_ended_with_all_it_started(tmp_path: Path, program: Callable[[str], str]) -> None:
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    told = tmp_path / "pid"
    parent = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", {child!r}], stdout=open({str(told)!r}, "w"))
time.sleep(600)
"""
    with pytest.raises(QuorateError, match="no answer within 2 s"):
        tried(program(parent), seconds=2.0)
    until(lambda: not told.read_text() or not is_running(int(told.read_text())), "the child's end")


def test_a_launchers_environment_does_not_reach_a_trial(
    program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("RANK", "WORLD_SIZE", "QUORATE_STRATEGY", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    for name in names:
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("QUORATE_GPU_BACKEND", "host")
    listed = (
        f"import json, os; print(json.dumps({{n: 1 for n in {(*names, 'QUORATE_GPU_BACKEND')} if n in os.environ}}))"
    )
    assert tried(program(listed)) == {"QUORATE_GPU_BACKEND": 1}, "a setting of the user's reaches it"


def test_a_run_that_fails_is_told(
    tmp_path: Path, program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tests/world/test_verbs.py` has one that ends well."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(trials, "PROGRAM", program("raise OSError('there is none')"))
    finding = quorate_run(["-n", "2", "--no-fork"])
    assert finding.level == "FAIL" and "rank" in finding.found
    assert os.listdir(folder) == []
