"""A benchmark's workers under `quorate run --watch` on a terminal, with a browser's requests for the live page."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress

_ADDRESS = re.compile(rb"http://127\.0\.0\.1:\d+/[\w-]+/")
_EVERY = 1.0
"""Seconds between two requests, as the page makes them."""


def watched_lines(script: str, size: int, *arguments: str) -> list[str]:
    """The lines of JSON that rank 0 prints, while progress is drawn and the page is looked at.

    Raises `SystemExit` where the run fails, or where the page was never there.
    """
    ours, theirs = pty.openpty()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "quorate.cli.main", "run", "-n", str(size), "--watch", script, *arguments]
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        run = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=theirs, text=True)
        os.close(theirs)
        screen = _Screen(ours, run)
        watching = threading.Thread(target=screen.watch, daemon=True)
        watching.start()
        assert run.stdout is not None
        lines = [line for line in run.stdout if line.startswith(("{", "["))]
        run.wait()
        watching.join(5.0)
        os.close(ours)
    if run.returncode or not screen.answers:
        raise SystemExit(
            f"the workers of {script} failed, or nobody saw the page:\n{screen.seen.decode(errors='replace')}"
        )
    return lines


class _Screen:
    """Who looks at the terminal and the page."""

    def __init__(self, terminal: int, run: subprocess.Popen[str]) -> None:
        self._terminal, self._run = terminal, run
        self.seen = b""
        self.answers = 0

    def watch(self) -> None:
        """Until the run has ended."""
        asked = 0.0
        while self._run.poll() is None:
            if select.select([self._terminal], [], [], 0.1)[0]:
                with suppress(OSError):
                    self.seen += os.read(self._terminal, 2**16)
            address = _ADDRESS.search(self.seen)
            if address is not None and time.monotonic() - asked >= _EVERY:
                asked = time.monotonic()
                with suppress(OSError), urllib.request.urlopen(address[0].decode() + "state", timeout=5.0) as answer:
                    self.answers += bool(answer.read())
