"""The launcher's end of the connection to one host: ssh, and the agent behind it; and whether hosts are ready."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.core.installed import version_of
from quorate.launch.hosts.frames import MARK, BoardConnections, Pipes, in_thread
from quorate.launch.hosts.reach import Hosts, Place, ssh_words
from quorate.wire.board_frames import BadFrame

CONNECT_SECONDS = 30.0
LEAVE_SECONDS = 6.0
LOST = -int(signal.SIGKILL)
"""The status of a worker whose host is lost."""
_MOST_SAID_FIRST = 2**16
_LOOKS_FOR, _LOOK_EVERY = 2.0, 0.1
"""Seconds in which a file that was made here is seen on another host, where they have a file system in common."""


class Link:
    """One host of a run. `wrote` is called with the output of its workers: `out` or `err`, rank, bytes."""

    def __init__(self, place: Place, ssh: str, wrote: Callable[[str, int, bytes], None]) -> None:
        self.place, self._wrote = place, wrote
        self.statuses: dict[int, int] = {}
        """Exit statuses of ended workers, by rank."""
        self.lost: str | None = None
        """Why there is no connection any more."""
        self.about: Mapping[str, Any] = {}
        """The agent's description of itself."""
        self._board: str | None = None
        self._seen: queue.SimpleQueue[dict[str, str] | None] = queue.SimpleQueue()
        self._said: deque[str] = deque(maxlen=20)
        self._is_up, self._is_over = threading.Event(), threading.Event()
        self._refused: str | None = None
        self._is_leaving = False
        self._ssh = subprocess.Popen(
            ssh_words(ssh, place.host),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the workers, which are told by us
        )
        assert self._ssh.stdin is not None and self._ssh.stdout is not None
        self._pipes = Pipes(self._ssh.stdout.fileno(), self._ssh.stdin.fileno())
        self._connections = BoardConnections(self._pipes)
        self._errors = in_thread(self._keep_errors)
        in_thread(self._listen)

    # -- what the launcher does

    def connect(self, seconds: float = CONNECT_SECONDS) -> None:
        """Return when the agent is there. Raises `ConfigurationError`, which names the host."""
        host = self.place.host
        if not self._is_up.wait(seconds):
            self.close()
            raise ConfigurationError(f"host {host} cannot be reached by ssh: it has not answered for {seconds:g} s")
        if self.about:
            theirs, ours = self.about.get("version"), version_of("quorate")
            if theirs != ours:
                raise ConfigurationError(
                    f"host {host} has quorate {theirs}, but this host has {ours}; install the same version"
                )
            return
        status = self._ssh.wait()
        said = self._last_words() or f"ssh ended with status {status}"
        if status == 255:
            raise ConfigurationError(f"host {host} cannot be reached by ssh: {said}")
        raise ConfigurationError(f"quorate cannot be started on host {host} with {sys.executable}: {said}")

    def look(self, folder: str, files: Sequence[str], seconds: float = CONNECT_SECONDS) -> Mapping[str, str]:
        """The SHA-256 of those of the files that are there, below `folder`. Raises `ConfigurationError`."""
        self._pipes.send("look", json.dumps({"folder": folder, "files": list(files)}))
        try:
            seen = self._seen.get(timeout=seconds)
        except queue.Empty:
            raise ConfigurationError(f"host {self.place.host} has not answered for {seconds:g} s") from None
        if seen is None:
            raise ConfigurationError(f"host {self.place.host} {self.lost}")
        return seen

    def start(self, rank: int, words: Sequence[str], script: str | None, folder: str, env: Mapping[str, str]) -> None:
        """Let the agent start a worker there."""
        about = {"rank": rank, "words": list(words), "script": script, "folder": folder, "environment": dict(env)}
        self._board = self._board or env["QUORATE_BOARD"].removeprefix("unix:")
        self._pipes.send("start", json.dumps(about))

    def signal(self, rank: int, signum: int, *, to_group: bool) -> None:
        """Pass it on."""
        self._pipes.send("signal", rank, int(signum), int(to_group))

    def beat(self) -> None:
        """Say that the launcher is there."""
        self._pipes.send("beat")

    @property
    def refused(self) -> str | None:
        """Why a worker could not be started there."""
        return self._refused

    def leave(self) -> None:
        """Let the agent end when its last worker has ended."""
        self._is_leaving = True
        self._pipes.send("leave")

    def close(self, seconds: float = 0.0) -> None:
        """End the connection, unless the agent ends it within so many seconds; its remaining workers are killed."""
        self._is_leaving = True
        with suppress(subprocess.TimeoutExpired):
            self._ssh.wait(seconds)
        assert self._ssh.stdin is not None
        with suppress(OSError):
            self._ssh.stdin.close()
        try:
            self._ssh.wait(LEAVE_SECONDS if self.about else 0.1)
        except subprocess.TimeoutExpired:
            self._ssh.kill()
            self._ssh.wait()
        self._is_over.wait(LEAVE_SECONDS)
        assert self._ssh.stdout is not None
        self._ssh.stdout.close()

    # -- what comes from there

    def _listen(self) -> None:
        if self._skip_to_mark():
            with suppress(BadFrame):
                while (frame := self._pipes.next()) is not None:
                    self._take(frame)
        if not self._is_leaving:
            self._errors.join(1.0)
            host, said = self.place.host, self._last_words()
            self.lost = f"was lost: the connection to host {host} has ended{f' ({said})' if said else ''}"
        self._connections.close()
        self._seen.put(None)
        self._is_up.set()
        self._is_over.set()

    def _skip_to_mark(self) -> bool:
        """Return whether the agent has begun to speak; earlier output of a login shell is skipped."""
        said = b""
        while not said.endswith(MARK) and len(said) < _MOST_SAID_FIRST:
            byte = self._pipes.recv(1)
            if not byte:
                return False
            said += byte
        return said.endswith(MARK)

    def _take(self, frame: list[bytes]) -> None:
        match frame:
            case [b"out" | b"err" as kind, rank, data]:
                self._wrote(kind.decode(), int(rank), data)
            case [b"ended", rank, status]:
                self.statuses[int(rank)] = int(status)
            case [b"open", number]:
                self._open(int(number))
            case [b"seen", files]:
                self._seen.put(json.loads(files))
            case [b"refused", sentence]:
                self._refused = sentence.decode(errors="replace")
            case [b"hello", about]:
                self.about = json.loads(about)
                self._is_up.set()
            case _:
                self._connections.takes(frame)

    def _open(self, number: int) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(OSError):
            assert self._board is not None
            connection.connect(self._board)
        self._connections.add(number, connection)

    def _keep_errors(self) -> None:
        assert self._ssh.stderr is not None
        with self._ssh.stderr as source:
            for line in source:
                if line.strip():
                    self._said.append(line.decode(errors="replace").strip())

    def _last_words(self) -> str:
        self._errors.join(1.0)
        return self._said[-1].rstrip(".") if self._said else ""


