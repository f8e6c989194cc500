"""c10d on a board: the store's own semantics, and process groups that meet in it."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from quorate.core.contracts import Board
from quorate.core.errors import PeerFailed, WireTimeout
from quorate.wire.board import MemoryBoard
from quorate.wire.failure import report_failure
from quorate.wire.store import BoardStore, StoreBoard
from tests.support.processes import run_real_board


@pytest.fixture(params=["memory", "store"])
def board(request: pytest.FixtureRequest) -> Board:
    return MemoryBoard() if request.param == "memory" else StoreBoard(dist.HashStore())


def test_a_counter_is_read_like_any_key(board: Board) -> None:
    store = BoardStore(board, "here")
    assert [store.add("count", 2), store.add("count", 3)] == [2, 5]
    assert store.get("count") == b"5"
    assert store.check(["count"])


def test_compare_set_does_as_torchs_own(board: Board) -> None:
    for store in (BoardStore(board, "here"), dist.HashStore()):
        assert store.compare_set("key", "x", "no") == b"x"
        assert not store.check(["key"])
        assert store.compare_set("key", "", "one") == b"one"
        assert store.compare_set("key", "", "no") == b"one"
        assert store.compare_set("key", "one", "two") == b"two"
        assert store.get("key") == b"two"


def test_deleting_a_key_takes_no_other(board: Board) -> None:
    store = BoardStore(board, "here")
    store.set("key", "x")
    store.set("key2", "y")
    assert store.delete_key("key")
    assert not store.delete_key("key")
    assert store.get("key2") == b"y"


def test_prefixes_keep_stores_apart(board: Board) -> None:
    store, other = BoardStore(board, "one"), BoardStore(board, "other")
    store.set("key", "x")
    assert not other.check(["key"])
    assert dist.PrefixStore("p", store).check(["key"]) is False


def test_waiting_ends_at_the_time_named(board: Board) -> None:
    with pytest.raises(WireTimeout):
        BoardStore(board, "here").wait(["never"], timedelta(seconds=0.01))
    with pytest.raises(WireTimeout):
        BoardStore(board, "here", timeout=0.01).get("never")


def test_waiting_ends_when_a_worker_fails(board: Board) -> None:
    report_failure(board, 1, "was killed by signal 9 (SIGKILL)", "h")
    store = BoardStore(board, "here")
    with pytest.raises(PeerFailed, match=r"rank 1 \(host h\) was killed"):
        store.get("never")
    with pytest.raises(PeerFailed):
        dist.PrefixStore("p", store).wait(["never"])


def _group(board: Board, rank: int, size: int) -> dist.ProcessGroupGloo:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=20)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(BoardStore(board, "group"), rank, size, options)


def _sum_of_ranks(board: Board, rank: int, size: int) -> list[float]:
    x = torch.full((3,), float(rank + 1))
    _group(board, rank, size).allreduce([x]).wait()  # type: ignore[attr-defined]
    board.set(f"done/{rank}", b"1")
    board.wait([f"done/{peer}" for peer in range(size)], 20.0)
    return x.tolist()


def test_a_process_group_meets_in_it() -> None:
    assert run_real_board(2, _sum_of_ranks) == [[3.0] * 3] * 2


def _group_of_one_that_comes(board: Board, rank: int, size: int) -> str:
    if rank == 1:
        board.wait(["begins"], 20.0)
        report_failure(board, 1, "was killed by signal 9 (SIGKILL)", "h")
        return ""
    board.set("begins", b"1")
    with pytest.raises(PeerFailed) as error:
        _group(board, rank, size)
    return str(error.value)


def test_a_process_group_that_lost_a_member_is_told_at_once() -> None:
    assert run_real_board(2, _group_of_one_that_comes) == ["rank 1 (host h) was killed by signal 9 (SIGKILL)", ""]
