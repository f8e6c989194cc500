"""Tensors with some rows of larger ones: their marks, and the files of several shards as one tree again.

A model in shards is kept shard by shard. A reader, as one of any number of shards or as none, puts together the rows
that it holds itself; other rows are not read, so that no worker needs memory for the full tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quorate.core.axes import TENSOR, rows_of
from quorate.core.errors import CheckpointError
from quorate.core.local_tensor import as_piece_of, is_sharded, local
from quorate.core.vectors import Flat, Layout, bare_layout, header_in

_ROWS = "quorate_rows"


@dataclass(frozen=True)
class Cut:
    """How a tensor is cut into parts, where several workers compute layers together."""

    dim: int
    """The dimension that is cut; -1: none."""
    runs: int
    """Runs that are cut one by one: 3, where query, key and value lie in one tensor."""
    parts: int


@dataclass(frozen=True)
class Rows:
    """The first row of a piece, and the number of rows of its tensor, or of the `part` of its `cut`."""

    first: int
    count: int
    cut: Cut | None = None
    part: int = 0

    @property
    def as_json(self) -> list[int]:
        """Two numbers, or six with a cut, as in files."""
        cut = self.cut
        return [self.first, self.count, *(() if cut is None else (cut.dim, cut.runs, self.part, cut.parts))]


def with_rows(x: Tensor, rows: Rows) -> Tensor:
    """Return `x`, marked as these rows of another tensor. Raises `ValueError` where the numbers do not fit."""
    first, count, cut = rows.first, rows.count, rows.cut
    if not (x.dim() and first >= 0 and first + x.shape[0] <= max(first, count)):
        raise ValueError(f"{x.shape[0] if x.dim() else 'no'} rows from {first} on are not among {count}")
    if cut is not None and not (-1 <= cut.dim < x.dim() and cut.runs > 0 and 0 <= rows.part < cut.parts):
        raise ValueError(f"{rows.as_json[2:]} is not a part of a tensor of {x.dim()} dimensions")
    marked = x.view(x.shape)  # a tensor of its own
    setattr(marked, _ROWS, rows)
    return marked


def rows_from(numbers: Any) -> Rows:
    """Return the rows that a file names. Raises `ValueError` unless they are two whole numbers, or six."""
    is_list = isinstance(numbers, list) and len(numbers) in (2, 6)
    if not (is_list and all(type(number) is int for number in numbers)):
        raise ValueError(f"{numbers!r} are no rows")
    if len(numbers) == 2:
        return Rows(*numbers)
    first, count, dim, runs, part, parts = numbers
    return Rows(first, count, Cut(dim, runs, parts), part)


def rows_in(x: Tensor) -> Rows | None:
    """Return the rows with which a tensor was marked; None for a full tensor."""
    return getattr(x, _ROWS, None)


def rows_here(x: Tensor) -> Rows | None:
    """Return the local rows of a tensor that several processes hold together; None where each holds all of it."""
    if not is_sharded(x):
        return None
    sharded: Any = x
    mesh = sharded.device_mesh
    names = mesh.mesh_dim_names or ()
    if TENSOR not in names and not hasattr(sharded.placements[-1], "dim"):
        return None  # each has all of it
    if TENSOR not in names:
        return Rows(rows_of(x.shape[0], mesh.size(), mesh.get_local_rank()).start, x.shape[0])
    place = names.index(TENSOR)
    how, parts = sharded.placements[place], mesh.size(place)
    dim = getattr(how, "dim", -1)
    count = x.shape[0] // parts if dim == 0 else x.shape[0]
    shards, shard = (mesh.size(0), mesh.get_local_rank(0)) if place else (1, 0)
    first = rows_of(count, shards, shard).start
    return Rows(first, count, Cut(dim, getattr(how, "split_factor", 1), parts), mesh.get_local_rank(place))


def joined(trees: Sequence[Any], shards: int, shard: int) -> Any:
    """Return the tree of shard `shard` of `shards` from those of all old shards: marked tensors become its rows.

    Unmarked values are those of the old shard of the same number, or of the first one where there were more or fewer.
    """
    first = trees[shard if len(trees) == shards else 0]
    if not _has_rows(first):
        return first
    if isinstance(first, dict):
        return type(first)({key: joined([_at(tree, key) for tree in trees], shards, shard) for key in first})
    if isinstance(first, list | tuple):
        return type(first)([joined([_at(tree, place) for tree in trees], shards, shard) for place in range(len(first))])
    return _rows(trees, shards, shard)


def _has_rows(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(map(_has_rows, tree.values()))
    if isinstance(tree, list | tuple):
        return any(map(_has_rows, tree))
    return isinstance(tree, Tensor) and rows_in(tree) is not None


def _at(tree: Any, key: Any) -> Any:
    try:
        return tree[key]
    except (KeyError, IndexError, TypeError):
        raise CheckpointError(f"the files of its shards do not belong together: one has no {key}") from None


def _rows(parts: Sequence[Any], shards: int, shard: int) -> Tensor:
    pieces = [(rows, x) for x in parts if isinstance(x, Tensor) and (rows := rows_in(x)) is not None]
    if len(pieces) != len(parts) or len({(rows.count, rows.cut) for rows, _ in pieces}) != 1:
        raise CheckpointError("the files of its shards do not belong together: they have pieces of different tensors")
    count, cut = pieces[0][0].count, pieces[0][0].cut
    if cut is None:
        wanted = rows_of(count, shards, shard)
        whole = _in_order(pieces, count, wanted)
    else:
        whole = _of_parts(pieces, count, cut)
        wanted = rows_of(whole.shape[0], shards, shard)
        count, whole = whole.shape[0], whole[wanted.start : wanted.stop]
    return whole if shards == 1 else with_rows(whole, Rows(wanted.start, count))


def _in_order(pieces: Sequence[tuple[Rows, Tensor]], count: int, wanted: range) -> Tensor:
    chosen, reached = list[Tensor](), 0
    for rows, x in pieces:
        if rows.first != reached:
            raise CheckpointError("the files of its shards do not belong together: rows are missing, or there twice")
        reached += x.shape[0]
        begin, end = max(wanted.start, rows.first), min(wanted.stop, reached)
        if begin < end:
            chosen.append(x[begin - rows.first : end - rows.first])
    if reached != count:
        raise CheckpointError("the files of its shards do not belong together: the last rows are missing")
    return chosen[0] if len(chosen) == 1 else torch.cat(chosen) if chosen else pieces[0][1][:0]


def _of_parts(pieces: Sequence[tuple[Rows, Tensor]], count: int, cut: Cut) -> Tensor:
    """Return the full tensor of which `_part` has made these parts."""
    by_part = [[(rows, x) for rows, x in pieces if rows.part == part] for part in range(cut.parts)]
    if not all(by_part):
        raise CheckpointError("the files of its shards do not belong together: a part of a tensor is missing")
    parts = [_in_order(some, count, range(count)) for some in by_part]
    dim, runs = cut.dim, cut.runs
    if dim < 0:
        return parts[0]
    if any(x.shape[dim] % runs for x in parts):
        raise CheckpointError("the files of its shards do not belong together: a part has no whole runs")
    return torch.stack([x.unflatten(dim, (runs, -1)) for x in parts], dim + 1).flatten(dim, dim + 2)


def _part(x: Tensor, cut: Cut, part: int) -> Tensor:
    """Return a worker's part of each of the runs along the dimension of `cut`."""
    dim = cut.dim
    if dim < 0:
        return x
    numbers: Tensor = x.unflatten(dim, (cut.runs, cut.parts, -1)).select(dim + 1, part).flatten(dim, dim + 1)
    return numbers


def shape_of(x: Tensor) -> tuple[int, ...]:
    """Return the shape with all rows of which `x` has some."""
    rows = rows_in(x)
    return tuple(x.shape) if rows is None else (rows.count, *x.shape[1:])


def fitted(like: Tensor, x: Tensor) -> Tensor:
    """Return `x`, of the shape of `like` (see `shape_of`), as a tensor of the kind of `like`: the local rows."""
    rows = rows_here(like)
    if rows is None:
        return x
    here = local(like)
    if rows_in(x) is None:
        x = x if rows.cut is None else _part(x, rows.cut, rows.part)
        x = x[rows.first : rows.first + here.shape[0]]
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
        if isinstance(x, Tensor) and rows_in(x) is None and x.shape == p.shape:
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
