"""One contract for all boards: in memory, over a Unix socket, and in each kind of c10d store."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from quorate.core.contracts import Board
from quorate.core.errors import Mismatch, PeerFailed, WireTimeout
from quorate.wire.board import MemoryBoard, SocketBoard
from quorate.wire.board_server import BoardServer
from quorate.wire.failure import FAILED, read_failure, report_failure
from quorate.wire.store import Asker, NoAnswer, StoreBoard, _Call
from tests.support.kept_boards import kept_boards

Opener = Callable[[], Board]
"""Gives one more client of the same board."""

LIMIT = 240.0
"""Seconds after which a test's thread counts as stuck."""


def _memory(folder: Path, stack: ExitStack) -> Opener:
    board = MemoryBoard()
    return lambda: board


def _socket(folder: Path, stack: ExitStack) -> Opener:
    server = BoardServer(folder / "board")
    stack.callback(server.close)

    def open_one() -> Board:
        client = SocketBoard(server.path)
        stack.callback(client.close)
        return client

    return open_one


def _hash_store(folder: Path, stack: ExitStack) -> Opener:
    store = dist.HashStore()
    return lambda: StoreBoard(store)


def _tcp_store(folder: Path, stack: ExitStack) -> Opener:
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    stack.callback(lambda: server)  # kept until the test ends
    return lambda: StoreBoard(dist.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False))


def _prefix_store(folder: Path, stack: ExitStack) -> Opener:
    store = dist.PrefixStore("quorate", dist.HashStore())
    return lambda: StoreBoard(store)


def _file_store(folder: Path, stack: ExitStack) -> Opener:
    return lambda: StoreBoard(dist.FileStore(str(folder / "store"), -1))


def _kept(folder: Path, stack: ExitStack) -> Opener:
    boards = itertools.cycle(kept_boards(3, stack))
    return lambda: next(boards)


@pytest.fixture(params=[_memory, _kept, _socket, _hash_store, _tcp_store, _prefix_store, _file_store])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    with ExitStack() as stack:
        yield request.param(tmp_path, stack)


@pytest.fixture
def board(opener: Opener) -> Board:
    return opener()


