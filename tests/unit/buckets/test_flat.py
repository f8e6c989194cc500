from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quorate.buckets.flat import layout_of, sum_dtype
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, digest_of, header_in, pack, segments_by_part, unpack

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
tensors = st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=9)


def made(kinds: list[tuple[tuple[int, ...], torch.dtype]]) -> list[torch.Tensor]:
    return [torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(d) for i, (shape, d) in enumerate(kinds)]


@given(tensors, st.integers(1, 400), st.integers(1, 100), st.integers(0, 5))
def test_every_element_lies_in_exactly_one_place(kinds, part_bytes, first, header):
    xs = made(kinds)
    layout = layout_of(
        [(str(i), x) for i, x in enumerate(xs)], header=header, part_bytes=part_bytes, first_part_bytes=first
    )
    taken = [torch.zeros(part.numel, dtype=torch.int) for part in layout.parts]
    for segment, x in zip(layout.segments, xs, strict=True):
        assert segment.shape == tuple(x.shape)
        assert layout.parts[segment.part].dtype == sum_dtype(x.dtype)
        taken[segment.part][segment.offset : segment.offset + segment.numel] += 1
    if header:
        taken[-1][taken[-1].numel() - header :] += 1
    assert all((count == 1).all() for count in taken)


@given(tensors, st.integers(1, 400))
def test_pack_then_unpack_gives_the_same_bits(kinds, part_bytes):
    xs = made(kinds)
    flat = Flat.zeros(layout_of([(str(i), x) for i, x in enumerate(xs)], part_bytes=part_bytes))
    pack(xs, flat)
    back = [torch.full_like(x, 9.0) for x in xs]
    unpack(flat, back)
    assert all(torch.equal(a, b) for a, b in zip(xs, back, strict=True))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(4, 120))
def test_a_part_is_full_with_the_tensor_that_reaches_its_limit(sizes, part_bytes):
    layout = layout_of(
        [(str(i), torch.zeros(n)) for i, n in enumerate(sizes)], part_bytes=part_bytes, first_part_bytes=part_bytes
    )
    for number, (part, indices) in enumerate(zip(layout.parts, segments_by_part(layout), strict=True)):
        assert (part.numel - sizes[min(indices)]) * 4 < part_bytes
        assert part.numel * 4 >= part_bytes or number == len(layout.parts) - 1


def test_the_last_tensors_travel_first():
    layout = layout_of([(str(i), torch.zeros(4)) for i in range(5)], part_bytes=16, first_part_bytes=16)
    assert [layout.segments[i].part for i in range(5)] == [4, 3, 2, 1, 0]


def test_layouts_are_told_apart_by_their_digest():
    layout = layout_of([("a", torch.zeros(4)), ("b", torch.zeros(2))])
    assert digest_of(layout) == digest_of(layout_of([("a", torch.ones(4)), ("b", torch.ones(2))]))
    for other in (
        [("a", torch.zeros(4)), ("c", torch.zeros(2))],
        [("a", torch.zeros(2, 2)), ("b", torch.zeros(2))],
        [("a", torch.zeros(4)), ("b", torch.zeros(2, dtype=torch.bfloat16))],
    ):
        assert digest_of(layout) != digest_of(layout_of(other))


def test_missing_gradients_are_zeros_and_scale_applies_in_the_dtype_of_summation():
    xs = [torch.full((3,), 1.0, dtype=torch.bfloat16), torch.full((2,), 6.0)]
    flat = Flat.zeros(layout_of([("a", xs[0]), ("b", xs[1])], header=2))
    flat.parts[0].fill_(5.0)
    pack([xs[0], None], flat, scale=1 / 3)
    assert flat.segment(0).tolist() == pytest.approx([1 / 3] * 3, abs=1e-7)
    assert flat.segment(1).tolist() == [0.0, 0.0]
    assert header_in(flat).tolist() == [5.0, 5.0]


def test_integers_cannot_be_averaged():
    with pytest.raises(ConfigurationError, match="steps is torch.int64"):
        layout_of([("steps", torch.zeros(3, dtype=torch.int64))])


def test_arithmetic_is_element_wise():
    layout = layout_of([("a", torch.zeros(3)), ("b", torch.zeros(2, dtype=torch.float64))])
    x, y = Flat.zeros(layout), Flat.zeros(layout)
    pack([torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0])], x)
    pack([torch.ones(3), torch.ones(2)], y)
    assert [s.tolist() for s in (x + y * 2 - x / 2).segments()] == [[2.5, 3.0, 3.5], [4.0, 4.5]]
    z = x.clone().add_(y, alpha=3.0).mul_(2.0)
    assert [s.tolist() for s in z.segments()] == [[8.0, 10.0, 12.0], [14.0, 16.0]]
    assert [s.tolist() for s in x.segments()] == [[1.0, 2.0, 3.0], [4.0, 5.0]]
    assert z.copy_(x).segment(1).tolist() == [4.0, 5.0]
