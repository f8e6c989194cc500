"""Meeting of the workers of one host whose launcher offers no board: rank 0 serves one on a Unix socket."""

from __future__ import annotations

import atexit
import os
import shutil
import time
from pathlib import Path

from quorate.core.contracts import Board
from quorate.core.errors import WireTimeout
from quorate.launch.worker.other_launchers import Seat
from quorate.wire.board import SocketBoard
from quorate.wire.board_server import BoardServer
from quorate.wire.socket_folder import find_socket_folder, make_socket_folder

_BOARD, _OPEN = "board", "open"
_LOOK_EVERY = 0.02


def meet_on_this_host(seat: Seat, timeout: float) -> tuple[Board, Path]:
    """The board of the workers that are started with this one, and the folder for their sockets.

    Nothing listens on the network. Raises `WireTimeout` where rank 0 does not come.
    """
    if seat.rank == 0:
        folder = make_socket_folder(seat.job)
        server = BoardServer(folder / _BOARD)
        (folder / _OPEN).touch()
        atexit.register(_close, server, folder, os.getpid())  # after the worker's own end, which is registered later
        return SocketBoard(server.path), folder
    until = time.monotonic() + timeout
    while True:
        served = find_socket_folder(seat.job)
        if served is not None and (served / _OPEN).exists():
            return SocketBoard(str(served / _BOARD)), served
        if time.monotonic() > until:
            raise WireTimeout(
                f"rank 0 of the {seat.size} workers that {seat.launcher} has started was not met on this host within "
                f"{timeout:g} s; if it runs, set MASTER_ADDR and MASTER_PORT to where it can listen"
            )
        time.sleep(_LOOK_EVERY)


def _close(server: BoardServer, folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
