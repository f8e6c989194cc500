"""Laws of all codecs: what is in the code, what is left out, how many bytes it is, and what it depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from quorate.codecs import packed
from quorate.codecs.error_feedback import ERROR, ErrorFeedback
from quorate.codecs.half import Half
from quorate.codecs.sign import Sign
from quorate.codecs.terngrad import TernGrad
from quorate.core.codec import Codec, Draw, numel_of
from quorate.core.errors import ConfigurationError
from tests.unit.codecs.cases import CASES, ODD, SHAPES, blank, coded, normal, through


def those(are_meant: Callable[[Codec], bool]) -> pytest.MarkDecorator:
    """A test's argument `codec`: those for which it is a law."""
    cases = {name: codec for name, codec in CASES.items() if are_meant(codec)}
    return pytest.mark.parametrize("codec", cases.values(), ids=cases)


ALL = those(lambda codec: True)
DRAWN = {"QSGD", "Natural", "TernGrad", "RandomK", "Mask", "Atomo"}
"""Another code in another round."""
VECTORS = {
    "normal": normal(),
    "heavy-tailed": normal() ** 5,
    "few large numbers": torch.where(torch.arange(numel_of(SHAPES)) % 9 == 4, 1.0, 1e-3 * normal()),
    "equal": torch.full((numel_of(SHAPES),), -4 / 3),
}


def is_drawn(codec: Codec) -> bool:
    return type(codec).__name__ in DRAWN or getattr(codec, "rounding", "") == "stochastic"


@ALL
@pytest.mark.parametrize("shapes", [SHAPES, *ODD], ids=str)
def test_a_code_is_as_long_as_it_says(codec: Codec, shapes: tuple[tuple[int, ...], ...]) -> None:
    x = normal(shapes)
    code = coded(codec, x, shapes)
    assert codec.wire_bytes(shapes) in (None, code.nbytes)
    assert code.dim() == 1 and (code.is_floating_point() if codec.is_linear else code.dtype == torch.uint8)
    decoded = codec.decode(code, shapes, Draw())
    assert decoded.dtype == torch.float32 and decoded.shape == x.shape
    added = torch.ones(x.shape)
    codec.add_decoded(added, code, shapes, Draw())
    torch.testing.assert_close(added, decoded + 1, rtol=1e-6, atol=1e-6)


@those(lambda codec: not codec.crosses_tensors)
def test_the_code_of_a_tensor_does_not_depend_on_others(codec: Codec) -> None:
    """Workers that hold the same tensor beside others (the tensor axis) decode the same numbers of it."""
    shapes, matrix = ((40, 41), (70,)), 40 * 41
    x = normal(shapes)
    other = torch.cat([3 * normal(shapes, seed=1)[:matrix], x[matrix:]])
    assert torch.equal(through(codec, x, shapes)[matrix:], through(codec, other, shapes)[matrix:])


@those(lambda codec: codec.contraction(SHAPES) is not None)
@pytest.mark.parametrize("name", VECTORS)
def test_as_much_is_in_the_code_as_is_stated(codec: Codec, name: str) -> None:
    delta, x = codec.contraction(SHAPES), VECTORS[name]
    rounds = 60 if is_drawn(codec) else 1
    lost = torch.stack([(x - through(codec, x, draw=Draw(round=round))).square().sum() for round in range(rounds)])
    spread = lost.std() / rounds**0.5 if rounds > 1 else 0.0
    assert delta is not None and 0 < delta <= 1
    assert lost.mean() <= (1 - delta + 1e-6) * x.square().sum() + 4 * spread


@those(lambda codec: codec.contraction(SHAPES) is not None and not is_drawn(codec))
@pytest.mark.parametrize("place", [77, 215], ids=["in a matrix", "in a vector"])
def test_as_much_is_in_the_code_of_a_single_number(codec: Codec, place: int) -> None:
    """The worst case of those that send means."""
    delta, x = codec.contraction(SHAPES), torch.eye(numel_of(SHAPES))[place]
    assert delta is not None
    assert (x - through(codec, x)).square().sum() <= 1 - delta + 1e-6


