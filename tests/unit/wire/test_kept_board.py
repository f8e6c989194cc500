"""A board that is kept by several workers, when some of them are there no more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorate.core.contracts import Message
from quorate.core.errors import PeerFailed
from quorate.wire.boxes import Inbox
from quorate.wire.failure import allow_going_on, report_failure
from quorate.wire.members import read_deaths
from quorate.wire.real.endpoint import Endpoint
from quorate.wire.real.kept_board import KeptBoard
from quorate.wire.real.works import ReceiveWork
from tests.support.kept_boards import kept_boards
from tests.support.launching import until

USES: dict[str, Callable[[KeptBoard], object]] = {
    "get": lambda board: board.get("k"),
    "peek": lambda board: board.peek("k"),
    "set": lambda board: board.set("k", b""),
    "wait": lambda board: board.wait(["never"], 200.0),
}


def used_again_and_again(board: KeptBoard, use: str) -> None:
    while True:
        USES[use](board)


@pytest.mark.parametrize("use", USES)
def test_without_a_majority_it_is_of_no_use(use: str) -> None:
    with ExitStack() as stack:
        last, *others = kept_boards(3, stack)
        last.set("k", b"1")
        for board in others:
            board._lines.close()
        with pytest.raises(PeerFailed, match="cannot go on without a majority") as caught:
            used_again_and_again(last, use)
        assert caught.value.ranks == (1, 2)


@pytest.mark.parametrize("use", ["peek", "set"])
def test_who_is_left_behind_says_why_the_run_has_failed(use: str) -> None:
    """Of three the first dies, the second says so and leaves: the third has no majority, yet knows the reason."""
    with ExitStack() as stack:
        first, second, third = kept_boards(3, stack, silence=1.0)
        report_failure(second, 0, "was killed", host="h")
        first._lines.close()
        until(lambda: third.peek("failed") is not None)
        second._lines.close()
        with pytest.raises(PeerFailed, match=r"^rank 0 \(host h\) was killed$") as caught:
            used_again_and_again(third, use)
        assert caught.value.ranks == (0,)


def test_the_majority_buries_who_has_ended_and_goes_on() -> None:
    with ExitStack() as stack:
        first, *others = kept_boards(3, stack)
        for board in (first, *others):
            allow_going_on(board, 3, name="t")
        first._lines.close()
        until(lambda: bool(read_deaths(others[0])))
        assert [death.in_words for death in read_deaths(others[0])] == ["rank 0 (host virtual) has ended"]
        others[1].set("k", b"after")
        assert others[0].get("k") == b"after"


def test_what_has_come_is_of_no_use_either() -> None:
    """Else a worker that has always something to do would never learn it."""

    def check() -> None:
        raise PeerFailed("cut off")

    inbox = Inbox()
    endpoint: Any = SimpleNamespace(inbox=inbox, check=check)
    work = ReceiveWork(cast(Endpoint, endpoint), 1, "t", [])
    inbox.put(1, "t", Message())
    with pytest.raises(PeerFailed, match="cut off"):
        work.wait()
