"""Tensors of which a file has some rows: what is marked as such, and how files of several shards become one tree again.

A model in shards is kept shard by shard. Whoever reads it, as one of any number of shards or as none, puts together the
rows that it holds itself; nothing else is touched, so that no worker needs memory for the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.axes import rows_of
from quorate.core.errors import CheckpointError
from quorate.core.local_tensor import as_piece_of, is_sharded, local
from quorate.core.vectors import Flat, Layout

_ROWS = "quorate_rows"

Rows = tuple[int, int]
"""The first one that is here, and how many there are in all."""


def with_rows(x: Tensor, rows: Rows) -> Tensor:
    """`x`, marked as these rows of another tensor. Raises `ValueError` where it cannot be that."""
    first, count = rows
    if not (x.dim() and first >= 0 and first + x.shape[0] <= max(first, count)):
        raise ValueError(f"{x.shape[0] if x.dim() else 'no'} rows from {first} on are not among {count}")
    found = x.view(x.shape)  # a tensor of its own
    setattr(found, _ROWS, (first, count))
    return found


def rows_from(said: Any) -> Rows:
    """What a file says. Raises `ValueError` for what is no pair of whole numbers."""
    if not (isinstance(said, list) and len(said) == 2 and all(type(number) is int for number in said)):
        raise ValueError(f"{said!r} are no rows")
    return said[0], said[1]


def rows_in(x: Tensor) -> Rows | None:
    """What it was marked with; None for a whole tensor."""
    return getattr(x, _ROWS, None)


def rows_here(x: Tensor) -> Rows | None:
    """The same of a tensor that several processes hold together."""
    if not is_sharded(x):
        return None
    sharded: Any = x
    mesh = sharded.device_mesh
    return rows_of(x.shape[0], mesh.size(), mesh.get_local_rank()).start, x.shape[0]


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
    told = [(rows_in(x), x) for x in parts if isinstance(x, Tensor)]
    counts = {rows[1] for rows, _ in told if rows is not None}
    if len(told) != len(parts) or len(counts) != 1 or any(rows is None for rows, _ in told):
        raise CheckpointError("the files of its shards do not belong together: they have pieces of different tensors")
    (count,) = counts
    wanted, found, reached = rows_of(count, shards, shard), list[Tensor](), 0
    for rows, x in told:
        assert rows is not None
        if rows[0] != reached:
            raise CheckpointError("the files of its shards do not belong together: rows are missing, or there twice")
        reached += x.shape[0]
        begin, end = max(wanted.start, rows[0]), min(wanted.stop, reached)
        if begin < end:
            found.append(x[begin - rows[0] : end - rows[0]])
    if reached != count:
        raise CheckpointError("the files of its shards do not belong together: the last rows are missing")
    whole = found[0] if len(found) == 1 else torch.cat(found) if found else told[0][1][:0]
    return whole if shards == 1 else with_rows(whole, (wanted.start, count))


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
        x = x[here[0] : here[0] + mine_here.shape[0]]
    return as_piece_of(mine, x.to(mine_here.device))


def named_pieces(vector: Flat, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """The numbers of a vector over pieces of `parameters`, by their names; each knows its rows."""
    named = zip(vector.layout.segments, vector.segments(), parameters, strict=True)
    return {segment.name: as_piece_of(p, numbers) for segment, numbers, p in named}


def flat_of_pieces(kept: Any, header: Tensor, layout: Layout) -> Flat:
    """The inverse, over a `layout` of pieces or of whole tensors. Raises `CheckpointError` for those of other ones."""
    layout = layout if header.numel() else layout.bare
    vector = Flat.zeros(layout)
    for segment, there in zip(layout.segments, vector.segments(), strict=True):
        x = kept.get(segment.name) if isinstance(kept, dict) else None
        if not isinstance(x, Tensor) or x.shape != there.shape:
            raise CheckpointError(f"the checkpoint's vectors are of another model: they have no such {segment.name}")
        there.copy_(x)
    if header.numel() == layout.header:
        vector.header.copy_(header)
    return vector


def piece_of_flat(whole: Flat, parameters: Sequence[Tensor], layout: Layout) -> Flat:
    """A vector over whole `parameters`, as one over the pieces of them that are held here."""
    vector = Flat.zeros(layout if whole.layout.header == layout.header else layout.bare)
    for numbers, there, p in zip(whole.segments(), vector.segments(), parameters, strict=True):
        there.copy_(local(fitted(p, numbers)))
    if whole.layout.header == layout.header:
        vector.header.copy_(whole.header)
    return vector
