"""Names of workers in sentences: their ranks, with replica and shard where the model is in shards.

The key `mesh` on the board holds JSON, `[replicas, stages, shards, tensor]`, once a model was spread with workers of a
replica having neighbouring ranks. It holds `[]` if models of one run are spread differently.
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
    """Note that a model is spread over `axes`; every worker calls it."""
    sizes = json.dumps(axes.sizes).encode()
    if not board.swap(_MESH, None, sizes) and board.get(_MESH) != sizes:
        board.set(_MESH, b"[]")


def coordinates_in_words(board: Board, rank: int) -> str:
    """Return `replica 1, shard 0`; "" for a rank that is in no mesh, and where the board cannot be read."""
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
    """Return ranks in words, in a mesh with coordinates: `ranks 2 (replica 1, shard 0) and 3 (replica 1, shard 1)`."""
    in_order = sorted(ranks)
    coordinates = {rank: text for rank in in_order if (text := coordinates_in_words(board, rank))}
    if not coordinates:
        return ranks_in_words(in_order)
    words = [f"{rank} ({coordinates[rank]})" if rank in coordinates else str(rank) for rank in in_order]
    return f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words[:-1])} and {words[-1]}"


def namer(board: Board) -> Callable[[int], str]:
    """Return a function that calls `named` for one rank."""
    return lambda rank: named(board, [rank])


def named_at(board: Board, rank: int, host: str) -> str:
    """Return `rank 3 (host h)`; in a mesh `rank 3 (replica 1, shard 1; host h)`."""
    coordinates = coordinates_in_words(board, rank)
    return f"rank {rank} ({coordinates}; host {host})" if coordinates else f"rank {rank} (host {host})"


def ranks_of_world(wire: Wire, ranks: Iterable[int]) -> list[int]:
    """Convert `ranks` of a wire, which may connect some of the workers only, to ranks of the world."""
    inner: Any = wire
    while not hasattr(inner, "ranks"):
        inner = getattr(inner, "inner", None)
        if inner is None:
            return list(ranks)
    return [inner.ranks[rank] for rank in ranks]
