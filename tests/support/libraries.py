"""Scripts under `quorate run`, in an environment that has the libraries whose training loops they use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.architecture.test_documents import blocks
from tests.architecture.tree import ROOT

_OWN = ROOT / ".venv" / "interop"
PYTHON = _OWN / "bin" / "python" if _OWN.exists() else Path(sys.executable)
"""Of the environment that `make test-interop` makes, or else this one."""
TIMM = PYTHON.parents[1] / "timm"
"""A folder with timm and the torchvision that it imports, apart from libraries that import any that they find."""
STREAMING = PYTHON.parents[1] / "streaming"
"""A folder with MosaicML streaming, whose package asks for other versions of torch and numpy."""
DEEPSPEED = PYTHON.parents[1] / "deepspeed"
"""A folder with DeepSpeed, which compiles its collectives for CPUs when a process first joins."""
TENSORFLOW = PYTHON.parents[1] / "tensorflow"
"""A folder with TensorFlow, which Keras imports with each backend where it is found."""
TRAININGS = ROOT / "tests" / "support" / "library_trainings.py"
_QUORATE = "import sys; from quorate.cli.main import main; sys.exit(main())"


@cache
def skipped(*libraries: str) -> pytest.MarkDecorator:
    """Return the mark of a test that is skipped where the environment lacks a library."""
    asked = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {libraries!r})))"
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), *map(str, (TIMM, STREAMING, DEEPSPEED, TENSORFLOW))])
    env = {**os.environ, "PYTHONPATH": path}
    lacks = subprocess.run([str(PYTHON), "-c", asked], check=False, timeout=60, env=env).returncode
    return pytest.mark.skipif(bool(lacks), reason=f"needs {', '.join(libraries)}: make test-interop installs it")


def needs(*libraries: str) -> list[pytest.MarkDecorator]:
    """The marks of a file of tests."""
    return [pytest.mark.interop, pytest.mark.slow, skipped(*libraries)]


def run(
    folder: Path,
    *words: str,
    status: int = 0,
    paths: Sequence[Path] = (),
    backend: str = "torch",
    verb: str = "run",
) -> str:
    """Return the output of a verb of `quorate` with these words; programs find modules in `paths`, too."""
    path = os.pathsep.join(map(str, [ROOT / "src", ROOT, *paths]))
    told = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "KERAS_BACKEND": backend, "COLUMNS": "200"}
    told["TF_CPP_MIN_LOG_LEVEL"] = "3"
    ended = subprocess.run(
        [str(PYTHON), "-c", _QUORATE, verb, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **told},
        check=False,
    )
    assert ended.returncode == status, (ended.stdout[-2000:], ended.stderr[-4000:])
    return ended.stdout + ended.stderr


def script_of(document: str) -> str:
    """The one that a how-to shows."""
    (found,) = blocks(ROOT / "docs" / "howto" / document, "python")
    return found


def results(text: str) -> list[list[float]]:
    """Numbers behind the word `result`, by line."""
    return [json.loads(line.removeprefix("result ")) for line in text.splitlines() if line.startswith("result ")]


def result_of(folder: Path, name: str, *words: str) -> list[float]:
    """The same numbers of both workers of a run with that name."""
    run(folder, "-n", "2", "--seed", "5", "--name", name, *words)
    (first,), (second,) = (results((folder / f"runs/{name}/rank-{rank}.log").read_text()) for rank in (0, 1))
    assert first == second
    return first


def check_cases(library: str, folder: Path) -> None:
    """Parameters are equal on all workers, and those of a loop by hand where these do not depend on who is fast."""
    told = run(folder, "-n", "2", str(TRAININGS), library)
    cases = [json.loads(line.removeprefix("case ")) for line in told.splitlines() if line.startswith("case ")]
    assert len(cases) > 3
    for name, by_hand, inside in cases:
        for each in (by_hand, inside):
            assert each[0] == each[1], name
            assert torch.tensor(each).isfinite().all(), name
        if name != "solo":
            torch.testing.assert_close(torch.tensor(inside[0]), torch.tensor(by_hand[0]), rtol=1e-6, atol=1e-6)


def check_refused(folder: Path, script: str, words: str, **settings: Any) -> None:
    """Workers of `script` end with status 2 and a sentence with these words; `settings` are those of `run`."""
    (folder / "refused.py").write_text(script)
    output = run(folder, "-n", "2", "refused.py", status=2, **settings)
    assert words in output and "Traceback" not in output, output


def check_death(folder: Path, script: str, **settings: Any) -> None:
    """Rank 1 of `script` kills itself: the first sentence names it, and no traceback is printed."""
    (folder / "dying.py").write_text(script)
    output = run(folder, "-n", "2", "dying.py", status=1, **settings)
    sentences = [line for line in output.splitlines() if line.startswith("quorate: rank ")]
    assert sentences and re.search(r"rank 1 .*SIGKILL", sentences[0]), output
    assert "Traceback" not in output, output
