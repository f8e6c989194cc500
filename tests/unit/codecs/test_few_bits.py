"""What each codec that writes numbers in fewer bits does, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from quorate.codecs.blocks import Blocks
from quorate.codecs.fp8 import FP8
from quorate.codecs.natural import Natural
from quorate.codecs.one_bit import OneBit
from quorate.codecs.qsgd import QSGD
from quorate.codecs.sign import Sign
from quorate.codecs.terngrad import TernGrad
from quorate.core.codec import Codec, Draw
from tests.unit.codecs.cases import coded, normal, through


def test_qsgd_keeps_what_is_a_level_and_draws_between_two() -> None:
    codec = QSGD(levels=5, bucket=2)
    assert through(codec, torch.tensor([3.0, -4.0, 0.0, -7.0]), ((4,),)).tolist() == [3, -4, 0, -7]
    x = torch.tensor([0.6, 0.8]).repeat(20_000)  # of norm 1: 1.8 and 2.4 of three levels
    decoded = through(QSGD(levels=3, bucket=2), x, (x.shape,)).view(-1, 2)
    for column, (low, high, above) in zip(decoded.T, [(1, 2, 0.8), (2, 3, 0.4)], strict=True):
        assert set((column * 3).round().int().tolist()) == {low, high}
        assert (column * 3 > (low + high) / 2).double().mean() == pytest.approx(above, abs=0.015)


def test_buckets_of_qsgd_have_norms_of_their_own() -> None:
    x = torch.cat([torch.full((512,), 1e-6), torch.full((100,), 1e6)])
    decoded = through(QSGD(norm="max"), x, (x.shape,))
    torch.testing.assert_close(decoded, x)


@pytest.mark.parametrize(("levels", "bits"), [(1, 2), (7, 4), (15, 5), (127, 8), (128, 9), (32767, 16)])
def test_qsgd_takes_no_more_bits_than_it_has_levels(levels: int, bits: int) -> None:
    assert QSGD(levels=levels).wire_bytes(((1024,),)) == 1024 * bits // 8 + 2 * 4


def test_blocks_are_whole_numbers_of_one_scale() -> None:
    x = torch.tensor([7.0, 3.4, -3.6, 0.4, 70.0, -12.0, 36.0, 4.0])
    assert through(Blocks(bits=4, block=4), x, ((8,),)).tolist() == [7, 3, -4, 0, 70, -10, 40, 0]
    assert through(Blocks(bits=2, block=8), x, ((8,),)).tolist() == [0, 0, 0, 0, 70, 0, 70, 0]
    assert through(Blocks(block=3), 127.0 - torch.arange(8.0), ((8,),)).tolist()[0:6:3] == [127, 124]


@pytest.mark.parametrize("format", ["e4m3", "e5m2"])
def test_fp8_is_what_torch_says(format: str) -> None:
    codec, dtype = FP8(format=format, block=512), {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[format]  # type: ignore[arg-type]
    every = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    every = every[every.isfinite()]
    assert torch.equal(through(codec, every, (every.shape,)), every)  # the scale is 1: the largest is the format's
    for scale in (1e-12, 1.0, 3e30, *(1 + torch.rand(100, generator=torch.Generator().manual_seed(0))).tolist()):
        x = normal() * scale
        factor = torch.finfo(dtype).max / x.abs().max()
        decoded = through(codec, x, (x.shape,))
        torch.testing.assert_close(decoded, (x * factor).to(dtype).float() / factor, rtol=1e-5, atol=0)
        assert decoded.abs().max() == pytest.approx(float(x.abs().max()))


def test_signs_have_the_scale_of_their_tensor() -> None:
    x, shapes = torch.tensor([1.0, -3.0, 0.0, 4.0, -10.0, -20.0]), ((2, 2), (2,))
    assert through(Sign(), x, shapes).tolist() == [2, -2, 2, 2, -15, -15]
    l2 = [math.sqrt(26 / 4), math.sqrt(500 / 2)]
    assert through(Sign(scale="l2"), x, shapes).tolist() == pytest.approx([l2[0], -l2[0], l2[0], l2[0], -l2[1], -l2[1]])
    assert coded(Sign(), x, shapes).numel() == 1 + 2 * 4


def test_the_sign_of_a_sum_of_signs_is_the_vote_of_the_majority() -> None:
    votes, codec = torch.zeros(3), Sign(scale="none")
    for x in ([1.0, -0.1, -5.0], [-9.0, -2.0, 1.0], [0.1, -7.0, -0.5]):
        codec.add_decoded(votes, coded(codec, torch.tensor(x), ((3,),)), ((3,),), Draw())
    assert votes.sign().tolist() == [1, -1, -1]
    assert not codec.needs_feedback and Sign().needs_feedback


def test_one_bit_has_two_means_a_column() -> None:
    x, shapes = torch.tensor([1.0, -2.0, 3.0, -4.0, -5.0, -6.0, 10.0, 20.0]), ((3, 2), (2,))
    # columns 1, 3, -5 and -2, -4, -6, where nothing is positive; and the column 10, 20, where nothing is negative
    assert through(OneBit(), x, shapes).tolist() == [2, -4, 2, -4, -5, -4, 15, 15]
    assert through(OneBit(by="row"), x, shapes).tolist() == [1, -2, 3, -4, -5.5, -5.5, 15, 15]
    assert coded(OneBit(), x, shapes).numel() == 1 + 3 * 8
    rows = torch.cat([x.view(4, 2)] * 5)
    sums = through(OneBit(), rows.view(-1), ((20, 2),)).view(20, 2).sum(0)
    torch.testing.assert_close(sums, rows.sum(0))


def test_natural_numbers_are_powers_of_two() -> None:
    exact = torch.tensor([1.0, -2.0, 0.0, 2.0**-126, -(2.0**127), 0.125, -0.0])
    assert torch.equal(through(Natural(), exact, ((7,),)), exact)
    x = torch.full((40_000,), -1.25)
    decoded = through(Natural(), x, (x.shape,))
    assert set(decoded.tolist()) == {-1.0, -2.0}
    assert (decoded == -2).double().mean() == pytest.approx(0.25, abs=0.01)
    denormal = through(Natural(), torch.full((20_000,), 2.0**-127), ((20_000,),))
    assert set(denormal.tolist()) == {0.0, 2.0**-126}
    assert through(Natural(), torch.full((64,), 3.4e38), ((64,),)).unique().tolist() == [2.0**127]


def test_terngrad_has_three_values_a_tensor() -> None:
    x = torch.cat([torch.tensor([4.0, -1.0, 0.0]).repeat(10_000), torch.full((8,), 3.0)])
    decoded = through(TernGrad(clip=0), x, ((30_000,), (8,)))
    assert set(decoded[:30_000].tolist()) == {-4.0, 0.0, 4.0} and decoded[30_000:].tolist() == [3.0] * 8
    assert (decoded[1:30_000:3] == -4).double().mean() == pytest.approx(0.25, abs=0.02)
    assert (decoded[:30_000:3] == 4).all() and not decoded[2:30_000:3].any()


def test_terngrad_cuts_what_is_far_out_and_nothing_else() -> None:
    x = torch.ones(100)
    x[3] = -50.0
    deviation = math.sqrt((99 + 2500) / 100)
    assert TernGrad().scale_of(x) == pytest.approx(2.5 * deviation)
    assert through(TernGrad(), x, ((100,),))[3] == pytest.approx(-2.5 * deviation)
    alike = 5 + 0.01 * normal(((100,),))
    for numbers in (alike, torch.tensor([-3.0])):
        assert TernGrad().scale_of(numbers) == numbers.abs().max()


@pytest.mark.parametrize(
    ("codec", "bits"),
    [(Sign(), 1), (OneBit(), 1), (TernGrad(), 2), (Blocks(bits=4), 4), (Blocks(), 8), (FP8(), 8), (Natural(), 9)],
    ids=lambda value: type(value).__name__ if isinstance(value, Codec) else str(value),
)
def test_bits_are_real_bits(codec: Codec, bits: int) -> None:
    assert 0 <= 8 * coded(codec, torch.ones(2**16), ((2**16, 1),)).nbytes / 2**16 - bits < 0.13
