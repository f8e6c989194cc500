"""The blocks of a pattern as tables: for each block of queries, the blocks of keys to which it attends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_PAIRS_FOR_A_GROUP = 32
"""Pairs of blocks that cost as much as a group of its own."""
_WASTE = 16
"""One block in so many may be calculated without effect, for fewer groups."""


@dataclass(frozen=True)
class Group:
    """Blocks of queries with about the same number W of blocks of keys; an entry for each head and block of queries."""

    heads: Tensor
    """(U,) numbers of heads."""
    rows: Tensor
    """(U,) numbers of blocks of queries."""
    columns: Tensor
    """(U, W) numbers of blocks of keys; one on the diagonal is the first."""
    counts: Tensor | None
    """(U,) numbers of blocks of keys, of which others follow that are ignored; None: W everywhere."""
    on_diagonal: Tensor | None
    """(U,) whether the first block of keys is on the diagonal; None: everywhere, or nowhere where it is not causal."""

    @property
    def width(self) -> int:
        """W."""
        return self.columns.shape[1]


@dataclass(frozen=True)
class Layout:
    """All blocks of one pattern, or of some of its rows."""

    heads: int
    """Heads in the tables; 1: all heads are alike."""
    rows: int
    """Blocks of queries."""
    columns: int
    """Blocks of keys."""
    is_causal: bool
    groups: tuple[Group, ...]

    @property
    def pairs(self) -> int:
        """Pairs of blocks that are calculated, in the heads of the tables."""
        return sum(group.columns.numel() for group in self.groups)


def layout_of(
    mask: Tensor,
    *,
    device: torch.device,
    diagonal: Tensor | None = None,
    widths: Sequence[tuple[int, int]] | None = None,
) -> Layout:
    """Return the layout of a boolean tensor (heads, rows, columns); rows without a block of keys are in no group.

    `diagonal` has the column that is on the diagonal of each row, for a causal mask. `widths` are those of all rows
    where `mask` has some, so that a row is calculated in the same way, whichever others are beside it.
    """
    heads, rows, columns = mask.shape
    order = mask.to(torch.int8)
    is_first = torch.zeros(heads, rows, dtype=torch.bool)
    if diagonal is not None:
        on_diagonal = (torch.arange(columns) == diagonal.unsqueeze(1)) & mask
        order, is_first = order + on_diagonal.to(torch.int8), on_diagonal.any(-1)
    sorted_columns = order.sort(dim=-1, descending=True, stable=True).indices.view(heads * rows, columns)
    counts, is_first = mask.sum(-1).view(-1), is_first.view(-1)
    groups = []
    for least, most in widths_of(mask) if widths is None else widths:
        units = ((counts >= least) & (counts <= most)).nonzero().squeeze(1)
        if not units.numel():
            continue
        begins = sorted_columns[units, :most]
        begins_on_diagonal = diagonal is None or bool(is_first[units].all())
        groups.append(
            Group(
                (units // rows).to(device),
                (units % rows).to(device),
                F.pad(begins, (0, most - begins.shape[1])).to(device),
                None if least == most else counts[units].to(device),
                None if begins_on_diagonal else is_first[units].to(device),
            )
        )
    return Layout(heads, rows, columns, diagonal is not None, tuple(groups))


def widths_of(mask: Tensor) -> list[tuple[int, int]]:
    """Return the least and the largest count of each group. Rows join the next wider group if that costs less."""
    counts = mask.sum(-1)
    widths, numbers = (x.tolist() for x in counts[counts > 0].unique(return_counts=True))
    ranges: list[tuple[int, int]] = []
    for width, number in zip(reversed(widths), reversed(numbers), strict=True):
        waste = ranges[-1][1] - width if ranges else 0
        if ranges and (number * waste <= _PAIRS_FOR_A_GROUP or waste * _WASTE <= ranges[-1][1]):
            ranges[-1] = width, ranges[-1][1]
        else:
            ranges.append((width, width))
    return ranges
