"""Tensors of which a file has some rows: what is marked as such, and how files of several shards become one tree again.

A model in shards is kept shard by shard. Whoever reads it, as one of any number of shards or as none, puts together the
rows that it holds itself; nothing else is touched, so that no worker needs memory for the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.axes import TENSOR, rows_of
from quorate.core.errors import CheckpointError
from quorate.core.local_tensor import as_piece_of, is_sharded, local
from quorate.core.vectors import Flat, Layout, bare_layout, header_in

_ROWS = "quorate_rows"

Rows = tuple[int, ...]
"""The first one that is here, and how many there are in all.

Where layers are computed by several workers together these are of one worker's part of the tensor, and four more
numbers say which: the dimension along which it is cut (-1: none), into how many runs that is divided first (3, where
query, key and value lie in one tensor), the part, and of how many."""


def with_rows(x: Tensor, rows: Rows) -> Tensor:
    """`x`, marked as these rows of another tensor. Raises `ValueError` where it cannot be that."""
    first, count, *cut = rows
    if not (x.dim() and first >= 0 and first + x.shape[0] <= max(first, count)):
        raise ValueError(f"{x.shape[0] if x.dim() else 'no'} rows from {first} on are not among {count}")
    if cut and not (-1 <= cut[0] < x.dim() and cut[1] > 0 and 0 <= cut[2] < cut[3]):
        raise ValueError(f"{cut} is not a part of a tensor of {x.dim()} dimensions")
    found = x.view(x.shape)  # a tensor of its own
    setattr(found, _ROWS, rows)
    return found


def rows_from(said: Any) -> Rows:
    """What a file says. Raises `ValueError` for what is not two whole numbers, or six."""
    if not (isinstance(said, list) and len(said) in (2, 6) and all(type(number) is int for number in said)):
        raise ValueError(f"{said!r} are no rows")
    return tuple(said)


def rows_in(x: Tensor) -> Rows | None:
    """What it was marked with; None for a whole tensor."""
    return getattr(x, _ROWS, None)


def rows_here(x: Tensor) -> Rows | None:
    """The same of a tensor that several processes hold together; None where each holds all of it."""
    if not is_sharded(x):
        return None
    sharded: Any = x
    mesh = sharded.device_mesh
    names = mesh.mesh_dim_names or ()
    if TENSOR not in names and not hasattr(sharded.placements[-1], "dim"):
        return None  # each has all of it
    if TENSOR not in names:
        return rows_of(x.shape[0], mesh.size(), mesh.get_local_rank()).start, x.shape[0]
    place = names.index(TENSOR)
    how, parts = sharded.placements[place], mesh.size(place)
    dim = getattr(how, "dim", -1)
    count = x.shape[0] // parts if dim == 0 else x.shape[0]
    shards, shard = (mesh.size(0), mesh.get_local_rank(0)) if place else (1, 0)
    first = rows_of(count, shards, shard).start
    return first, count, dim, getattr(how, "split_factor", 1), mesh.get_local_rank(place), parts


def joined(trees: Sequence[Any], shards: int, shard: int) -> Any:
    """What the files of all old shards hold, as shard `shard` of `shards` has it: marked tensors as its own rows.

    What is not marked is that of the old shard of the same number, or of the first one where there were more or fewer.
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
    """Rows of a tensor that lies in several parts, of any sizes."""
    told = [(rows, x) for x in parts if isinstance(x, Tensor) and (rows := rows_in(x)) is not None]
    if len(told) != len(parts) or len({(rows[1:4], rows[5:]) for rows, _ in told}) != 1:
        raise CheckpointError("the files of its shards do not belong together: they have pieces of different tensors")
    count, *cut = told[0][0][1:]
    if not cut:
        wanted = rows_of(count, shards, shard)
        whole = _in_order(told, count, wanted)
    else:
        whole = _of_parts(told, count, *cut)
        wanted = rows_of(whole.shape[0], shards, shard)
        count, whole = whole.shape[0], whole[wanted.start : wanted.stop]
    return whole if shards == 1 else with_rows(whole, (wanted.start, count))


def _in_order(told: Sequence[tuple[Rows, Tensor]], count: int, wanted: range) -> Tensor:
    found, reached = list[Tensor](), 0
    for rows, x in told:
        if rows[0] != reached:
            raise CheckpointError("the files of its shards do not belong together: rows are missing, or there twice")
        reached += x.shape[0]
        begin, end = max(wanted.start, rows[0]), min(wanted.stop, reached)
        if begin < end:
            found.append(x[begin - rows[0] : end - rows[0]])
    if reached != count:
        raise CheckpointError("the files of its shards do not belong together: the last rows are missing")
    return found[0] if len(found) == 1 else torch.cat(found) if found else told[0][1][:0]


def _of_parts(told: Sequence[tuple[Rows, Tensor]], count: int, dim: int, runs: int, _: int, parts: int) -> Tensor:
    """The inverse of `_part`."""
    each = [[(rows, x) for rows, x in told if rows[4] == part] for part in range(parts)]
    if not all(each):
        raise CheckpointError("the files of its shards do not belong together: a part of a tensor is missing")
    found = [_in_order(some, count, range(count)) for some in each]
    if dim < 0:
        return found[0]
    if any(x.shape[dim] % runs for x in found):
        raise CheckpointError("the files of its shards do not belong together: a part has no whole runs")
    return torch.stack([x.unflatten(dim, (runs, -1)) for x in found], dim + 1).flatten(dim, dim + 2)


def _part(x: Tensor, dim: int, runs: int, part: int, parts: int) -> Tensor:
    """A worker's part of each of the runs along `dim`."""
    if dim < 0:
        return x
    found: Tensor = x.unflatten(dim, (runs, parts, -1)).select(dim + 1, part).flatten(dim, dim + 1)
    return found


def shape_of(x: Tensor) -> tuple[int, ...]:
    """Of the whole tensor."""
    rows = rows_in(x)
    return tuple(x.shape) if rows is None else (rows[1], *x.shape[1:])


def fitted(mine: Tensor, x: Tensor) -> Tensor:
    """`x`, of the shape of `mine` (see `shape_of`), as a tensor of the kind of `mine`: the rows that are held here."""
    here = rows_here(mine)
    if here is None:
        return x
    mine_here = local(mine)
    if rows_in(x) is None:
        x = _part(x, *here[2:]) if here[2:] else x
        x = x[here[0] : here[0] + mine_here.shape[0]]
    return as_piece_of(mine, x.to(mine_here.device))


def named_pieces(vector: Flat, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """The numbers of a vector over pieces of `parameters`, by their names; each knows its rows."""
    named = zip(vector.layout.segments, vector.segments(), parameters, strict=True)
    return {segment.name: as_piece_of(p, numbers) for segment, numbers, p in named}


def flat_of_pieces(kept: Any, header: Tensor, parameters: Sequence[Tensor], layout: Layout) -> Flat:
    """The inverse, over a `layout` of pieces of `parameters` or of whole tensors. Raises `CheckpointError` for those of
    other ones."""
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
    """A vector over whole `parameters`, as one over the pieces of them that are held here."""
    vector = Flat.zeros(layout if whole.layout.header == layout.header else bare_layout(layout))
    for numbers, there, p in zip(whole.segments(), vector.segments(), parameters, strict=True):
        there.copy_(local(fitted(p, numbers)))
    if whole.layout.header == layout.header:
        header_in(vector).copy_(header_in(whole))
    return vector
