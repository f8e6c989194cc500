"""Starting the workers of a benchmark with `quorate run`, and reading what the first one says."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator


def json_lines(script: str, size: int, *arguments: str, options: tuple[str, ...] = ()) -> Iterator[str]:
    """The lines of JSON that rank 0 of `script` prints. Raises `SystemExit` where the run fails.

    `options` are those of `quorate run`.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "quorate.cli.main", "run", "-n", str(size), *options, script, *arguments]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            assert run.stderr is not None
            yield from (line for line in run.stdout if line.startswith(("{", "[")))
            said = run.stderr.read()
        if run.returncode:
            raise SystemExit(f"the workers of {script} failed:\n{said}")