@those(lambda codec: not codec.is_biased)
@pytest.mark.parametrize("name", ["normal", "heavy-tailed"])
def test_the_mean_over_draws_is_the_vector(codec: Codec, name: str) -> None:
    """Seen from several directions, that of the vector among them, where an inverted probability shows at once."""
    x = VECTORS[name]
    wanted = x
    if isinstance(codec, TernGrad):
        wanted = torch.cat(
            [piece.clamp(-codec.scale_of(piece), codec.scale_of(piece)) for piece in x.split([210, 64, 60])]
        )
    directions = torch.nn.functional.normalize(
        torch.stack([x, x.sign(), *(normal(seed=s) for s in range(1, 9))]), dim=1
    )
    rounds = 200 if is_drawn(codec) else 1
    off = torch.stack([directions @ (through(codec, x, draw=Draw(round=r)) - wanted) for r in range(rounds)])
    spread = off.std(0) / rounds**0.5 if rounds > 1 else torch.zeros(10)
    rounding = 2.0**-9 if isinstance(codec, Half) else 1e-6  # to the nearest: not drawn, but in no direction
    assert (off.mean(0).abs() <= 4 * spread + rounding * x.norm()).all()


@those(lambda codec: codec.needs_feedback)
def test_what_is_left_out_comes_later(codec: Codec) -> None:
    codec = ErrorFeedback(codec)
    memory = blank(codec, numel_of(SHAPES))
    wanted, received = torch.zeros(numel_of(SHAPES)).double(), torch.zeros(numel_of(SHAPES)).double()
    for step in range(30):
        x, draw = normal(seed=step), Draw(round=step)
        code, memory = codec.encode(x, SHAPES, memory, draw)
        wanted += x
        received += codec.decode(code, SHAPES, draw)
    torch.testing.assert_close(received + memory[ERROR].double(), wanted, rtol=0, atol=1e-4)
    assert codec.is_biased and not codec.needs_feedback


def test_what_is_left_out_may_fade() -> None:
    """e = u - decoded of u = g + decay e, step by step."""
    codec = ErrorFeedback(CASES["top-k"], decay=0.5)
    memory, error = blank(codec, numel_of(SHAPES)), torch.zeros(numel_of(SHAPES))
    for step in range(4):
        code, memory = codec.encode(normal(seed=step), SHAPES, memory, Draw())
        error = normal(seed=step) + 0.5 * error
        torch.testing.assert_close(memory[ERROR] + codec.decode(code, SHAPES, Draw()), error)
        error = memory[ERROR].clone()


@pytest.mark.parametrize("name", ["dgc", "demo"])
def test_who_remembers_by_itself_takes_no_feedback(name: str) -> None:
    assert not CASES[name].needs_feedback
    with pytest.raises(ConfigurationError, match="remembers by itself what it leaves out"):
        ErrorFeedback(CASES[name])


def test_what_is_remembered_stays_float32() -> None:
    codec = ErrorFeedback(CASES["top-k"])
    for dtype in (torch.float64, torch.bfloat16):
        _, memory = codec.encode(normal().to(dtype), SHAPES, blank(codec, numel_of(SHAPES)), Draw())
        assert memory[ERROR].dtype == torch.float32


@those(lambda codec: codec.is_linear)
def test_sums_of_linear_codes_are_codes_of_sums(codec: Codec) -> None:
    draw, vectors = Draw(seed=3, round=5), [normal(seed=seed) for seed in range(3)]
    codes = [coded(codec, x, draw=draw.of(rank)).float() for rank, x in enumerate(vectors)]
    single = [codec.decode(code, SHAPES, draw.of(rank)) for rank, code in enumerate(codes)]
    together = codec.decode(codes[0] + codes[1] + codes[2], SHAPES, draw)
    torch.testing.assert_close(together, single[0] + single[1] + single[2])


