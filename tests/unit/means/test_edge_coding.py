"""The codec of vectors for neighbours: it changes coded parts, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from quorate.buckets.flat import layout_of
from quorate.codecs import codecs
from quorate.core.vectors import Flat
from quorate.means.edge_coding import EdgeCoding


def vector(seed: int = 0) -> Flat:
    """A matrix that is coded, and a row that is not."""
    draw = torch.Generator().manual_seed(seed)
    tensors = [("w", torch.zeros(16, 8)), ("b", torch.zeros(8))]
    x = Flat.zeros(layout_of(tensors, coded=lambda name, _: name == "w"))
    for part in x.parts:
        part.copy_(torch.randn(part.shape, generator=draw))
    return x


@pytest.mark.parametrize("name", ["top-k", "qsgd", "random-k", "half", "sign"])
def test_it_is_read_alike_by_all_and_only_coded_parts_are_changed(name: str) -> None:
    kind: Any = codecs.get(name)
    coding, x = EdgeCoding(kind(), seed=3), vector()
    tensors = coding.encode(x, 5, 2)
    assert all(tensors[part] is x.parts[part] for part in range(len(x.parts)) if not x.layout.parts[part].coded)
    first, again = (EdgeCoding(kind(), seed=3).decode(tensors, x.layout, 5, 2) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first.parts, again.parts, strict=True))
    assert torch.equal(first.segment(1), x.segment(1))
    assert not torch.equal(first.segment(0), x.segment(0))
    nbytes = sum(x.numel() * x.element_size() for x in tensors)
    assert nbytes == kind().wire_bytes(((16, 8),)) + 4 * 8


def test_random_numbers_are_drawn_for_each_worker_and_each_exchange() -> None:
    coding, x = EdgeCoding(codecs.get("qsgd")(levels=3), seed=3), vector()
    of = [coding.decode(coding.encode(x, *at), x.layout, *at).segment(0) for at in [(5, 2), (5, 3), (6, 2), (5, 2)]]
    assert torch.equal(of[0], of[3])
    assert not torch.equal(of[0], of[1]) and not torch.equal(of[0], of[2])


@pytest.mark.parametrize("name", ["top-k", "half"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_not_finite_is_read_as_no_number(name: str, number: float) -> None:
    coding, x = EdgeCoding(codecs.get(name)(), seed=3), vector()
    x.segment(0)[3, 3] = number
    decoded = coding.decode(coding.encode(x, 0, 0), x.layout, 0, 0)
    assert bool(decoded.segment(0).isnan().all())
    assert torch.equal(decoded.segment(1), x.segment(1))


@pytest.mark.parametrize(
    ("name", "settings", "left"),
    [("top-k", {"density": 0.01}, 0.914), ("sign", {}, 0.363), ("half", {}, 0.0), ("terngrad", {}, 1.0)],
)
def test_what_a_codec_leaves_out_of_small_numbers_is_tried(name: str, settings: dict[str, Any], left: float) -> None:
    assert EdgeCoding(codecs.get(name)(**settings), seed=0).left_out == pytest.approx(left, abs=0.02)
