"""Tiled top-k: which numbers are sent, in which bins, and how many bytes; and clipping to the median norm."""

from __future__ import annotations

import math

import pytest
import torch

from quorate.codecs.tiled_top_k import TiledTopK
from quorate.core.codec import Draw
from quorate.means.coded import clip_to_median_


def test_a_matrix_takes_0_219_bits_a_number_and_a_table_of_four() -> None:
    assert TiledTopK().wire_bytes(((1024, 2048),)) == 1024 * 2048 * 64 * 14 // (4096 * 8) + 16
    bits = 8 * TiledTopK().wire_bytes(((4096, 4096),)) / 4096**2
    assert bits == pytest.approx(0.21875, abs=1e-4)


@pytest.mark.parametrize("shape", [(16, 24), (8, 8), (24, 2, 4), (10, 21), (30, 7)])
def test_the_largest_numbers_of_each_tile_are_sent(shape: tuple[int, ...]) -> None:
    codec = TiledTopK(tile=8, keep=16, bits=32)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    code, _ = codec.encode(x.view(-1), (shape,), {}, Draw())
    decoded = codec.decode(code, (shape,), Draw()).view(shape[0], -1)
    matrix = x.view(shape[0], -1)
    height, width = (max(d for d in range(1, 9) if length % d == 0) for length in matrix.shape)
    keep = max(1, 16 * height * width // 64)
    for top in range(0, matrix.shape[0], height):
        for left in range(0, matrix.shape[1], width):
            tile, sent = (m[top : top + height, left : left + width].reshape(-1) for m in (matrix, decoded))
            assert int((sent != 0).sum()) == keep
            assert set(sent.nonzero().view(-1).tolist()) == set(tile.abs().topk(keep).indices.tolist())
            assert torch.equal(sent[sent != 0], tile[sent != 0])


def test_values_are_the_means_of_four_bins_over_six_deviations_of_the_tensor() -> None:
    codec, shape = TiledTopK(tile=8, keep=16), (24, 16)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2)).view(-1)
    exact, two_bits = (
        c.decode(c.encode(x, (shape,), {}, Draw())[0], (shape,), Draw())
        for c in (TiledTopK(tile=8, keep=16, bits=32), codec)
    )
    values = exact[exact != 0]
    width = 6 * float(values.std()) / 4
    bins = ((values - values.mean()) / width + 2).round().clamp(0, 3)
    expected = torch.stack([values[bins == number].mean() for number in bins])
    torch.testing.assert_close(two_bits[exact != 0], expected)
    assert len(two_bits.unique()) <= 5


def test_equal_values_and_one_value_are_sent_exactly() -> None:
    for shape, keep in (((4, 4), 16), ((1, 1), 1)):
        x = torch.full((math.prod(shape),), 3.0)
        codec = TiledTopK(tile=4, keep=keep)
        assert torch.equal(codec.decode(codec.encode(x, (shape,), {}, Draw())[0], (shape,), Draw()), x)


def test_longer_tensors_are_shortened_to_the_lower_median_without_zeros() -> None:
    vectors = torch.tensor([[3.0, 4.0, 1.0], [0.3, 0.4, 2.0], [0.0, 0.0, 0.0], [6.0, 8.0, 4.0], [0.0, 1.0, 8.0]])
    clip_to_median_(vectors, ((2,), (1,)))
    expected = torch.tensor([[0.6, 0.8, 1.0], [0.3, 0.4, 2.0], [0.0, 0.0, 0.0], [0.6, 0.8, 2.0], [0.0, 1.0, 2.0]])
    torch.testing.assert_close(vectors, expected)


def test_a_row_that_is_not_finite_stays_so() -> None:
    vectors = torch.tensor([[math.nan, 1.0], [3.0, 4.0], [6.0, 8.0]])
    clip_to_median_(vectors, ((2,),))
    assert vectors[0].isnan().any() and torch.allclose(vectors[2], torch.tensor([3.0, 4.0]))
