"""`quorate doctor` from outside: table, JSON, exit status, and examinations that do not end."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from quorate.cli.doctor import trials, verb
from quorate.cli.doctor.findings import Examination, Finding, Level, fail, ok, warn
from quorate.cli.main import main

FINE, MIND, BAD = ok("cores", "4"), warn("torchrun", "stale", "export A=1"), fail("loopback", "is down", "ip link")


def told(
    findings: Sequence[Finding], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[object, str, str]:
    monkeypatch.setattr(verb, "findings_here", lambda: iter(findings))
    monkeypatch.setattr(verb, "examination_names", lambda: [one.name for one in findings])
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


@pytest.mark.parametrize(
    ("findings", "status", "conclusion"),
    [
        ([FINE], 0, "trainings can run here"),
        ([FINE, MIND], 0, "trainings can run here; mind: torchrun"),
        ([FINE, MIND, BAD], 3, "1 of 3 failed: loopback"),
    ],
)
def test_what_fails_is_the_exit_status(
    findings: list[Finding],
    status: int,
    conclusion: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = told(findings, monkeypatch, capsys)
    assert (code, out.splitlines()[-1]) == (status, conclusion)
    for one in findings:
        (row,) = [line for line in out.splitlines() if line.startswith(one.name)]
        assert row.split() == [*one.name.split(), one.level.value, *one.found.split(), *one.fix.split()]
    assert err.splitlines()[0] == f"quorate: [1/{len(findings)}] cores: OK"


def test_on_a_terminal_progress_leaves_no_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, _, err = told([FINE, MIND], monkeypatch, capsys)
    clear = "\r\x1b[2K"
    assert err == f"{clear}quorate: [1/2] cores{clear}quorate: [2/2] torchrun{clear}"


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told([FINE, BAD], monkeypatch, capsys, "--json")
    assert code == 3
    assert json.loads(out) == {
        "counts": {"OK": 1, "WARN": 0, "FAIL": 1},
        "findings": [
            {"name": "cores", "level": "OK", "found": "4", "fix": ""},
            {"name": "loopback", "level": "FAIL", "found": "is down", "fix": "ip link"},
        ],
    }


def test_a_probe_that_does_not_end_fails() -> None:
    never = threading.Event()
    one = Examination(name="name server", seconds=0.05, probe=never.wait, judge=lambda _: FINE)
    assert (one.finding().level, one.finding().found) == (Level.FAIL, "no answer within 0.05 s")
    never.set()


def test_a_probe_that_raises_fails() -> None:
    def probe() -> None:
        raise PermissionError("not yours")

    finding = Examination(name="folders", seconds=5.0, probe=probe, judge=lambda _: FINE).finding()
    assert (finding.level, finding.found) == (Level.FAIL, "could not be looked at: not yours")


def test_without_torch_nothing_is_tried_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = trials.Trial(why="ImportError: libtorch.so")
    monkeypatch.setattr(trials, "probe_torch", lambda: broken)
    monkeypatch.setattr(verb, "quick_examinations", list)
    assert [(one.name, one.level) for one in verb.findings_here()] == [("gpu", Level.FAIL)]


def test_every_row_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"torch": "2.13.0", "build": "CUDA 13.0", "gpus": ["H100"], "gloo": True, "nccl": True, "mpi": True}
    asked = []

    def backend(name: str, size: int) -> trials.Trial:
        asked.append((name, size))
        return trials.Trial(answers=[{"right": True}] * size, processes=size)

    monkeypatch.setattr(trials, "probe_torch", lambda: trials.Trial(answers=[facts]))
    monkeypatch.setattr(trials, "probe_backend", backend)
    monkeypatch.setattr(trials, "probe_half", lambda: trials.Trial(answers=[{"right": True}]))
    monkeypatch.setattr(trials, "probe_run", lambda: trials.Trial(answers=[{"right": True}], processes=2))
    monkeypatch.setattr(trials, "has_mpirun", lambda: True)
    assert [one.name for one in verb.findings_here()] == verb.examination_names()
    assert asked == [("gloo", 2), ("nccl", 1), ("mpi", 2)]


def test_it_imports_nothing_heavy() -> None:
    code = f"""
import sys
from quorate.cli.doctor import verb
found = [one.finding() for one in verb.quick_examinations()]
assert len(found) == {len(verb.quick_examinations())}
print([name for name in ('torch', 'numpy', 'sklearn', 'tensorboard', 'sphinx') if name in sys.modules])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "[]\n"
