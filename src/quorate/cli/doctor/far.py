"""Another host, asked over ssh: starts `far_end` there and talks to it through its stdin and stdout."""

from __future__ import annotations

import json
import select
import shlex
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from quorate.cli.doctor import far_end
from quorate.cli.doctor.judged import OLD_PYTHON
from quorate.cli.doctor.software import OLDEST_PYTHON
from quorate.cli.ssh import ssh_here

BEGINS_WITHIN, ANSWERS_WITHIN = 30.0, 15.0
"""Seconds."""
_PROGRAM = """\
import sys
if sys.version_info < (3, 8):
    sys.exit("{old} %d.%d.%d, and Quorate needs {oldest} or later" % sys.version_info[:3])
exec(compile(sys.stdin.buffer.read({size}), 'far_end', 'exec'))
"""
"""Every Python understands it, however old."""
_HERE = ("localhost", "127.0.0.1")


def words_on(host: str, command: str) -> list[str]:
    """Return the words that run a shell command on a host: over ssh (or QUORATE_SSH), except on this one."""
    if host in (*_HERE, socket.gethostname()):
        return ["sh", "-c", command]
    ssh = shlex.split(ssh_here())
    return [*ssh, "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host, shlex.join(["sh", "-c", command])]


class Far:
    """A connection to `far_end` on one host. Raises `OSError`, with a reason, where the host cannot be asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        text = Path(far_end.__file__).read_bytes()
        program = _PROGRAM.format(size=len(text), old=OLD_PYTHON, oldest=".".join(map(str, OLDEST_PYTHON)))
        here = shlex.quote(sys.executable)
        command = f"p={here}; [ -x $p ] || p=python3; exec $p -u -c {shlex.quote(program)}"
        self._process = subprocess.Popen(
            words_on(name, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        self._unread, self._unsent = b"", text

    def ask(self, do: str, within: float = ANSWERS_WITHIN, **arguments: object) -> dict[str, Any]:
        """Ask `far_end`; return its answer. Raises `OSError` for a failure, or after `within` seconds."""
        begun, self._unsent = self._unsent, b""
        self._write(begun + json.dumps({"do": do, **arguments}).encode() + b"\n")
        until = time.monotonic() + within
        answer: Any = None
        while not isinstance(answer, dict):  # a shell may greet first
            with suppress(ValueError):
                answer = json.loads(self._line(until, within))
        if "failed" in answer:
            raise OSError(str(answer["failed"]))
        return answer

    def close(self) -> None:
        """Close the connection and end the process."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[self._process.stdin.write(remaining) or 0 :]
        except BrokenPipeError:
            raise OSError(self._why()) from None

    def _line(self, until: float, within: float) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise OSError(f"no answer within {within:g} s")
            more = self._process.stdout.read(1 << 16)
            if not more:
                raise OSError(self._why())
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _why(self) -> str:
        assert self._process.stderr is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        said = b""
        while select.select([self._process.stderr], [], [], 0.1)[0]:
            more = self._process.stderr.read(1 << 16)
            if not more:
                break
            said += more
        lines = said.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else f"it ended with status {self._process.poll()}"
