"""`python -m quorate.launch.hosts.agent`: starts the workers of one host for a launcher elsewhere, at its own stdin.

No worker, and no process that a worker has started in its process group, outlives the agent. The agent ends with the
connection to its launcher, or when it has heard nothing from it for `SILENCE` seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from quorate.core.installed import version_of
from quorate.launch.hosts.frames import BEAT, MARK, BoardConnections, Pipes, in_thread
from quorate.launch.local.children import Leash, signal_group
from quorate.launch.local.orphans import Guard
from quorate.launch.local.process_group import LAST_CALL
from quorate.launch.local.processes import free_port
from quorate.wire.board_frames import BadFrame
from quorate.wire.socket_folder import make_socket_folder

SILENCE = 15 * BEAT
_CHUNK = 2**16
_LOOK_EVERY = 0.02


class Agent:
    """The agent of one host, for one run."""

    def __init__(self, launcher: Pipes) -> None:
        self._launcher = launcher
        self._frames: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._heard = time.monotonic()
        self._is_stopped = self._is_leaving = False
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._leash, self._guard = Leash(), Guard()
        self._sockets = make_socket_folder()
        self._board = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connections = BoardConnections(launcher)

    def run(self) -> None:
        """Return at the end, whichever side has ended it."""
        self._board.bind(str(self._sockets / "board"))
        self._board.listen(1024)
        in_thread(self._accept)
        in_thread(self._listen)
        try:
            self._say_hello()
            while not (self._is_leaving and not any(thread.is_alive() for thread in self._threads)):
                try:
                    frame = self._frames.get(timeout=_LOOK_EVERY)
                except queue.Empty:
                    if time.monotonic() - self._heard > SILENCE and not self._is_stopped:
                        return
                    continue
                if frame is None:
                    return
                self._do(frame)
        finally:
            self._end()

    def _say_hello(self) -> None:
        about = {
            "version": version_of("quorate"),
            "host": socket.gethostname(),
            "address": (os.environ.get("SSH_CONNECTION", "").split() or [""] * 3)[2:][0],
            "port": free_port(),
        }
        self._launcher.send("hello", json.dumps(about))

    def _do(self, frame: list[bytes]) -> None:
        match frame:
            case [b"start", about]:
                self._start(json.loads(about))
            case [b"look", about]:
                self._look(json.loads(about))
            case [b"signal", rank, number, to_group]:
                self._signal(int(rank), int(number), to_group == b"1")
            case [b"leave"]:
                self._is_leaving = True

    def _look(self, about: dict[str, Any]) -> None:
        """Send a listing of files; where folders belong to another host, it updates this host's view of them."""
        folder, seen = Path(about["folder"]), {}
        for name in about["files"]:
            with suppress(OSError):
                os.listdir((folder / name).parent)
                seen[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        self._launcher.send("seen", json.dumps(seen))

    def _start(self, about: dict[str, Any]) -> None:
        """In the main thread: the kernel ends workers with the thread that started them."""
        rank, folder, words = int(about["rank"]), str(about["folder"]), list(about["words"])
        try:
            os.chdir(folder)
            if about["script"] is not None and not Path(about["script"]).is_file():
                raise FileNotFoundError(f"there is no script {about['script']} in {folder}")
            Path(about["environment"]["QUORATE_RUN"]).mkdir(parents=True, exist_ok=True)
            out = os.pipe()
            err = os.pipe() if rank == 0 else out  # only what is shown is kept apart
            environment = {**os.environ, **about["environment"], "QUORATE_BOARD": f"unix:{self._sockets / 'board'}"}
            child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out[1], stderr=err[1], **self._leash.options(environment)
            )
        except OSError as error:
            reason = str(error) if error.filename is None else f"{error.filename}: {error.strerror}"
            self._launcher.send("refused", reason)
            return
        ours = [("out", rank, out[0])] if err == out else [("out", rank, out[0]), ("err", rank, err[0])]
        for _, written in {out, err}:
            os.close(written)
        self._guard.begun(child.pid)
        self._children[rank] = child
        pumps = [in_thread(self._pump, *pump) for pump in ours]
        self._threads.append(in_thread(self._attend, rank, child, pumps))

    def _attend(self, rank: int, child: subprocess.Popen[bytes], pumps: list[threading.Thread]) -> None:
        status = child.wait()
        signal_group(child.pid, signal.SIGTERM)
        for pump in pumps:
            pump.join(1.0)  # what it has started may have its output still
        self._launcher.send("ended", rank, status)
        until = time.monotonic() + LAST_CALL
        while signal_group(child.pid, 0):
            if time.monotonic() > until:
                signal_group(child.pid, signal.SIGKILL)
                break
            time.sleep(_LOOK_EVERY)
        self._guard.over(child.pid)

    def _pump(self, kind: str, rank: int, source: int) -> None:
        with suppress(OSError):
            while piece := os.read(source, _CHUNK):
                self._launcher.send(kind, rank, piece)
        os.close(source)

    def _signal(self, rank: int, number: int, to_group: bool) -> None:
        self._is_stopped = number == signal.SIGSTOP
        child = self._children.get(rank)
        if child is None or child.poll() is not None:
            return
        if not (to_group and signal_group(child.pid, number)):
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)

    def _end(self) -> None:
        """Kill the remaining workers."""
        for child in self._children.values():
            signal_group(child.pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                child.kill()
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(LAST_CALL)
        self._guard.__exit__(None, None, None)
        shutil.rmtree(self._sockets, ignore_errors=True)

    # -- the launcher, and the board that it has

    def _listen(self) -> None:
        with suppress(BadFrame):
            while (frame := self._launcher.next()) is not None:
                self._heard = time.monotonic()
                if not self._connections.takes(frame):
                    self._frames.put(frame)
        self._frames.put(None)

    def _accept(self) -> None:
        number = 0
        while True:
            connection, _ = self._board.accept()
            number += 1
            self._launcher.send("open", number)
            self._connections.add(number, connection)


def main() -> None:
    """Serve the launcher at stdin and stdout, which nothing else may write to."""
    for signum in (signal.SIGINT, signal.SIGHUP):  # workers would inherit it if they were ignored
        signal.signal(signum, lambda number, frame: None)
    launcher = Pipes(os.dup(0), os.dup(1))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    launcher.sendall(MARK)
    agent = Agent(launcher)
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(143))
    agent.run()
    os._exit(0)


if __name__ == "__main__":
    main()
