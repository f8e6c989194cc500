"""Gangs of workers that a launcher starts one after the other agree on a name each, in a store that outlives them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from quorate.core.errors import WireTimeout
from quorate.launch.worker.gangs import name_of_gang
from quorate.wire.board import MemoryBoard


def names(board: MemoryBoard, size: int) -> list[str]:
    with ThreadPoolExecutor(size) as threads:
        tasks = [threads.submit(name_of_gang, board, rank, size, 10.0) for rank in reversed(range(size))]
        return [task.result() for task in tasks]


def test_each_gang_has_a_name_of_its_own() -> None:
    """Also where the one before was larger, or smaller."""
    board = MemoryBoard()
    gangs = [names(board, size) for size in (3, 3, 1, 2, 4)]
    assert all(len(set(gang)) == 1 for gang in gangs)
    assert len({gang[0] for gang in gangs}) == len(gangs)


def test_who_comes_alone_waits_for_its_own_gang() -> None:
    """Keys of the gang before have no effect."""
    board = MemoryBoard()
    names(board, 2)
    with pytest.raises(WireTimeout, match="rank 1 waited 0.2 s for rank 0 in quorate.join") as later:
        name_of_gang(board, 1, 2, 0.2)
    assert later.value.ranks == (0,)
    with pytest.raises(WireTimeout, match="rank 0 waited 0.2 s for ranks 1 and 2"):
        name_of_gang(board, 0, 3, 0.2)