@ALL
def test_a_code_depends_on_what_it_is_given_and_on_nothing_else(codec: Codec) -> None:
    x, memory = normal(), {name: normal(seed=9) for name in codec.memories}
    before = x.clone(), {name: vector.clone() for name, vector in memory.items()}
    draw = Draw(seed=1, round=2, rank=3, part=4)
    first, remembered = codec.encode(x, SHAPES, memory, draw)
    torch.rand(3)  # somebody else draws, too
    again, same = codec.encode(x, SHAPES, memory, draw)
    assert torch.equal(first, again) and remembered.keys() == same.keys() == set(codec.memories)
    assert all(torch.equal(vector, same[name]) for name, vector in remembered.items())
    assert torch.equal(x, before[0]) and all(torch.equal(vector, before[1][name]) for name, vector in memory.items())
    kept = first.clone()
    codec.decode(first, SHAPES, draw)
    assert torch.equal(first, kept)


@ALL
def test_only_what_is_drawn_differs_from_round_to_round(codec: Codec) -> None:
    first, other = (coded(codec, normal(), draw=Draw(round=round)) for round in (30, 31))
    assert torch.equal(first, other) != is_drawn(codec) or first.shape != other.shape
    elsewhere = coded(codec, normal(), draw=Draw(round=30, rank=1))
    is_alike = first.shape == elsewhere.shape and torch.equal(first, elsewhere)
    assert is_alike == (codec.is_linear or not is_drawn(codec))


@ALL
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_coded_as_float32_is(codec: Codec, dtype: torch.dtype) -> None:
    x = normal().to(dtype)
    assert torch.equal(coded(codec, x), coded(codec, x.float()))


@ALL
def test_a_memory_of_float64_makes_a_code_of_equal_length(codec: Codec) -> None:
    shapes, x, narrow = SHAPES, normal().double(), blank(codec, numel_of(SHAPES))
    wide = {name: numbers.double() for name, numbers in narrow.items()}
    for round in (30, 31):
        draw = Draw(round=round)
        code, wide = codec.encode(x, shapes, wide, draw)
        expected, narrow = codec.encode(x.float(), shapes, narrow, draw)
        assert (code.dtype, code.shape) == (expected.dtype, expected.shape)
        torch.testing.assert_close(
            codec.decode(code, shapes, draw), codec.decode(expected, shapes, draw), rtol=1e-5, atol=1e-5
        )
        assert all(numbers.dtype == torch.float64 for numbers in wide.values())


@those(lambda codec: codec != Sign(scale="none"))
def test_zeros_stay_zeros(codec: Codec) -> None:
    shapes = ((200, 100), (100,))
    assert not through(codec, torch.zeros(numel_of(shapes)), shapes).any()


@pytest.mark.parametrize(
    "name", ["qsgd", "qsgd:levels=1000", "blocks:rounding=stochastic", "natural", "terngrad", "fp8"]
)
def test_zeros_beside_large_numbers_stay_zeros(name: str) -> None:
    """Never drawn upwards by a sum that was rounded: among 600,000 of them one in a million would be seen."""
    x = torch.zeros(1500, 400)
    x[0] = 100.0
    assert not through(CASES[name], x.view(-1), ((600_000,),))[400:].any()


@those(lambda codec: codec != Half(dtype="float16"))
@pytest.mark.parametrize("scale", [1e-37, 1e36], ids=str)
def test_tiny_and_huge_numbers_stay_finite(codec: Codec, scale: float) -> None:
    decoded = through(codec, normal() * scale)
    assert decoded.isfinite().all()
    if codec.is_biased and codec != Sign(scale="none"):
        assert decoded.abs().max() <= 20 * scale


