"""Rows of tables whose gradients are sparse: the message of one worker, and the sum of the messages of several.

A worker's message has, for each table, the indices and the numbers of the rows in its gradient. They are as in `.grad`,
and the factor of the gradient stands in the header. Sums are formed in order of the messages, so that equal messages
give equal bits on all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, EmbeddingBag, Module

from quorate.buckets.flat import sum_dtype
from quorate.core.errors import ConfigurationError
from quorate.core.local_tensor import as_piece_of, local

_ALIGNED = 16
"""Bytes to a multiple of which each section of a message is filled: the largest number has as many."""
_NOTHING, _SOME, _ALL = 0, 1, 2
"""Which rows of a table a message has."""


@dataclass(frozen=True)
class Rows:
    """Rows of one table: a gradient, or a sum of several."""

    indices: Tensor | None
    """The indices of the rows (k,), ascending, each once; None: all rows, as in a dense gradient."""
    values: Tensor
    """The numbers of these rows (k, ...)."""


@dataclass(frozen=True)
class RowsOfWorker:
    """The message of one worker, as it was read."""

    scale: float
    """The factor of the rows."""
    tables: tuple[Rows | None, ...]
    """For each table its rows; None: it has no gradient."""
    touched: tuple[bool, ...]
    """For each table whether backward passes have changed its gradient since the message before."""


def rows_of(gradient: Tensor, name: str) -> Rows:
    """Return the rows of a gradient, which may be dense. Raises `ConfigurationError` for other sparse tensors.

    `name` is the name of the table.
    """
    x = local(gradient).detach()
    if x.layout is torch.strided:
        return Rows(None, x)
    if x.layout is not torch.sparse_coo or x.sparse_dim() != 1:
        raise ConfigurationError(
            f"the gradient of {name} has the layout {x.layout} and no sparse rows; only gradients as those of "
            "Embedding(sparse=True) can be exchanged"
        )
    x = x.coalesce()
    return Rows(x._indices()[0], x._values())


def rows_in(tables: Sequence[Tensor], names: Sequence[str]) -> list[Rows | None]:
    """Return the rows in the `.grad` of each table, None where it has none. Raises as `rows_of`."""
    named = zip(tables, names, strict=True)
    return [None if table.grad is None else rows_of(table.grad, name) for table, name in named]


def as_gradient(rows: Rows, like: Tensor) -> Tensor:
    """Return `rows` as a gradient of the table `like`, in its dtype: sparse and coalesced, or dense for all rows."""
    values = rows.values.to(like.dtype)
    if rows.indices is not None:
        how: dict[str, Any] = {"is_coalesced": True, "check_invariants": False}
        values = torch.sparse_coo_tensor(rows.indices[None], values, local(like).shape, **how)
    return as_piece_of(like, values)


def written(tables: Sequence[Rows | None], touched: Sequence[bool], scale: float, like: Sequence[Tensor]) -> Tensor:
    """Return the message of a worker with these rows of the tables `like`, as bytes (uint8).

    Cost: 24 bytes, 16 for each table, and for each row its numbers and its index (4 bytes, in large tables 8).
    """
    header = [0 if rows is None else len(rows.values) for rows in tables]
    kinds = [
        (_NOTHING if rows is None else _ALL if rows.indices is None else _SOME) + 4 * is_touched
        for rows, is_touched in zip(tables, touched, strict=True)
    ]
    device = like[0].device
    numbers = torch.tensor([scale], dtype=torch.float64).view(torch.int64)
    sections = [torch.cat([numbers, torch.tensor([*kinds, *header], dtype=torch.int64)]).to(device)]
    for rows, table in zip(tables, like, strict=True):
        if rows is not None:
            if rows.indices is not None:
                sections.append(rows.indices.to(device, index_dtype(len(table))))
            sections.append(rows.values.to(device).contiguous())
    return torch.cat([_filled(section) for section in sections])


def read(message: Tensor, like: Sequence[Tensor]) -> RowsOfWorker:
    """Return the rows in a message about the tables `like`; they may lie in its memory."""
    if message.storage_offset() % _ALIGNED:
        message = message.clone()
    place = 0

    def section(count: int, dtype: torch.dtype) -> Tensor:
        nonlocal place
        begin, nbytes = place, count * dtype.itemsize
        place += nbytes + -nbytes % _ALIGNED
        return message[begin : begin + nbytes].view(dtype)

    scale, *header = section(1 + 2 * len(like), torch.int64).cpu().split([1, 2 * len(like)])
    numbers: list[int] = header[0].tolist()
    tables = list[Rows | None]()
    for table, kind, count in zip(like, numbers, numbers[len(like) :], strict=False):
        if kind % 4 == _NOTHING:
            tables.append(None)
            continue
        indices = section(count, index_dtype(len(table))).to(table.device, torch.int64) if kind % 4 == _SOME else None
        values = section(count * torch.Size(table.shape[1:]).numel(), table.dtype).view(count, *table.shape[1:])
        tables.append(Rows(indices, values.to(table.device)))
    touched = tuple(kind >= 4 for kind in numbers[: len(like)])
    return RowsOfWorker(float(scale.view(torch.float64)), tuple(tables), touched)


def scaled_message(message: Tensor, factor: float) -> Tensor:
    """Return a copy of a message whose rows count `factor` times as much."""
    copied = message.clone()
    copied[:8].view(torch.float64).mul_(factor)
    return copied


def sum_of(messages: Sequence[RowsOfWorker], table: int, like: Tensor) -> Rows | None:
    """Return the sum of the rows of one table, each times its factor, in order; None where no message has any.

    Numbers are added in the dtype of summation. Cost: by the rows of the messages; by the table where one is dense.
    """
    like, parts = (
        local(like),
        [(worker.scale, rows) for worker in messages if (rows := worker.tables[table]) is not None],
    )
    if not parts:
        return None
    dtype, sparse = sum_dtype(like.dtype), [rows.indices for _, rows in parts if rows.indices is not None]
    is_dense = len(sparse) < len(parts)
    places: Sequence[Tensor] = sparse
    indices = None
    if not is_dense:
        indices, inverse = torch.unique(torch.cat(sparse), return_inverse=True)
        places = inverse.split([len(indices_of_worker) for indices_of_worker in sparse])
    count = len(like) if indices is None else len(indices)
    total, remaining = torch.zeros(count, *like.shape[1:], dtype=dtype, device=like.device), iter(places)
    for scale, rows in parts:
        values = rows.values.to(dtype)
        if rows.indices is None:
            total.add_(values, alpha=scale)
        else:
            total.index_add_(0, next(remaining), values, alpha=scale)
    return Rows(indices, total)


def index_dtype(rows: int) -> torch.dtype:
    """Return the dtype of indices in messages about a table of so many rows."""
    return torch.int32 if rows < 1 << 31 else torch.int64


def _filled(section: Tensor) -> Tensor:
    """Return the bytes of a section, filled up."""
    octets = section.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
    return torch.nn.functional.pad(octets, (0, -octets.numel() % _ALIGNED))


def sparse_weights(model: Module) -> set[int]:
    """Return the `id`s of the weights of `Embedding(sparse=True)` and the like that no other module has.

    A weight that another module has as well, as an output layer that is tied to it, has dense gradients.
    """
    sparse, others = set[int](), set[int]()
    for module in model.modules():
        ids = sparse if isinstance(module, Embedding | EmbeddingBag) and module.sparse else others
        ids.update(id(p) for p in module.parameters(recurse=False))
    return sparse - others
