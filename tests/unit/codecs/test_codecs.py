"""Laws of codecs: what is in the code, what is left out, and how many bytes it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quorate.codecs import codecs
from quorate.codecs.error_feedback import ERROR, ErrorFeedback
from quorate.core.codec import Codec, Draw, Shapes, numel_of

SHAPES: Shapes = ((30, 7), (64,), (3, 4, 5))


def drawn(shapes: Shapes = SHAPES, seed: int = 0) -> Tensor:
    return torch.randn(numel_of(shapes), generator=torch.Generator().manual_seed(seed))


def made(name: str) -> Codec:
    return codecs.get(name)()


def through(codec: Codec, x: Tensor, shapes: Shapes = SHAPES, draw: Draw = Draw()) -> Tensor:  # noqa: B008
    memory = {name: torch.zeros_like(x) for name in codec.memories}
    return codec.decode(codec.encode(x, shapes, memory, draw)[0], shapes, draw)


@pytest.mark.parametrize("name", codecs.names())
@pytest.mark.parametrize("shapes", [SHAPES, (), ((0,),), ((1,),), ((0, 3), (2,))], ids=str)
def test_a_code_is_as_long_as_it_says(name: str, shapes: Shapes) -> None:
    codec, x = made(name), drawn(shapes)
    code, _ = codec.encode(x, shapes, {n: torch.zeros_like(x) for n in codec.memories}, Draw())
    assert codec.wire_bytes(shapes) in (None, code.nbytes)
    found = codec.decode(code, shapes, Draw())
    assert found.dtype == torch.float32 and found.shape == x.shape


@pytest.mark.parametrize("name", codecs.names())
def test_as_much_is_in_the_code_as_is_stated(name: str) -> None:
    codec = made(name)
    delta = codec.contraction(SHAPES)
    if delta is not None:
        for seed in range(20):
            x = drawn(seed=seed)
            lost = (x - through(codec, x, draw=Draw(round=seed))).square().sum()
            assert lost <= (1 - delta) * x.square().sum() * (1 + 1e-6)


@pytest.mark.parametrize("name", codecs.names())
def test_what_is_left_out_comes_later(name: str) -> None:
    codec = ErrorFeedback(made(name))
    memory = {n: torch.zeros(numel_of(SHAPES)) for n in codec.memories}
    wanted, came = torch.zeros(numel_of(SHAPES)).double(), torch.zeros(numel_of(SHAPES)).double()
    for step in range(30):
        x, draw = drawn(seed=step), Draw(round=step)
        code, memory = codec.encode(x, SHAPES, memory, draw)
        wanted += x
        came += codec.decode(code, SHAPES, draw)
    torch.testing.assert_close(came + memory[ERROR].double(), wanted, rtol=0, atol=1e-4)
