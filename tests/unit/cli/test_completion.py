"""Completion, asked for as a shell asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from quorate.cli.main import main
try:
    main([])
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def completed(folder: Path, *words: str) -> list[str]:
    asked = {
        "_QUORATE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("quorate", *words)),
        "COMP_CWORD": str(len(words)),
    }
    finished = subprocess.run(
        [sys.executable, "-c", CODE], cwd=folder, env=os.environ | asked, capture_output=True, text=True, timeout=30
    )
    assert finished.stderr == "False\n"
    return finished.stdout.split()


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("run", "--strategy", "eag"), ["eager-averaging", "eager-majority", "eager-solo"]),
        (("run", "--offload", ""), ["optimizer", "all", "disk"]),
        (("run", "--strategy", "Quorum", "--set", "wait"), ["wait_for="]),
        (("run", "--resume", "not-there", "--strategy", "eager-s"), ["eager-solo"]),
        (("run", "tr"), []),
        (("compare", "dig"), ["digits"]),
        (("compare", "-n", "1,2", "digits", "--baseline", "dd"), ["ddp"]),
        (("explain", "top"), ["top-k"]),
        (("list", "co"), ["codecs"]),
        (("trace", ""), ["first"]),
        (("report", ""), ["first", "second"]),
        (("ru",), ["run"]),
    ],
)
def test_the_shell_completes_values(words: tuple[str, ...], values: list[str], tmp_path: Path) -> None:
    for name, file in (("first", "run.json"), ("second", "compare.json"), ("third", "other.txt")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / file).write_text("{}")
    assert completed(tmp_path, *words) == values
