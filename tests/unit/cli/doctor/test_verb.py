"""`quorate doctor` from outside: table, JSON, exit status, and examinations that do not end."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from quorate.cli.doctor import trials, verb
from quorate.cli.doctor.findings import Finding, examined, fail, ok, warn, within
from quorate.cli.main import main
from quorate.core.errors import QuorateError

FINE, MIND, BAD = ok("4 usable"), warn("50 MiB free", "--shm-size=1g"), fail("is down", "ip link")
ROWS = {"cores": FINE, "/dev/shm": MIND, "ports": BAD}


def doctor(
    names: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[object, str, str]:
    monkeypatch.setattr(
        verb, "checks_here", lambda workers, rates: ((name, lambda name=name: ROWS[name]) for name in names)
    )
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    output = capsys.readouterr()
    return ended.value.code, output.out, output.err


@pytest.mark.parametrize(
    ("names", "status", "conclusion"),
    [
        (["cores"], 0, "trainings can run here"),
        (["cores", "/dev/shm"], 0, "trainings can run here; mind: /dev/shm"),
        (["cores", "/dev/shm", "ports"], 3, "1 of 3 failed: ports"),
    ],
)
def test_what_fails_is_the_exit_status(
    names: list[str],
    status: int,
    conclusion: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = doctor(names, monkeypatch, capsys)
    assert (code, out.splitlines()[-1]) == (status, conclusion)
    for name in names:
        level, found, fix = ROWS[name]
        words = [name, level, *found.split(), *(["fix:", *fix.split()] if fix else [])]
        assert " ".join(words) in " ".join(out.split())
    assert err.splitlines()[0] == "quorate: cores: OK"


def test_lines_have_at_most_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setitem(ROWS, "ports", fail("word " * 40, "other " * 40))
    _, out, _ = doctor(["cores", "ports"], monkeypatch, capsys)
    assert out.count("word") == out.count("other") == 40
    assert max(map(len, out.splitlines())) <= 80 and "\x1b" not in out


def test_on_a_terminal_progress_leaves_no_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, _, err = doctor(["cores", "/dev/shm"], monkeypatch, capsys)
    clear = "\r\x1b[2K"
    assert err == f"{clear}quorate: cores{clear}quorate: /dev/shm{clear}"


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = doctor(["cores", "ports"], monkeypatch, capsys, "--json")
    assert code == 3
    assert json.loads(out) == {
        "counts": {"OK": 1, "WARN": 0, "FAIL": 1},
        "findings": [
            {"name": "cores", "level": "OK", "found": "4 usable", "fix": ""},
            {"name": "ports", "level": "FAIL", "found": "is down", "fix": "ip link"},
        ],
    }


def test_a_check_that_does_not_end_fails() -> None:
    never = threading.Event()

    def check() -> Finding:
        never.wait()
        return FINE

    assert within(0.05, check)[:2] == ("FAIL", "no answer within 0.05 s")
    never.set()


def test_a_check_that_raises_fails() -> None:
    def check() -> Finding:
        raise PermissionError("not yours")

    assert examined(check)[:2] == within(5.0, check)[:2] == ("FAIL", "could not be checked: not yours")


def examine_here() -> dict[str, Finding]:
    return {name: check() for name, check in verb.checks_here()}


FACTS = {
    "torch_version": "2.13.0", "python_version": "3.12", "os": "Linux", "gpus": [], "apart": [], "nvml": "",
    "cuda_compiled_version": None, "hip_compiled_version": "N/A", "nvidia_driver_version": None,
}  # fmt: skip


def test_without_torch_nothing_is_tried_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*words: str) -> dict[str, object]:
        raise QuorateError("ImportError: libtorch.so")

    monkeypatch.setattr(trials, "tried", broken)
    monkeypatch.setattr(verb, "quick_checks", lambda workers: {})
    findings = examine_here()
    assert list(findings) == ["torch"] and findings["torch"].level == "FAIL"
    assert "ImportError: libtorch.so" in findings["torch"].found


@pytest.mark.parametrize(
    ("gpus", "asked", "workers", "rows"),
    [
        (0, None, "2", ["torch", "gpu", "/dev/shm", "bfloat16", "quorate run"]),
        (0, 5, "5", ["torch", "gpu", "/dev/shm", "bfloat16", "quorate run"]),
        (1, None, "2", ["torch", "gpu 0", "/dev/shm", "quorate run"]),
        (3, None, "3", ["torch", "gpu 0", "gpu 1", "gpu 2", "gpu pairs", "/dev/shm", "quorate run"]),
        (3, 2, "2", ["torch", "gpu 0", "gpu 1", "gpu 2", "gpu pairs", "/dev/shm", "quorate run"]),
    ],
)
def test_rows_come_in_order(
    gpus: int, asked: int | None, workers: str, rows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without -n each GPU has a worker, and bfloat16 on the CPU is tried only where the CPU computes."""
    tried: list[object] = []
    about = {"name": "H100", "capability": "9.0", "memory": 80 * 10**9, "free": 79 * 10**9}
    monkeypatch.setattr(verb, "quick_checks", lambda workers: {"cores": lambda: FINE})
    monkeypatch.setattr(trials, "tried", lambda *words: {**FACTS, "gpus": [about] * gpus})
    monkeypatch.setattr(trials, "bfloat16", lambda: FINE)
    monkeypatch.setattr(trials, "quorate_run", lambda words, rates: tried.append(words) or FINE)
    assert [(name, check())[0] for name, check in verb.checks_here(asked)] == ["cores", *rows]
    assert tried == [["-n", workers]]


def test_rates_are_in_the_order_of_nccl_tests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In 80 columns, and in JSON."""
    rate = {
        "size": 1 << 29, "elements": 1 << 27, "dtype": "float32", "seconds": 0.0123, "algorithm_bandwidth": 43.6e9,
        "bus_bandwidth": 76.4e9, "error": 0.0,
    }  # fmt: skip

    def checks(workers: int, rates: list[dict[str, Any]]) -> Iterator[tuple[str, Callable[[], Finding]]]:
        yield "quorate run", lambda: FINE
        rates.append(rate)

    monkeypatch.setattr(verb, "checks_here", checks)
    for words in (["--bandwidth"], ["--bandwidth", "--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["doctor", "-n", "8", *words])
        assert ended.value.code == 0
        out = capsys.readouterr().out
        if "--json" in words:
            assert json.loads(out)["bandwidth"] == [rate]
        else:
            *_, empty, heads, line, row = out.splitlines()
            assert empty == "" and heads.split() == [
                "size", "(B)", "elements", "type", "time", "(µs)", "algbw", "(GB/s)", "busbw", "(GB/s)", "error",
            ]  # fmt: skip
            assert row.split() == ["536,870,912", "134,217,728", "float32", "12,300.0", "43.600", "76.400", "0"]
            assert max(map(len, (heads, line, row))) <= 80


@pytest.mark.parametrize(
    ("strategy", "waits"),
    [(None, True), ("all-reduce", True), ("d-psgd", True), ("diloco", False), ("quorum:wait_for=2", False)],
)
def test_strategies_that_wait_need_a_fast_network(strategy: str | None, waits: bool) -> None:
    assert verb._waits(strategy) is waits


def test_it_imports_nothing_heavy() -> None:
    code = """
import sys
from quorate.cli.doctor import verb
assert all(check().found for check in verb.quick_checks(2).values())
print([name for name in ('torch', 'numpy', 'sklearn', 'tensorboard', 'sphinx') if name in sys.modules])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240.0)
    assert ended.stdout == "[]\n"