def check_hosts(hosts: Hosts, script: str, folder: Path) -> None:
    """Raise `ConfigurationError`, which names the host, if a run of `script` into `folder` would fail.

    It would fail if a host cannot be reached, has another version of quorate, or lacks the same script at the
    same path. It would also fail if rank 0's host, which receives all records, has another folder than this machine.
    """
    with ExitStack() as stack:
        links = []
        for place in hosts.layout.places:
            link = Link(place, hosts.ssh, lambda kind, rank, data: None)
            stack.callback(link.close)
            links.append(link)
        for link in links:
            link.connect()
        for link in links:
            _check_script(link, script)
        _check_records(links[0], folder)


def _check_script(link: Link, script: str) -> None:
    here, host = os.getcwd(), link.place.host
    seen = link.look(here, [script]).get(script)
    if seen is None:
        where = "" if os.path.isabs(script) else f" in {here}"
        raise ConfigurationError(f"host {host} has no {script}{where}, where this machine has it; put it there, too")
    if seen != hashlib.sha256(Path(script).read_bytes()).hexdigest():
        raise ConfigurationError(f"host {host} has another {script} than this machine; put the same one there")


def _check_records(first: Link, folder: Path) -> None:
    kept_in = next(path for path in (folder, *folder.parents) if path.is_dir())
    with _mark(kept_in.resolve()) as mark:
        until = time.monotonic() + _LOOKS_FOR
        while mark.name not in first.look(str(mark.parent), [mark.name]):
            if time.monotonic() > until:
                raise ConfigurationError(
                    f"the records would be in {folder} on host {first.place.host}, which is not the folder of that "
                    f"name on {socket.gethostname()}. Start the comparison on {first.place.host}, or in a folder that "
                    "both have"
                )
            time.sleep(_LOOK_EVERY)


@contextmanager
def _mark(folder: Path) -> Iterator[Path]:
    """A file there that no other machine has."""
    path = folder / f".quorate-{secrets.token_hex(16)}"
    try:
        path.touch()
    except OSError as error:
        raise ConfigurationError(f"nothing can be written to {folder}: {error.strerror or error}") from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
