"""Workers in sentences: by their ranks in the world, and where the model is in shards by replica and shard.

The key `mesh` on the board holds JSON, `[replicas, stages, shards, tensor]`, once a model was spread with workers of a
replica having neighbouring ranks; `[]` where models of one run are spread in different ways.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from quorate.core.axes import Axes
from quorate.core.contracts import Board, Wire
from quorate.core.errors import QuorateError, ranks_in_words

_MESH = "mesh"


def note_axes(board: Board, axes: Axes) -> None:
    """A model is spread over `axes`; every worker says so."""
    said = json.dumps(axes.sizes).encode()
    if not board.swap(_MESH, None, said) and board.get(_MESH) != said:
        board.set(_MESH, b"[]")


def seat_in_words(board: Board, rank: int) -> str:
    """`replica 1, shard 0`; nothing for a rank that is in no mesh, and where the board cannot say."""
    with suppress(QuorateError, OSError, ValueError, TypeError):
        written = board.peek(_MESH)
        replicas, stages, shards, tensor = json.loads(written or b"[]") or (0, 0, 0, 0)
        if 0 <= rank < replicas * stages * shards * tensor:
            cell, part = divmod(rank, tensor)
            line, shard = divmod(cell, shards)
            replica, stage = divmod(line, stages)
            words = [f"replica {replica}"]
            words += [f"stage {stage}"] * (stages > 1)
            words += [f"shard {shard}"] * (shards > 1 or stages == 1)
            return ", ".join([*words, *[f"part {part}"] * (tensor > 1)])
    return ""


def named(board: Board, ranks: Iterable[int]) -> str:
    """As `ranks_in_words`; of a mesh as `ranks 2 (replica 1, shard 0) and 3 (replica 1, shard 1)`."""
    some = sorted(ranks)
    seats = {rank: seat for rank in some if (seat := seat_in_words(board, rank))}
    if not seats:
        return ranks_in_words(some)
    words = [f"{rank} ({seats[rank]})" if rank in seats else str(rank) for rank in some]
    return f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words[:-1])} and {words[-1]}"


def namer(board: Board) -> Callable[[int], str]:
    """`named` of one rank."""
    return lambda rank: named(board, [rank])


def named_at(board: Board, rank: int, host: str) -> str:
    """`rank 3 (host h)`; of a mesh `rank 3 (replica 1, shard 1; host h)`."""
    seat = seat_in_words(board, rank)
    return f"rank {rank} ({seat}; host {host})" if seat else f"rank {rank} (host {host})"


def ranks_of_world(wire: Wire, ranks: Iterable[int]) -> list[int]:
    """What `ranks` of a wire, which may be among some of the workers, are among all."""
    inner: Any = wire
    while not hasattr(inner, "members"):
        inner = getattr(inner, "inner", None)
        if inner is None:
            return list(ranks)
    return [inner.members[rank] for rank in ranks]
