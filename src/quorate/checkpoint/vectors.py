"""A strategy's vectors over a replica's parameters in a checkpoint: by parts, or piece by piece."""

from __future__ import annotations

from typing import Any

import torch

from quorate.buckets.flat import layout_of
from quorate.checkpoint.encoding import FLAT, PIECES, flat_from, flats_as_parts, parts_as_flats
from quorate.checkpoint.pieces import flat_of_pieces, named_pieces, piece_of_flat
from quorate.core.errors import CheckpointError
from quorate.core.local_tensor import is_sharded
from quorate.core.vectors import Flat, header_in
from quorate.replica.replica import Replica


def has_loose_tensors(value: Any) -> bool:
    """Return whether a saved value has tensors that are no vectors: their rows are unknown."""
    if isinstance(value, dict):
        return value.keys() not in ({FLAT}, {PIECES}) and any(map(has_loose_tensors, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_loose_tensors, value))
    return isinstance(value, torch.Tensor) and value.numel() > 1


class KeptVectors:
    """The vectors of one replica, or of one piece of it."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._is_piece = any(map(is_sharded, replica.trained))

    def written(self, value: Any) -> Any:
        """Return `value` with every vector inside in a form that can be kept: by the names of parameters."""
        return flats_as_parts(value, self._as_pieces)

    def read(self, value: Any) -> Any:
        """Return the value that `written` has converted on any worker. Raises `CheckpointError` for other models'
        vectors."""
        return parts_as_flats(value, {FLAT: self._from_parts, PIECES: self._from_pieces})

    def header(self, value: Any) -> torch.Tensor:
        """Return the header of a vector that was written."""
        header: torch.Tensor = value[PIECES][1] if PIECES in value else value[FLAT][-1]
        return header

    def _as_pieces(self, vector: Flat) -> dict[str, Any]:
        return {PIECES: [named_pieces(vector, self._replica.trained), header_in(vector)]}

    def _from_pieces(self, held: Any) -> Flat:
        if not isinstance(held, list) or len(held) != 2 or not isinstance(held[1], torch.Tensor):
            raise CheckpointError("a vector in the checkpoint is not a tensor")
        return flat_of_pieces(held[0], held[1], self._replica.trained, self._replica.layout)

    def _from_parts(self, held: Any) -> Flat:
        replica = self._replica
        if not self._is_piece:
            return flat_from(held, replica.layout)
        whole = [
            (name, torch.empty(p.shape, dtype=p.dtype)) for name, p in zip(replica.names, replica.trained, strict=True)
        ]
        layout = layout_of(whole, header=replica.layout.header, coded=replica.is_coded)
        return piece_of_flat(flat_from(held, layout), replica.trained, replica.layout)
