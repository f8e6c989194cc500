"""Scripts in the shapes of Horovod's own examples train unchanged, under all-reduce and under other strategies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import quorate.horovod
from quorate.launch.virtual.run import run_script
from tests.architecture.tree import ROOT

SCRIPTS = ROOT / "tests" / "support" / "horovod_scripts"
CASES = {
    "mnist": ([], r"accuracy: ([\d.]+)", 0.9),
    "mnist, 16 bits": (["--fp16-allreduce", "--gradient-predivide-factor", "2"], r"accuracy: ([\d.]+)", 0.9),
    "mnist, adasum": (["--use-adasum", "--lr", "0.05"], r"accuracy: ([\d.]+)", 0.9),
    "synthetic_benchmark": ([], r"Total img/sec on 3 worker\(s\): ([\d.]+)", 1.0),
    "imagenet": ([], r"epoch 2: loss [\d.]+ accuracy ([\d.]+)", 0.75),
}
"""By script: arguments, the last line that is looked for, and the least figure in it."""


STRATEGIES = ("all-reduce", "eager-majority", "local-sgd", "d-psgd")


@pytest.mark.parametrize(
    ("case", "strategy"),
    [(case, each) for case in CASES for each in (STRATEGIES[:1] if "adasum" in case else STRATEGIES)],
)
def test_a_script_for_horovod_trains(case: str, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, line, least = CASES[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(quorate.horovod.__file__).parent / "alias"))
    monkeypatch.setenv("QUORATE_STRATEGY", strategy)
    status = run_script(SCRIPTS / f"{case.split(',')[0]}.py", arguments, 3, run_dir=tmp_path / "logs")
    text = (tmp_path / "logs" / "rank-0.log").read_text()
    assert status == 0, text
    figures = re.findall(line, text)
    assert figures, text
    assert float(figures[-1]) >= least


def test_a_checkpoint_of_the_script_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(quorate.horovod.__file__).parent / "alias"))
    for epochs, begins in (("1", "epoch 0"), ("3", "epoch 1")):
        logs = tmp_path / epochs
        assert run_script(SCRIPTS / "imagenet.py", ["--epochs", epochs], 2, run_dir=logs) == 0
        assert (logs / "rank-0.log").read_text().startswith(begins)
