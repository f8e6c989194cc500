"""The socket half of boards: who may come in, what garbage costs, what a client learns when the launcher ends."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from quorate.core.contracts import Board
from quorate.core.errors import ConfigurationError, Mismatch, PeerFailed, WireTimeout
from quorate.wire.board import SocketBoard
from quorate.wire.board_frames import LIMIT, BadFrame, read_frame, write_frame
from quorate.wire.board_server import BoardServer
from tests.support.launching import until
from tests.support.processes import run_real_board

T = TypeVar("T")
LIMIT_SECONDS = 240.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BoardServer]:
    server = BoardServer(tmp_path / "board")
    yield server
    server.close()


@pytest.fixture
def board(server: BoardServer) -> Iterator[SocketBoard]:
    board = SocketBoard(server.path)
    yield board
    board.close()


def _connect(server: BoardServer) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(LIMIT_SECONDS)
    stream.connect(server.path)
    return stream


def test_only_this_user_can_reach_it(tmp_path: Path) -> None:
    server = BoardServer(tmp_path / "made" / "board")
    try:
        assert stat.S_IMODE(os.stat(tmp_path / "made").st_mode) == 0o700
        assert stat.S_IMODE(os.stat(server.path).st_mode) == 0o600
    finally:
        server.close()
    assert not os.path.exists(server.path)


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigurationError, match="open to other users"):
        BoardServer(tmp_path / "board")


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="100 bytes"):
        BoardServer(tmp_path / ("x" * 100))


def test_what_clients_write_is_on_the_launchers_board(server: BoardServer, board: SocketBoard) -> None:
    board.set("from/client", b"1")
    server.board.set("from/launcher", b"2")
    assert (server.board.get("from/client"), board.get("from/launcher")) == (b"1", b"2")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 1000,
        struct.pack(">I", LIMIT + 1),
        struct.pack(">II", 4, 100),
        struct.pack(">I", 3) + b"abc",
        struct.pack(">II", 7, 3) + b"jmp",
        struct.pack(">II", 11, 3) + b"get" + struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">II", 8 + 3 + 1 + 4 + 1, 3) + b"add" + struct.pack(">I", 1) + b"k" + struct.pack(">I", 1) + b"x",
        struct.pack(">II", 8 + 3 + 1, 3) + b"get" + struct.pack(">I", 1) + b"\xff",
    ],
)
def test_garbage_ends_its_own_connection_alone(server: BoardServer, board: SocketBoard, garbage: bytes) -> None:
    board.set("key", b"x")
    with _connect(server) as stream:
        stream.sendall(garbage)
        with suppress(ConnectionResetError):  # where some of the garbage was not even read
            assert stream.recv(100) == b""
    assert board.get("key") == b"x"


def test_a_frame_that_is_cut_off_ends_its_own_connection_alone(server: BoardServer, board: SocketBoard) -> None:
    with _connect(server) as stream:
        stream.sendall(struct.pack(">I", 100) + b"ab")
    board.set("key", b"x")
    assert board.get("key") == b"x"


def test_a_claimed_length_costs_no_memory(server: BoardServer, board: SocketBoard) -> None:
    board.get("warm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    streams = [_connect(server) for _ in range(20)]
    for stream in streams:
        stream.sendall(struct.pack(">I", LIMIT) + b"x")
        board.get("in between")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    for stream in streams:
        stream.close()
    assert grown < 32 * 1024, "kilobytes; twenty frames of 64 MiB were announced"


def test_a_value_too_long_is_refused_and_the_connection_lives(board: SocketBoard) -> None:
    board.set("long", b"x" * (LIMIT // 8))
    with pytest.raises(ConfigurationError, match="too long for the board"):
        board.set("longer", b"x" * LIMIT)
    assert len(board.get("long") or b"") == LIMIT // 8


def test_a_lost_launcher_is_a_failed_peer(server: BoardServer, board: SocketBoard) -> None:
    board.set("key", b"x")
    server.close()
    for ask in (lambda: board.get("key"), lambda: board.get("key"), lambda: board.wait(["never"], LIMIT_SECONDS)):
        with pytest.raises(PeerFailed, match="launcher has ended"):
            ask()


def test_a_peek_asks_only_when_its_keys_were_written(server: BoardServer, board: SocketBoard) -> None:
    requests: list[list[bytes]] = []
    answer, other = server._answer, SocketBoard(server.path)

    def counted(request: list[bytes]) -> list[bytes]:
        requests.append(request)
        return answer(request)

    server._answer = counted  # type: ignore[method-assign]
    assert board.peek_all(["failed", "gone"]) == [None, None]
    assert [board.peek("failed") for _ in range(100)] == [None] * 100
    other.set("something else", b"1")
    board.peek_all(["failed", "gone"])
    assert [request[0] for request in requests] == [b"get all", b"get all", b"set"]
    writes: list[Callable[[], object]] = [
        lambda: other.swap("gone", None, b"1"),
        lambda: other.set("gone", b"2"),
        lambda: server.board.set("gone", b"3"),  # by the launcher itself
        lambda: other.delete("go"),
    ]
    for write in writes:
        write()
        assert board.peek_all(["failed", "gone"]) == [None, other.get("gone")]
    other.close()


def test_peeks_of_many_combinations_keep_bounded_memory(board: SocketBoard) -> None:
    for number in range(1000):
        board.peek(f"left/{number}")
    assert len(board._peeked) <= 256


def test_a_peek_notices_the_end_of_the_launcher(server: BoardServer, board: SocketBoard) -> None:
    assert board.peek("failed") is board.peek("failed") is None
    server.close()
    with pytest.raises(PeerFailed, match="launcher has ended"):
        board.peek("failed")
    assert not list(Path(server.path).parent.iterdir())


def test_a_wait_ends_when_the_launcher_does(server: BoardServer, board: SocketBoard) -> None:
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            board.wait(["never"], 60.0)
        except PeerFailed as error:
            raised.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    until(lambda: server.accepted >= 2, "the waiting thread's own")
    server.close()
    waiting.join(LIMIT_SECONDS)
    assert [str(error) for error in raised] == ["the launcher has ended"]


def _serve_and_be_stopped(board: Board, path: str, rank: int) -> None:
    """Rank 0 is a launcher; rank 1 stops it, and waits for a key on its board."""
    if rank == 0:
        server = BoardServer(path)
        board.set("launcher", b"%d" % os.getpid())
        board.wait(["over"], LIMIT_SECONDS)
        server.close()
        return
    board.wait(["launcher"], LIMIT_SECONDS)
    launcher = int(board.get("launcher") or b"")
    client = SocketBoard(path)
    client.set("key", b"x")
    os.kill(launcher, signal.SIGSTOP)
    try:
        with pytest.raises(WireTimeout, match='"never"'):
            client.wait(["never"], 0.1)
    finally:
        os.kill(launcher, signal.SIGCONT)
        board.set("over", b"1")


def test_a_stopped_launcher_does_not_outlast_a_timeout(tmp_path: Path) -> None:
    run_real_board(2, partial(_with_path, _serve_and_be_stopped, str(tmp_path / "board")), timeout=LIMIT_SECONDS)


def _fork_and_count(board: Board, path: str, rank: int) -> int:
    client = SocketBoard(path)
    client.set("key", b"parent")
    child = os.fork()
    if child == 0:
        os._exit(0 if client.get("key") == b"parent" and client.add("count") == 1 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return client.add("count")


def test_a_forked_process_has_a_connection_of_its_own(server: BoardServer) -> None:
    assert run_real_board(1, partial(_with_path, _fork_and_count, server.path), timeout=LIMIT_SECONDS) == [2]
    assert server.accepted == 2


def _with_path(task: Callable[[Board, str, int], T], path: str, board: Board, rank: int, size: int) -> T:
    return task(board, path, rank)


def test_frames_come_out_as_they_went_in() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for parts in ([], [b""], [b"a", b"", b"c" * 1000]):
            write_frame(ours, parts)
            assert read_frame(theirs) == parts
        with pytest.raises(BadFrame, match="too long"):
            write_frame(ours, [b"x" * LIMIT])
        ours.close()
        assert read_frame(theirs) is None


def _run_out_of_descriptors(_: Board, path: str, rank: int) -> None:
    server = BoardServer(Path(path))
    board = SocketBoard(server.path)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # and free what tests before have left
    with ExitStack() as stack:
        several = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in range(64)]
        with socket.socket() as free:
            lowest = free.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        for late in several:
            late.settimeout(LIMIT_SECONDS)
            late.connect(server.path)
        with pytest.raises(Mismatch, match="as many open files .*ulimit -n"):
            board.wait(["never"], LIMIT_SECONDS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        write_frame(several[-1], [b"get", b"never"])
        assert read_frame(several[-1]) == []
    board.close()
    server.close()


def test_a_launcher_without_free_descriptors_says_so_and_goes_on_accepting(tmp_path: Path) -> None:
    """In a process of its own, in which nothing else frees a descriptor."""
    run_real_board(1, partial(_with_path, _run_out_of_descriptors, str(tmp_path / "board")), timeout=LIMIT_SECONDS)
