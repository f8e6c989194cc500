"""Vectors in pieces, each added up at another place; pure.

Every part is cut into as many, so that all pieces are equally long to within an element of each part."""

from __future__ import annotations

from quorate.core.vectors import Flat, Layout, Part


def _cut(numel: int, piece: int, of: int) -> tuple[int, int]:
    return piece * numel // of, (piece + 1) * numel // of


def layout_of_piece(layout: Layout, piece: int, of: int) -> Layout:
    """Return the layout of piece `piece`, one of `of`, of vectors laid out as `layout`."""
    cuts = [(_cut(part.numel, piece, of), part) for part in layout.parts]
    return Layout((), tuple(Part(end - begin, part.dtype, part.device) for (begin, end), part in cuts), 0)


def piece_of(vector: Flat, piece: int, of: int) -> Flat:
    """Return piece `piece`, one of `of`: views."""
    views = [part[slice(*_cut(part.numel(), piece, of))] for part in vector.parts]
    return Flat(views, layout_of_piece(vector.layout, piece, of))
