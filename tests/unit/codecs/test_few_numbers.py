"""What each codec that sends only some numbers does, by hand."""

from __future__ import annotations

import pytest
import torch

from quorate.codecs.atomo import Atomo, probabilities
from quorate.codecs.chunked_top_k import ChunkedTopK
from quorate.codecs.demo import DeMo
from quorate.codecs.dgc import DGC
from quorate.codecs.mask import Mask
from quorate.codecs.random_k import RandomK
from quorate.codecs.threshold import Threshold
from quorate.codecs.top_k import TopK
from quorate.core.codec import Draw, Shapes, numel_of
from tests.unit.codecs.cases import SHAPES, blank, coded, normal, through


def test_top_k_is_of_each_tensor() -> None:
    x = torch.tensor([1.0, -9.0, 3.0, 4.0, 0.1, 0.2, -0.3])
    assert through(TopK(density=0.5), x, ((2, 2), (3,))).tolist() == pytest.approx([0, -9, 0, 4, 0, 0, -0.3])


def test_chunked_top_k_has_two_sizes_in_each_chunk_and_places_of_few_bits() -> None:
    x = torch.tensor([1.0, -9.0, 3.0, 4.0, 0.1, -8.0, 0.0, 0.0] + [0.5, 0.0, -2.0, 0.0] * 2 + [7.0, -0.1])
    codec, shapes = ChunkedTopK(chunk=8, keep=4), ((18,),)
    wanted = [0, -8.5, 3.5, 3.5, 0, -8.5, 0, 0] + [0.5, 0, -2, 0] * 2 + [7, 0]
    assert through(codec, x, shapes).tolist() == wanted  # of the last chunk, of two numbers, one
    assert coded(codec, x, shapes).nbytes == 3 * 2 * 4 + 3 + 4  # 9 numbers: sizes, 2 bits each, 3 bits each
    assert through(ChunkedTopK(chunk=8, keep=4, bits=1), x, shapes)[1].item() == -6
    assert through(ChunkedTopK(chunk=8, keep=4, bits=32), x, shapes)[1].item() == -9
    assert ChunkedTopK().wire_bytes(((4096, 10),)) == 10 * (2 * 4 + 64 * 2 // 8 + 64 * 12 // 8)


def test_random_k_takes_one_of_each_stretch() -> None:
    codec, x = RandomK(density=0.1), torch.arange(1.0, 104.0)
    seen = torch.zeros(103)
    for round in range(300):
        decoded = through(codec, x, ((103,),), Draw(round=round))
        assert (decoded != 0).sum() == 10 and all(decoded[10 * n : 10 * n + 14].any() for n in range(10))
        assert torch.equal(decoded[decoded != 0], x[decoded != 0])
        seen += decoded != 0
    assert seen.min() >= 10 and seen.max() <= 55  # 28 or so
    assert through(RandomK(density=0.1, scaled=True), torch.ones(100), ((100,),)).sum() == 100


def test_a_threshold_is_in_root_mean_squares_of_the_tensor() -> None:
    x = torch.tensor([10.0, 0.1, 0.1, -0.1, 0.2, 0.3, 0.1, 0.1, 0.1, -0.1, 0.5, -0.5, 0.5])
    shapes: Shapes = ((10,), (3,))
    assert through(Threshold(at=3), x, shapes).nonzero().view(-1).tolist() == [0, 10, 11, 12]  # equal ones all travel
    absolute = Threshold(at=0.3, of="absolute")
    assert through(absolute, x, shapes).nonzero().view(-1).tolist() == [0, 5, 10, 11, 12]
    assert coded(absolute, x, shapes).nbytes == 8 + 5 * 8
    assert coded(Threshold(), torch.zeros(13), shapes).nbytes == 8


def test_a_threshold_counts_so_that_codes_may_be_filled_up() -> None:
    code = torch.nn.functional.pad(coded(Threshold(), normal()), (0, 40))
    assert torch.equal(Threshold().decode(code, SHAPES, Draw()), through(Threshold(), normal()))


@pytest.mark.parametrize("density", [0.1, 0.25, 0.3, 0.61])
def test_every_number_has_its_turn_in_a_mask(density: float) -> None:
    for numel in (1, 2, 7, 100, 144):
        codec, seen = Mask(density=density), torch.zeros(numel)
        count = len(coded(codec, seen, ((numel,),)))
        for round in range(numel):  # as often as it takes for all to be as far
            decoded = through(codec, torch.ones(numel), ((numel,),), Draw(round=round, rank=round))
            assert decoded.sum() == count
            seen += decoded
        assert (seen == count).all()
        first = sum(
            through(codec, torch.ones(numel), ((numel,),), Draw(round=round)) for round in range(numel // count)
        )
        assert torch.as_tensor(first).max() <= 1


def test_a_unit_is_a_row_with_its_bias() -> None:
    x, shapes = torch.arange(1.0, 13.0), ((4, 2), (4,))
    rows = set()
    for round in range(4):
        decoded = through(Mask(density=0.25, by="unit"), x, shapes, Draw(round=round))
        (row,) = decoded[8:].nonzero().view(-1).tolist()
        assert decoded[:8].view(4, 2)[row].tolist() == [2 * row + 1, 2 * row + 2] and (decoded != 0).sum() == 3
        rows.add(row)
    assert rows == {0, 1, 2, 3}


def test_two_steps_of_dgc() -> None:
    """A matrix of four numbers, of which one travels, and a bias, which travels as a whole."""
    codec, shapes = DGC(density=0.25, momentum=0.5), ((2, 2), (1,))
    g = torch.tensor([1.0, -4.0, 2.0, 0.0, 8.0])
    code, memory = codec.encode(g, shapes, blank(codec, 5), Draw())
    assert codec.decode(code, shapes, Draw()).tolist() == [0, -4, 0, 0, 8]
    assert memory["momentum"].tolist() == [1, 0, 2, 0, 8]  # masked where -4 was
    assert memory["velocity"].tolist() == [1, 0, 2, 0, 0]
    code, memory = codec.encode(g, shapes, memory, Draw(round=1))
    # m = 0.5 m + g is 1.5, -4, 3, 0, 12; v = v + m is 2.5, -4, 5, 0
    assert codec.decode(code, shapes, Draw(round=1)).tolist() == [0, 0, 5, 0, 12]
    assert memory["momentum"].tolist() == [1.5, -4, 0, 0, 12]
    assert memory["velocity"].tolist() == [2.5, -4, 0, 0, 0]


def test_dgc_with_nesterov_momentum_and_without_masking() -> None:
    codec, shapes = DGC(density=0.5, momentum=0.5, nesterov=True, masking=False), ((2, 1), (1,))
    g = torch.tensor([4.0, 2.0, 8.0])
    code, memory = codec.encode(g, shapes, blank(codec, 3), Draw())
    assert codec.decode(code, shapes, Draw()).tolist() == [6, 0, 12]  # v = m + g where m = 0.5 g
    assert memory["momentum"].tolist() == [2, 1, 4] and memory["velocity"].tolist() == [0, 3, 0]
    code, memory = codec.encode(g, shapes, memory, Draw())
    assert memory["momentum"].tolist() == [3, 1.5, 6]
    assert codec.decode(code, shapes, Draw()).tolist() == [7, 0, 14]
    assert memory["velocity"].tolist() == [0, 6.5, 0]


def test_what_dgc_has_not_sent_is_in_its_velocity() -> None:
    codec = DGC(density=0.01, momentum=0.0)
    memory, wanted, received = blank(codec, numel_of(SHAPES)), torch.zeros(334), torch.zeros(334)
    for step in range(20):
        x = normal(seed=step)
        code, memory = codec.encode(x, SHAPES, memory, Draw(round=step))
        wanted += x
        codec.add_decoded(received, code, SHAPES, Draw(round=step))
    torch.testing.assert_close(received + memory["velocity"], wanted, rtol=0, atol=1e-4)


def test_the_density_of_dgc_falls_as_published() -> None:
    codec = DGC(density=0.001, warmup_rounds=40)
    published = [0.25] * 10 + [0.063] * 10 + [0.0158] * 10 + [0.004] * 10 + [0.001] * 5
    assert [codec.density_in(round) for round in range(45)] == pytest.approx(published, rel=0.01)
    shapes = ((100, 100),)
    for round, count in [(0, 2511), (39, 39), (40, 10)]:
        assert codec.encode(normal(shapes), shapes, blank(codec, 10_000), Draw(round=round))[0].nbytes == 8 * count


def test_dgc_sends_no_more_of_equal_numbers_and_of_none() -> None:
    for x in (torch.ones(10_000), torch.zeros(10_000)):
        assert coded(DGC(density=0.01), x, ((100, 100),)).nbytes == 800


def test_dgc_clips_what_a_worker_brings_and_nothing_that_is_short() -> None:
    codec, x = DGC(density=1.0, clip_norm=5.0), torch.tensor([30.0, 40.0])
    assert through(codec, x, ((1, 2),)).tolist() == pytest.approx([3, 4])
    assert through(codec, x / 100, ((1, 2),)).tolist() == pytest.approx([0.3, 0.4])
    assert not through(codec, torch.zeros(2), ((1, 2),)).any()


@pytest.mark.parametrize(
    ("sizes", "budget", "expected"),
    [
        ([10, 1, 1], 2, [1, 0.5, 0.5]),  # not 1, 1/6, 1/6: the surplus of the first is shared
        ([4, 3, 2, 1], 1, [0.4, 0.3, 0.2, 0.1]),
        ([5, 5, 1], 2, [10 / 11, 10 / 11, 2 / 11]),
        ([3, 0, 0], 2, [1, 0, 0]),
        ([0, 0], 1, [0, 0]),
        ([2, 1], 5, [1, 1]),
        ([], 3, []),
    ],
)
def test_probabilities_of_atoms(sizes: list[float], budget: int, expected: list[float]) -> None:
    assert probabilities(torch.tensor(sizes), budget).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_probabilities_have_a_smaller_variance(seed: int) -> None:
    """By bisection: where the variance is smallest, p is size / level, but at most 1, for one level."""
    draws = torch.Generator().manual_seed(seed)
    sizes = (torch.rand(12, generator=draws).double() ** (1 + seed)).sort(descending=True).values
    for budget in (1, 3, 7, 11):
        low, high = 0.0, float(sizes.sum())
        for _ in range(200):
            level = (low + high) / 2
            low, high = (level, high) if (sizes / level).clamp(max=1).sum() > budget else (low, level)
        p = probabilities(sizes, budget)
        torch.testing.assert_close(p, (sizes / high).clamp(max=1), rtol=1e-9, atol=1e-12)
        assert p.sum() == pytest.approx(budget)


def test_atomo_sends_triplets_and_small_tensors_as_they_are() -> None:
    codec, shapes = Atomo(rank=1), ((30, 20), (5,), (2, 2))
    left, right = normal(((30,),)), normal(((20,),), seed=1)
    x = torch.cat([torch.outer(left, right).view(-1), normal(((9,),), seed=2)])
    torch.testing.assert_close(through(codec, x, shapes), x, rtol=1e-4, atol=1e-4)  # of rank one: always drawn
    lengths = {coded(codec, normal(shapes), shapes, Draw(round=round)).nbytes for round in range(30)}
    assert lengths <= {4 + 4 * 9 + 4 * 50 * count for count in range(8)} and len(lengths) > 2


def test_a_level_of_a_chunk_is_one_wave() -> None:
    codec = DeMo(keep=1, decay=0.5)
    x = torch.cat([torch.full((64,), 3.0), torch.full((64,), -1.0)])
    code, memory = codec.encode(x, ((128,),), blank(codec, 128), Draw())
    torch.testing.assert_close(codec.decode(code, ((128,),), Draw()), x, rtol=0, atol=1e-5)
    torch.testing.assert_close(memory["momentum"], torch.zeros(128), rtol=0, atol=1e-5)
    wave = torch.cos(torch.pi / 64 * 5 * (torch.arange(64) + 0.5))
    torch.testing.assert_close(through(codec, 7 * wave, ((64,),)), 7 * wave, rtol=0, atol=1e-4)


def test_what_demo_has_not_sent_stays_in_its_momentum_and_decays() -> None:
    codec = DeMo(keep=2, decay=0.5)
    memory, rest = blank(codec, numel_of(SHAPES)), torch.zeros(numel_of(SHAPES))
    for step in range(10):
        x = normal(seed=step)
        code, memory = codec.encode(x, SHAPES, memory, Draw(round=step))
        rest = 0.5 * rest + x - codec.decode(code, SHAPES, Draw(round=step))
        torch.testing.assert_close(memory["momentum"], rest, rtol=0, atol=1e-5)