@ALL
def test_where_a_code_lies_in_memory_does_not_matter(codec: Codec) -> None:
    code = coded(codec, normal())
    moved = torch.zeros(len(code) + 3, dtype=code.dtype)[3:].copy_(code)
    assert torch.equal(codec.decode(moved, SHAPES, Draw()), codec.decode(code, SHAPES, Draw()))


@ALL
def test_a_long_vector_is_coded_in_pieces(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    x, draw = normal(), Draw(round=2)
    whole = through(codec, x, draw=draw)
    monkeypatch.setattr(packed, "NUMBERS", 64)
    torch.testing.assert_close(through(codec, x, draw=draw), whole)


@pytest.mark.parametrize(
    ("name", "settings", "atol"),
    [
        ("random-k", {"density": 1.0}, 0),
        ("random-k", {"density": 1.0, "scaled": True}, 0),
        ("mask", {"density": 1.0}, 0),
        ("mask", {"density": 1.0, "by": "unit"}, 0),
        ("top-k", {"density": 1.0}, 0),
        ("dgc", {"density": 1.0}, 0),
        ("threshold", {"at": 1e-9, "of": "absolute"}, 0),
        ("atomo", {"rank": 100}, 0),
        ("demo", {"keep": 64}, 1e-5),
        ("chunked-top-k", {"chunk": 100, "keep": 100, "bits": 32}, 0),
        ("qsgd", {"levels": 32767, "norm": "max"}, 1.1 * 4.0 / 32767),
        ("blocks", {}, 4.0 / 254),
    ],
    ids=str,
)
def test_a_setting_that_leaves_nothing_out_is_dense(name: str, settings: dict[str, object], atol: float) -> None:
    x = normal()
    codec = dataclasses.replace(CASES[name], **settings)
    decoded: Tensor = through(codec, x, draw=Draw(round=7))
    torch.testing.assert_close(decoded, x, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("top-k", {"density": 0.0}, "density is 0.0; it must be a share of all numbers, above 0 and at most 1"),
        ("random-k", {"density": 1.5}, "density is 1.5"),
        ("mask", {"density": -1.0}, "density is -1.0"),
        ("dgc", {"density": float("nan")}, "density is nan"),
        ("dgc", {"momentum": 1.0}, "momentum is 1.0; it must be from 0 to below 1"),
        ("dgc", {"clip_norm": -1.0}, "clip_norm is -1.0; it must be a norm above 0, or 0 for none"),
        ("dgc", {"warmup_rounds": -1}, "warmup_rounds is -1 and warmup_stages 4; they must be whole numbers"),
        ("dgc", {"warmup_stages": 0}, "warmup_stages 0"),
        ("qsgd", {"levels": 0}, "levels is 0; it must be a number from 1 to 32767"),
        ("qsgd", {"levels": 32768}, "levels is 32768"),
        ("qsgd", {"bucket": 0}, "bucket is 0; it must be a number of numbers"),
        ("blocks", {"block": 0}, "block is 0"),
        ("fp8", {"block": -3}, "block is -3"),
        ("terngrad", {"clip": 0.5}, "clip is 0.5; it must be a number of standard deviations"),
        ("terngrad", {"clip": float("nan")}, "clip is nan"),
        ("threshold", {"at": 0.0}, "at is 0.0; it must be a threshold above 0"),
        ("atomo", {"rank": 0}, "rank is 0; it must be a number of singular triplets"),
        ("demo", {"decay": 1.1}, "decay is 1.1; it must be from 0 to 1"),
        ("demo", {"chunk": 2000}, "chunk is 2000; it must be a number of numbers from 1 to 1024"),
        ("chunked-top-k", {"chunk": 1 << 17}, "chunk is 131072; it must be a number of numbers from 1 to 65536"),
        ("chunked-top-k", {"keep": 0}, "keep is 0; it must be a number of numbers from 1 to 4096, the chunk"),
        ("demo", {"keep": 65}, "keep is 65; it must be a number of waves from 1 to 64, the chunk"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(name: str, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        dataclasses.replace(CASES[name], **settings)
