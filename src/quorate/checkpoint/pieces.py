"""Tensors with some rows of larger ones: their marks, and the files of several shards as one tree again.

A model in shards is kept shard by shard. A reader, as one of any number of shards or as none, puts together the rows
that it holds itself. Other rows are not read, so no worker needs memory for the full tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from quorate.core.axes import TENSOR, rows_of
from quorate.core.errors import CheckpointError
from quorate.core.local_tensor import as_piece_of, is_sharded, local
from quorate.core.vectors import Flat, Layout, bare_layout, header_in

_ROWS = "quorate_rows"


Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, config=ConfigDict(strict=True))
class Piece:
    """Which rows of a tensor a piece has; where several workers compute layers together, of which part of the tensor.

    Files name the first two fields, or all six. Raises `ValueError` for invalid numbers.
    """

    first: Count
    """Its first row."""
    count: Count
    """The rows of the tensor, or of the part."""
    dim: Annotated[int, Field(ge=-1)] | None = None
    """The dimension along which the tensor is cut into parts; -1: each part is all of it; None: it has no parts."""
    runs: Count = 0
    """Runs that are cut one by one: 3, where query, key and value lie in one tensor."""
    part: Count = 0
    parts: Count = 0

    def __post_init__(self) -> None:
        if self.dim is not None and not (self.runs and self.part < self.parts):
            raise ValueError("it is no part of a tensor")

    @property
    def as_json(self) -> list[int]:
        """The numbers in files."""
        numbers = list(astuple(self))
        return numbers[:2] if self.dim is None else numbers

    @property
    def whole(self) -> Piece:
        """The numbers that all pieces of the tensor share. The last part may have fewer rows than the others."""
        return replace(self, first=0, part=0, count=0 if self.dim == 0 else self.count)


def piece_from(numbers: Any) -> Piece:
    """Return the piece that a file names. Raises `ValueError` for anything else."""
    try:
        return Piece(*numbers)
    except (TypeError, ValueError):
        raise ValueError(f"{numbers!r} are no rows") from None


def with_rows(x: Tensor, piece: Piece) -> Tensor:
    """Return `x`, marked as this piece of another tensor. Raises `ValueError` where the numbers do not fit."""
    if not x.dim() or piece.first + x.shape[0] > max(piece.first, piece.count) or (piece.dim or 0) >= x.dim():
        raise ValueError(f"{tuple(x.shape)} is not the shape of the rows {piece.as_json}")
    marked = x.view(x.shape)  # a tensor of its own
    setattr(marked, _ROWS, piece)
    return marked


def piece_in(x: Tensor) -> Piece | None:
    """Return the piece as which a tensor was marked; None for a full tensor."""
    return getattr(x, _ROWS, None)


def piece_here(x: Tensor) -> Piece | None:
    """Return the local piece of a tensor that several processes hold together; None where each holds all of it."""
    if not is_sharded(x):
        return None
    sharded: Any = x
    mesh = sharded.device_mesh
    names = mesh.mesh_dim_names or ()
    if TENSOR not in names and not hasattr(sharded.placements[-1], "dim"):
        return None  # each has all of it
    if TENSOR not in names:
        return Piece(rows_of(x.shape[0], mesh.size(), mesh.get_local_rank()).start, x.shape[0])
    place = names.index(TENSOR)
    how, parts = sharded.placements[place], mesh.size(place)
    dim = getattr(how, "dim", -1)
    count = len(rows_of(x.shape[0], parts, mesh.get_local_rank(place))) if dim == 0 else x.shape[0]
    shards, shard = (mesh.size(0), mesh.get_local_rank(0)) if place else (1, 0)
    first = rows_of(count, shards, shard).start
    return Piece(first, count, dim, getattr(how, "split_factor", 1), mesh.get_local_rank(place), parts)


def joined(trees: Sequence[Any], shards: int, shard: int, own: int | None = None) -> Any:
    """Return the tree of shard `shard` of `shards` from those of all old shards: marked tensors become its rows.

    Unmarked values are those of the tree with the number `own`. With None they are those of the old shard of the same
    number, or of the first one where there were more or fewer.
    """
    if own is None:
        own = shard if len(trees) == shards else 0
    first = trees[own]
    if not any(isinstance(x, Tensor) and piece_in(x) is not None for x in leaves(first)):
        return first

    def join(key: Any) -> Any:
        return joined([_at(tree, key) for tree in trees], shards, shard, own)

    if isinstance(first, dict):
        return type(first)({key: join(key) for key in first})
    if isinstance(first, list | tuple):
        return type(first)(map(join, range(len(first))))
    return _rows(trees, shards, shard)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield all values in a tree of mappings, lists and tuples."""
    if isinstance(tree, Mapping | list | tuple):
        for item in tree.values() if isinstance(tree, Mapping) else tree:
            yield from leaves(item)
    else:
        yield tree


def _at(tree: Any, key: Any) -> Any:
    try:
        return tree[key]
    except (KeyError, IndexError, TypeError):
        raise CheckpointError(f"the files of its shards do not belong together: one has no {key}") from None


