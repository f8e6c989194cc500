"""Trials: programs that answer, fail, hang or lie. `tests/world/test_verbs.py` has the real ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quorate.cli.doctor.findings import Level
from quorate.cli.doctor.trials import (
    Trial,
    judge_gloo,
    judge_half,
    judge_mpi,
    judge_nccl,
    judge_run,
    probe_backend,
    tried,
)
from tests.support.launching import is_running, until

RIGHT = Trial(answers=[{"right": True, "seconds": 0.002}] * 2, processes=2)
WRONG = Trial(answers=[{"right": True}, {"right": False}], processes=2)
DEAD = Trial(why="RuntimeError: no such interface", processes=2)


def program(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", text]


def test_gloo_is_needed() -> None:
    assert (judge_gloo(RIGHT).level, judge_gloo(RIGHT).found) == (Level.OK, "2 processes agreed in 2 ms")
    assert (judge_gloo(DEAD).level, judge_gloo(DEAD).found) == (Level.FAIL, "RuntimeError: no such interface")
    assert (judge_gloo(WRONG).level, judge_gloo(Trial(processes=2)).level) == (Level.FAIL, Level.FAIL)


def test_nccl_is_needed_where_there_are_gpus() -> None:
    assert judge_nccl(None, has_gpu=False).level is Level.OK
    assert judge_nccl(None, has_gpu=True).level is Level.WARN
    assert judge_nccl(DEAD, has_gpu=True).level is Level.FAIL
    assert judge_nccl(RIGHT, has_gpu=True).level is Level.OK


def test_mpi_is_never_needed() -> None:
    assert judge_mpi(None, is_built=False).level is Level.OK
    assert judge_mpi(None, is_built=True).level is Level.WARN
    assert judge_mpi(DEAD, is_built=True).level is Level.WARN
    assert judge_mpi(RIGHT, is_built=True).level is Level.OK


def test_a_cpu_that_cannot_do_bfloat16_is_a_warning() -> None:
    killed = judge_half(Trial(why="it was killed by signal 4 (SIGILL)"))
    assert (killed.level, "ONEDNN_MAX_CPU_ISA" in killed.fix) == (Level.WARN, True)
    assert judge_half(Trial(answers=[{"right": False}])).level is Level.WARN
    assert judge_half(Trial(answers=[{"right": True}])).level is Level.OK


def test_a_run_that_fails_fails() -> None:
    assert judge_run(DEAD).level is Level.FAIL
    assert judge_run(RIGHT).level is Level.OK


def test_the_last_line_is_the_answer() -> None:
    two = tried([program("print('words'); print('{\"right\": true}')"), program("print('nothing')")])
    assert two == Trial(answers=[{"right": True}], why=None, processes=2)


def test_the_last_words_say_why() -> None:
    raised = tried([program("raise ValueError('of the program')"), program("")])
    assert raised.why == "ValueError: of the program"
    assert tried([program("import sys; sys.exit(5)")]).why == "it exited with status 5"
    killed = tried([program("import os, signal; os.kill(os.getpid(), signal.SIGILL)")])
    assert killed.why == "it was killed by signal 4 (SIGILL)"


def test_who_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    told = tmp_path / "pid"
    parent = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", {child!r}], stdout=open({str(told)!r}, "w"))
time.sleep(600)
"""
    assert tried([program(parent)], seconds=2.0).why == "no answer within 2 s"
    until(lambda: not told.read_text() or not is_running(int(told.read_text())), "the child's end")


def test_a_launchers_environment_does_not_reach_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "WORLD_SIZE", "QUORATE_STRATEGY", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    for name in names:
        monkeypatch.setenv(name, "7")
    listed = f"import json, os; print(json.dumps({{n: 1 for n in {names} if n in os.environ}}))"
    assert tried([program(listed)]).answers == [{}]


def test_gloo_that_finds_no_interface_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuchinterface")
    assert judge_gloo(probe_backend("gloo", 1)).level is Level.FAIL
