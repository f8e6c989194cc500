"""Workers in sentences: where they are in a mesh, and their ranks in the world where a wire is among some."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quorate.core.axes import Axes
from quorate.core.contracts import Wire
from quorate.core.errors import Mismatch, WireTimeout
from quorate.wire.failure import read_failure, report_failure
from quorate.wire.metered import Meter, Metered
from quorate.wire.naming import coordinates_in_words, named, named_at, note_axes, ranks_of_world
from quorate.wire.virtual.world import VirtualWorld


def alone(wire: Wire) -> Any:
    return wire.board


def test_without_a_mesh_ranks_are_ranks() -> None:
    (board,) = VirtualWorld(1).run(alone)
    assert named(board, [3, 1]) == "ranks 1 and 3" and named_at(board, 3, "h") == "rank 3 (host h)"
    assert coordinates_in_words(board, 0) == ""


def test_in_a_mesh_they_have_seats() -> None:
    (board,) = VirtualWorld(1).run(alone)
    for _ in range(2):  # as each worker says it
        note_axes(board, Axes(2, 3))
    assert named(board, [4]) == "rank 4 (replica 1, shard 1)"
    assert named(board, [3, 2]) == "ranks 2 (replica 0, shard 2) and 3 (replica 1, shard 0)"
    assert named_at(board, 5, "h") == "rank 5 (replica 1, shard 2; host h)"
    assert named(board, [6]) == "rank 6", "a server"
    report_failure(board, 4, "raised ValueError", "h")
    assert str(read_failure(board)) == "rank 4 (replica 1, shard 1; host h) raised ValueError"


def test_meshes_that_differ_name_nobody() -> None:
    (board,) = VirtualWorld(1).run(alone)
    note_axes(board, Axes(2, 2))
    note_axes(board, Axes(1, 4))
    note_axes(board, Axes(2, 2))
    assert named(board, [3]) == "rank 3"


def in_a_row(wire: Wire, cause: str) -> None:
    """The second replica's row: ranks 2 and 3, which the row calls 0 and 1."""
    note_axes(wire.board, Axes(2, 2))
    if wire.rank < 2:
        return
    row = Metered(wire.channel("row").group([2, 3]), Meter())
    assert ranks_of_world(row, [1, 0]) == [3, 2]
    if cause == "timeout":
        if wire.rank == 2:
            row.all_gather(torch.zeros(1)).wait(1.0)
        else:
            wire.board.wait(["never"], 5.0)
    elif wire.rank == 2:
        row.all_gather(torch.zeros(1)).wait()
    else:
        row.barrier().wait()


@pytest.mark.parametrize(
    ("cause", "kind", "words"),
    [
        (
            "timeout",
            WireTimeout,
            "rank 2 (replica 1, shard 0) waited 1 s for rank 3 (replica 1, shard 1) in all_gather torch.float32",
        ),
        (
            "mismatch",
            Mismatch,
            "rank 2 (replica 1, shard 0) all_gather torch.float32, rank 3 (replica 1, shard 1) barrier; ",
        ),
    ],
)
def test_a_wire_among_some_names_ranks_of_the_world(cause: str, kind: type[Exception], words: str) -> None:
    ends = VirtualWorld(4).outcomes(lambda wire: in_a_row(wire, cause))
    error = ends[2].error
    assert isinstance(error, kind) and words in str(error)
    if isinstance(error, WireTimeout):
        assert error.ranks == (3,)
