"""Boards that several workers keep copies of, all in this process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from quorate.wire.real.encryption import Encryption
from quorate.wire.real.kept_board import KeptBoard
from quorate.wire.replicated.limits import Limits

KEY = b"the key of a run"


def kept_boards(
    size: int,
    stack: ExitStack,
    *,
    silence: float = 5.0,
    values: Mapping[str, bytes] | None = None,
    is_encrypted: bool = False,
) -> list[KeptBoard]:
    """One for each of `size` workers."""
    boards = [
        KeptBoard(
            rank,
            size,
            "127.0.0.1",
            KEY,
            Limits(silence),
            20.0,
            encryption=Encryption() if is_encrypted else None,
        )
        for rank in range(size)
    ]
    for rank, board in enumerate(boards):
        others = {peer: one.address for peer, one in enumerate(boards) if peer != rank}
        board.begin(others, values or {})
    for board in boards:
        stack.callback(board.close)
    return boards