def _rows(parts: Sequence[Any], shards: int, shard: int) -> Tensor:
    pieces = [(piece, x) for x in parts if isinstance(x, Tensor) and (piece := piece_in(x)) is not None]
    if len(pieces) != len(parts) or len({piece.whole for piece, _ in pieces}) != 1:
        raise CheckpointError("the files of its shards do not belong together: they have pieces of different tensors")
    count = pieces[0][0].count
    if pieces[0][0].dim is None:
        wanted = rows_of(count, shards, shard)
        whole = _in_order(pieces, wanted)
    else:
        whole = _of_parts(pieces)
        wanted = rows_of(whole.shape[0], shards, shard)
        count, whole = whole.shape[0], whole[wanted.start : wanted.stop]
    return whole if shards == 1 else with_rows(whole, Piece(wanted.start, count))


def _in_order(pieces: Sequence[tuple[Piece, Tensor]], wanted: range) -> Tensor:
    chosen, reached = list[Tensor](), 0
    for piece, x in pieces:
        if piece.first != reached:
            raise CheckpointError("the files of its shards do not belong together: rows are missing, or there twice")
        reached += x.shape[0]
        begin, end = max(wanted.start, piece.first), min(wanted.stop, reached)
        if begin < end:
            chosen.append(x[begin - piece.first : end - piece.first])
    if reached != pieces[0][0].count:
        raise CheckpointError("the files of its shards do not belong together: the last rows are missing")
    return chosen[0] if len(chosen) == 1 else torch.cat(chosen) if chosen else pieces[0][1][:0]


def _of_parts(pieces: Sequence[tuple[Piece, Tensor]]) -> Tensor:
    """Return the full tensor of which `_part` has made these parts."""
    whole = pieces[0][0].whole
    by_part = [[(piece, x) for piece, x in pieces if piece.part == part] for part in range(whole.parts)]
    if not all(by_part):
        raise CheckpointError("the files of its shards do not belong together: a part of a tensor is missing")
    parts = [_in_order(some, range(some[0][0].count)) for some in by_part]
    dim, runs = whole.dim, whole.runs
    if dim is None or dim < 0:
        return parts[0]
    if runs == 1:
        return torch.cat(parts, dim)
    if any(x.shape[dim] % runs for x in parts):
        raise CheckpointError("the files of its shards do not belong together: a part has no whole runs")
    return torch.stack([x.unflatten(dim, (runs, -1)) for x in parts], dim + 1).flatten(dim, dim + 2)


def _part(x: Tensor, piece: Piece) -> Tensor:
    """Return a worker's part of each of the runs along the dimension that is cut."""
    dim = piece.dim
    if dim is None or dim < 0:
        return x
    if piece.runs == 1:
        return x.chunk(piece.parts, dim)[piece.part]
    numbers: Tensor = x.unflatten(dim, (piece.runs, piece.parts, -1)).select(dim + 1, piece.part).flatten(dim, dim + 1)
    return numbers


def shape_of(x: Tensor) -> tuple[int, ...]:
    """Return the shape with all rows of which `x` has some."""
    piece = piece_in(x)
    return tuple(x.shape) if piece is None else (piece.count, *x.shape[1:])


def fitted(like: Tensor, x: Tensor) -> Tensor:
    """Return `x`, of the shape of `like` (see `shape_of`), as a tensor of the kind of `like`: the local rows."""
    piece = piece_here(like)
    if piece is None:
        return x
    here = local(like)
    if piece_in(x) is None:
        x = _part(x, piece)[piece.first : piece.first + here.shape[0]]
    return as_piece_of(like, x.to(here.device))


def named_pieces(vector: Flat, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the numbers of a vector over pieces of `parameters`, by their names; each knows its rows."""
    named = zip(vector.layout.segments, vector.segments(), parameters, strict=True)
    return {segment.name: as_piece_of(p, numbers) for segment, numbers, p in named}


def flat_of_pieces(kept: Any, header: Tensor, parameters: Sequence[Tensor], layout: Layout) -> Flat:
    """Return the vector of `named_pieces`, over a `layout` of pieces of `parameters` or of full tensors. Raises
    `CheckpointError` for pieces of other parameters."""
    layout = layout if header.numel() else bare_layout(layout)
    vector = Flat.zeros(layout)
    for segment, there, p in zip(layout.segments, vector.segments(), parameters, strict=True):
        x = kept.get(segment.name) if isinstance(kept, dict) else None
        if isinstance(x, Tensor) and piece_in(x) is None and x.shape == p.shape:
            x = local(fitted(p, x))
        if not isinstance(x, Tensor) or x.shape != there.shape:
            raise CheckpointError(f"the checkpoint's vectors are of another model: they have no such {segment.name}")
        there.copy_(x)
    if header.numel() == layout.header:
        header_in(vector).copy_(header)
    return vector


def piece_of_flat(whole: Flat, parameters: Sequence[Tensor], layout: Layout) -> Flat:
    """Return a vector over full `parameters` as one over their local pieces."""
    vector = Flat.zeros(layout if whole.layout.header == layout.header else bare_layout(layout))
    for numbers, there, p in zip(whole.segments(), vector.segments(), parameters, strict=True):
        there.copy_(local(fitted(p, numbers)))
    if whole.layout.header == layout.header:
        header_in(vector).copy_(header_in(whole))
    return vector