def _at_once(*actions: Callable[[], object]) -> None:
    """Run the actions in threads that start together; raises if one is stuck."""
    gate = threading.Barrier(len(actions))

    def run(action: Callable[[], object]) -> None:
        gate.wait(LIMIT)
        action()

    threads = [threading.Thread(target=run, args=(action,), daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads)


class TestEveryBoard:
    """What `contracts.Board` promises."""

    def test_a_value_is_read_as_it_was_written(self, board: Board) -> None:
        for value in (b"one", b"", bytes(range(256)), b"x" * 100_000):
            board.set("key", value)
            assert board.get("key") == value

    def test_many_values_are_read_at_once(self, board: Board) -> None:
        board.set("a", b"1")
        board.set("empty", b"")
        board.set("with a sign", b"+2")
        assert board.get_all(["a", "none", "empty", "with a sign", "a"]) == [b"1", None, b"", b"+2", b"1"]
        assert board.get_all([]) == []

    def test_reading_what_is_not_there_returns_at_once(self, board: Board) -> None:
        assert board.get("nothing") is None

    def test_reading_what_was_deleted_returns_at_once(self, board: Board) -> None:
        board.set("key", b"x")
        board.delete("key")
        assert board.get("key") is None

    def test_all_clients_read_the_same(self, opener: Opener) -> None:
        first, second = opener(), opener()
        first.set("key", b"x")
        assert second.get("key") == b"x"

    def test_what_was_written_is_there_for_all_at_once(self, opener: Opener) -> None:
        first, second = opener(), opener()
        for turn in range(500):
            first.set(f"key/{turn}", b"x")
            assert second.get(f"key/{turn}") == b"x"
            first, second = second, first

    def test_a_counter_begins_at_0(self, opener: Opener) -> None:
        first, second = opener(), opener()
        assert [first.add("count"), second.add("count", 5), first.add("count", -7), second.add("count", 0)] == [
            1,
            6,
            -1,
            -1,
        ]

    def test_counters_share_no_key_with_values(self, board: Board) -> None:
        board.add("key", 3)
        assert board.get("key") is None
        board.set("key", b"x")
        assert board.add("key") == 4

    def test_no_count_is_lost(self, opener: Opener) -> None:
        boards = [opener() for _ in range(4)]

        def count(board: Board) -> None:
            for _ in range(25):
                board.add("count")

        _at_once(*(partial(count, board) for board in boards))
        assert boards[0].add("count", 0) == 100

    def test_swap_writes_only_over_what_was_expected(self, board: Board) -> None:
        assert not board.swap("key", b"other", b"no")
        assert board.get("key") is None
        assert board.swap("key", None, b"first")
        assert not board.swap("key", None, b"no")
        assert not board.swap("key", b"other", b"no")
        assert not board.swap("key", b"", b"no")
        assert board.swap("key", b"first", b"second")
        assert board.get("key") == b"second"

    def test_an_empty_value_is_a_value(self, board: Board) -> None:
        assert board.swap("key", None, b"")
        assert not board.swap("key", None, b"no")
        assert board.swap("key", b"", b"full")

    @pytest.mark.parametrize("equal", [False, True])
    def test_of_racing_swaps_one_wins(self, opener: Opener, equal: bool) -> None:
        boards = [opener() for _ in range(4)]
        for round_ in range(10):
            won: list[int] = []

            def race(rank: int, round_: int = round_, won: list[int] = won) -> None:
                if boards[rank].swap(f"lease/{round_}", None, b"same" if equal else b"%d" % rank):
                    won.append(rank)

            _at_once(*(partial(race, rank) for rank in range(4)))
            assert len(won) == 1
            assert boards[0].get(f"lease/{round_}") == (b"same" if equal else b"%d" % won[0])

    def test_racing_swaps_hand_on_every_value(self, opener: Opener) -> None:
        boards = [opener() for _ in range(3)]
        boards[0].set("count", b"0")

        def add_ten(board: Board) -> None:
            done = 0
            while done < 10:
                before = board.get("count")
                assert before is not None
                done += board.swap("count", before, b"%d" % (int(before) + 1))

        _at_once(*(partial(add_ten, board) for board in boards))
        assert boards[0].get("count") == b"30"

    def test_a_wait_ends_when_all_keys_are_written(self, opener: Opener) -> None:
        first, second = opener(), opener()
        seen: list[bytes | None] = []

        def wait() -> None:
            first.wait(["a", "b"], LIMIT)
            seen.extend([first.get("a"), first.get("b")])

        def write() -> None:
            second.set("a", b"1")
            second.swap("b", None, b"2")

        _at_once(wait, write)
        assert seen == [b"1", b"2"]

    def test_a_wait_for_what_is_there_returns_though_a_worker_failed(self, board: Board) -> None:
        board.set("a", b"1")
        report_failure(board, 1, "raised ValueError: no")
        board.wait(["a"], 0.0)

    def test_a_wait_names_what_is_missing(self, board: Board) -> None:
        board.set("a", b"1")
        with pytest.raises(WireTimeout, match='"b", "c"') as error:
            board.wait(["a", "b", "c"], 0.01)
        assert '"a"' not in str(error.value)

    def test_a_wait_does_not_hold_up_other_threads(self, board: Board) -> None:
        _at_once(lambda: board.wait(["key"], LIMIT), lambda: board.set("key", b"x"))

    def test_a_wait_ends_when_a_worker_fails(self, opener: Opener) -> None:
        first, second = opener(), opener()
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                first.wait(["never"], LIMIT)
            except PeerFailed as error:
                raised.append(error)

        _at_once(wait, lambda: report_failure(second, 2, "was killed by signal 9 (SIGKILL)", "h"))
        assert [str(error) for error in raised] == ["rank 2 (host h) was killed by signal 9 (SIGKILL)"]
        assert raised[0].ranks == (2,)  # type: ignore[attr-defined]

    def test_deleting_takes_every_key_with_the_prefix(self, opener: Opener) -> None:
        first, second = opener(), opener()
        for key in ("round/1/a", "round/1/b", "round/10", "round/2"):
            first.set(key, b"x")
        first.add("round/1/count", 4)
        second.delete("round/1/")
        assert [key for key in ("round/1/a", "round/1/b", "round/10", "round/2") if first.get(key)] == [
            "round/10",
            "round/2",
        ]
        assert first.add("round/1/count", 0) == 0

    def test_the_first_failure_stays(self, opener: Opener) -> None:
        first, second = opener(), opener()
        assert read_failure(first) is None
        assert report_failure(first, 2, "was killed by signal 9 (SIGKILL)", "h")
        assert not report_failure(second, 1, "exited with status 1", "h")
        failure = read_failure(second)
        assert isinstance(failure, PeerFailed)
        assert str(failure) == "rank 2 (host h) was killed by signal 9 (SIGKILL)"
        assert failure.ranks == (2,)

    def test_a_mismatch_is_told_as_it_is(self, board: Board) -> None:
        report_failure(board, 0, "rank 0 called a, rank 1 called b", kind="mismatch")
        failure = read_failure(board)
        assert isinstance(failure, Mismatch)
        assert str(failure) == "rank 0 called a, rank 1 called b"


@pytest.mark.parametrize("garbage", [b"\xff\xfe", b"[]", b"{}", b'{"rank": null, "host": "h", "reason": "r"}', b"3"])
def test_a_failure_that_cannot_be_read_is_one_all_the_same(garbage: bytes) -> None:
    board = MemoryBoard()
    board.set(FAILED, garbage)
    assert isinstance(read_failure(board), PeerFailed)


class _CannotList:
    """A store of a kind that does not know its keys."""

    def __init__(self) -> None:
        self._store = dist.HashStore()

    def __getattr__(self, name: str) -> object:
        if name == "list_keys":
            raise AttributeError(name)
        return getattr(self._store, name)


def test_a_store_that_cannot_list_its_keys_loses_those_written_here() -> None:
    board = StoreBoard(_CannotList())  # type: ignore[arg-type]
    board.set("round/1", b"x")
    board.swap("round/2", None, b"x")
    board.add("round/count")
    board.set("other", b"x")
    board.delete("round/")
    assert [board.get("round/1"), board.get("round/2"), board.get("other")] == [None, None, b"x"]
    assert board.add("round/count", 0) == 0


def test_a_store_whose_server_is_gone_is_a_failed_peer() -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    board = StoreBoard(dist.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False))
    board.set("key", b"x")
    del server
    with pytest.raises(PeerFailed, match="store of this run has ended"):
        board.get("key")


