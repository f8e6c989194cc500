"""Notes on the board about options of the run that its script uses, which the launcher reads at the end."""

from __future__ import annotations

from typing import Literal

from quorate.core.contracts import Board

Part = Literal["strategy", "mesh"]
_PARTS: tuple[Part, ...] = ("strategy", "mesh")


def note_used(board: Board, part: Part) -> None:
    """Note that a worker uses the strategy or the mesh of the run."""
    board.set(f"used/{part}", b"1")


def is_used(board: Board, part: Part) -> bool:
    """Whether some worker uses it."""
    return board.get(f"used/{part}") is not None


def pass_on_used(source: Board, target: Board) -> None:
    """Copy the notes at `source` to `target`."""
    for part in _PARTS:
        if source.peek(f"used/{part}") is not None and not is_used(target, part):
            note_used(target, part)
