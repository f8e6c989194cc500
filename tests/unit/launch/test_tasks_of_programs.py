"""Functions of a program itself, such as a benchmark, run in the processes of `tests.support.processes`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.architecture.tree import ROOT

PROGRAM = """
import subprocess
import sys
sys.path.insert(0, {root!r})
from tests.support.processes import run_real_world

class Answer:
    def __init__(self, rank):
        self.rank = rank

def train(world):
    return Answer(world.rank)

if __name__ == "__main__":
    print([answer.rank for answer in run_real_world(2, train, 60)])
"""


def test_a_function_of_the_program_that_asks(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(root=str(ROOT)))
    words = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(words, cwd=tmp_path, timeout=240.0, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[0, 1]", done.stderr