class _Silent:
    """A store that does not answer, as one behind a cable that was cut, until `answers` is set."""

    def __init__(self) -> None:
        self._store, self.answers = dist.HashStore(), threading.Event()
        self.answers.set()

    def __getattr__(self, name: str) -> object:
        def call(*arguments: object) -> object:
            self.answers.wait()
            return getattr(self._store, name)(*arguments)

        return call


def test_a_store_that_does_not_answer_is_waited_for_as_long_as_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    store = _Silent()
    board = StoreBoard(store, timeout=1.0)  # type: ignore[arg-type]
    board.set("key", b"x")
    store.answers.clear()
    for _ in range(2):  # the first waits from its own start; the second until the call itself has taken 1 s
        with pytest.raises(PeerFailed, match="store of this run has not answered for 1 s"):
            board.get("key")
    waits: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(_Call, "answer", lambda call, seconds: waits.append(seconds))
        for _ in range(20):
            with pytest.raises(PeerFailed, match="has not answered"):
                board.set("key", b"y")
        with pytest.raises(WireTimeout, match="key"):
            board.wait(["key"], 0.1)
    assert not waits, "who comes later is told at once"
    store.answers.set()
    value = None
    while value is None:
        with suppress(PeerFailed):
            value = board.get("key")
    assert value == b"x"


def test_a_call_that_was_given_up_before_it_began_is_never_made() -> None:
    began, may_end, made = threading.Event(), threading.Event(), list[str]()

    def hold() -> None:
        began.set()
        may_end.wait()

    asker = Asker(limit=30.0)
    with pytest.raises(NoAnswer):
        asker.ask(hold, seconds=0.01)
    assert began.wait(30.0)
    with pytest.raises(NoAnswer):
        asker.ask(made.append, "given up", seconds=0.01)
    may_end.set()
    asker.ask(made.append, "asked")
    assert made == ["asked"]


def test_a_wait_ends_in_its_own_time_where_the_store_does_not_answer() -> None:
    store = _Silent()
    board = StoreBoard(store, timeout=300.0)  # type: ignore[arg-type]
    store.answers.clear()
    with pytest.raises(WireTimeout):
        board.wait(["never"], 0.1)
    store.answers.set()
