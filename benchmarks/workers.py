"""Starting the workers of a benchmark with `quorate run`, and reading what the first one says."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator


def json_lines(script: str, size: int, *arguments: str, options: tuple[str, ...] = ()) -> Iterator[str]:
    """The lines of JSON that rank 0 of `script` prints. Raises `SystemExit` where the run fails, or prints none.

    `options` are those of `quorate run`. What the workers say beside it goes to a file: a full pipe would stop them.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as aside:
        command = [sys.executable, "-m", "quorate.cli.main", "run", "-n", str(size), *options, script, *arguments]
        count = 0
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=aside, text=True) as run:
            assert run.stdout is not None
            for line in run.stdout:
                if line.startswith(("{", "[")):
                    count += 1
                    yield line
        aside.seek(0)
        if run.returncode:
            raise SystemExit(f"the workers of {script} failed:\n{aside.read()}")
        if not count:
            raise SystemExit(f"the workers of {script} ended with status 0 and printed no figure:\n{aside.read()}")
