"""Settings that depend on the number of workers are refused before any worker starts."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from quorate.cli import choices
from quorate.cli.verbs import status_of


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "wait_for=200"], "wait_for is 200, and there are 2 workers; a count is from 1 to 2"),
        (["--strategy", "quorum:wait_for=3"], "wait_for is 3, and there are 2 workers"),
        (["--strategy", "async-local-sgd:learners=3"], "learners is 3, and there are 2 workers"),
        (["--strategy", "easgd:servers=3"], "servers is 3, and there are 2 workers"),
        (["--strategy", "d-psgd:topology=torus:rows=3"], 'unknown setting of torus "rows"'),
        (["--strategy", "osgp:topology=bipartite-exponential", "-n", "3"], "bipartite-exponential pairs even with odd"),
        (["--strategy", "gradient-coding:s=2"], "gradient-coding with s=2 computes each batch 3 times"),
        (["--strategy", "all-reduce", "--set", "wait_for=3"], 'unknown setting of all-reduce "wait_for"'),
        (["--strategy", "robust:reduce=krum,f=1"], "Krum takes f of at least 2 f + 3 vectors"),
    ],
)
@pytest.mark.parametrize("is_dry", [True, False])
def test_what_needs_only_the_number_of_workers_is_refused_at_once(
    words: list[str],
    sentence: str,
    is_dry: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert status_of(["run", "-n", "2", *words, *(["--dry-run"] * is_dry), "train.py"]) == 2
    assert capsys.readouterr().err.startswith(f"quorate: {sentence}")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words",
    [["--set", "wait_for=2"], ["--set", "wait_for=0.5"], ["--strategy", "robust:reduce=median"], ["--set", "x=9"]],
)
def test_what_is_possible_is_not_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert status_of(["run", "-n", "2", *words, "--dry-run", "train.py"]) == 0


def test_each_number_of_workers_of_a_comparison_counts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "digits", "--dry-run", "--scale", "2,4", "-n", "4", "--strategy", "quorum:wait_for=3"]
    assert status_of(words) == 2
    assert capsys.readouterr().err.startswith("quorate: wait_for is 3, and there are 2 workers")


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["run", "-n", "1000"], True),
        (["run", "-n", "8"], True),
        (["run", "-n", "7"], False),
        (["run", "--virtual", "1000"], False),
        (["compare", "-n", "1000"], True),
    ],
)
def test_a_lack_of_memory_is_told(
    words: list[str],
    is_told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choices, "available_memory", lambda: (choices.WORKER_BYTES * 15 // 2, 10**12))
    Path("train.py").write_text("")
    assert status_of([*words, "--dry-run", "train.py"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("would ")
    assert told.err.endswith("are available: enough for some 7; --virtual needs much less\n") == is_told
    assert bool(told.err) == is_told


def test_counts_are_checked_without_torch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    code = (
        "import sys; from quorate.cli.verbs import status_of; words = sys.argv[1:]; "
        "print(status_of(['run', '-n', '2', '--dry-run', *words, 'train.py']), 'torch' in sys.modules)"
    )
    for words, status in ((["--strategy", "quorum:wait_for=3"], 2), (["--set", "wait_for=1"], 0), ([], 0)):
        finished = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
        assert finished.stdout.endswith(f"{status} False\n"), finished.stderr


@pytest.mark.parametrize(
    "words", [["run", "-n", "2", "train.py"], ["compare", "-n", "2", "--strategy", "eager-solo", "train.py"]]
)
def test_too_few_open_files_are_refused_before_workers_start(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (20, 20))
    assert status_of(words) == 2
    sentence = "a process may have 20 open files here, and 2 workers need up to 96; raise the limit: ulimit -n 96"
    assert capsys.readouterr().err == f"quorate: {sentence}\n"
    assert not Path("runs").exists()
