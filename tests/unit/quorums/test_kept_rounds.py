"""Pending contributions out of a checkpoint: what their headers say, in worlds of any size, and from older headers."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from quorate.buckets.flat import layout_of
from quorate.checkpoint.vectors import KeptVectors
from quorate.core.vectors import Flat, header_in
from quorate.means.headers import COUNTS, header_length
from quorate.quorums.kept_rounds import _entry

PAST = 3
WEIGHT, USED = 0.5, [1.0, 0.0]


class Vectors:
    """Stands in for what reads them: in a header of another length nothing is read."""

    def __init__(self, size: int, about: Tensor) -> None:
        tensors = [("a", torch.ones(4)), ("b", torch.ones(2))]
        self._vector = Flat.zeros(layout_of(tensors, header=header_length(2, 1, size)))
        self._vector.parts[0][:6] = 6.0
        self._about = about

    def read(self, kept: Any) -> Flat:
        if self._about.numel() == header_in(self._vector).numel():
            header_in(self._vector).copy_(self._about)
        return self._vector

    def header(self, kept: Any) -> Tensor:
        return self._about


@pytest.mark.parametrize("places", [7, COUNTS])
@pytest.mark.parametrize("size", [PAST, 2, 5])
def test_headers_say_what_they_said(size: int, places: int) -> None:
    told = [0.0] * places
    told[0] = WEIGHT
    about = torch.tensor([*told, *USED, 0.0, 0.0, *[0.0] * PAST])
    vectors = cast(KeptVectors, Vectors(size, about))
    entry = _entry({"version": 4, "weight": WEIGHT, "count": 1, "vector": None}, vectors, PAST, size, places)
    header = header_in(entry.vector).tolist()
    assert header[0] == WEIGHT and header[1:COUNTS] == [0.0] * (COUNTS - 1)
    assert header[COUNTS:] == [*USED, *[0.0] * (len(header) - COUNTS - 2)]
    assert entry.vector.parts[0][:6].tolist() == pytest.approx([6.0 * PAST / size] * 6)
