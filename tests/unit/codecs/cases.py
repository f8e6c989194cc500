"""Every codec with its defaults, and the settings of each that make it another one."""

from __future__ import annotations

import torch
from torch import Tensor

from quorate.codecs import codecs
from quorate.core.codec import Codec, Draw, Memory, Shapes, numel_of

SHAPES: Shapes = ((30, 7), (64,), (3, 4, 5))
ODD: tuple[Shapes, ...] = ((), ((0,),), ((1,),), ((),), ((0, 3), (2,)), ((1, 5), (5, 1)), ((9, 9),))
SETTINGS = {
    "atomo": [{"rank": 1}, {"rank": 5}],
    "blocks": [
        {"bits": 4},
        {"bits": 2, "block": 16},
        {"rounding": "stochastic"},
        {"bits": 4, "rounding": "stochastic"},
    ],
    "chunked-top-k": [
        {"chunk": 40, "keep": 5},
        {"chunk": 16, "keep": 16, "bits": 1},
        {"chunk": 100, "keep": 10, "bits": 4},
        {"chunk": 50, "keep": 3, "bits": 32},
    ],
    "demo": [{"keep": 64}, {"chunk": 10, "keep": 3}],
    "dgc": [
        {"density": 0.1, "nesterov": True},
        {"masking": False, "momentum": 0.0},
        {"warmup_rounds": 20, "clip_norm": 2.0},
    ],
    "fp8": [{"format": "e5m2", "block": 100}],
    "half": [{"dtype": "float16"}],
    "mask": [{"by": "unit"}, {"density": 0.3}],
    "one-bit": [{"by": "row"}],
    "qsgd": [{"levels": 1, "bucket": 4}, {"levels": 7}, {"levels": 3, "norm": "max"}, {"levels": 1000}],
    "random-k": [{"scaled": True, "density": 0.7}, {"density": 0.3}],
    "sign": [{"scale": "l2"}, {"scale": "none"}],
    "terngrad": [{"clip": 0.0}],
    "threshold": [{"of": "absolute", "at": 1.0}, {"at": 1.0}],
    "tiled-top-k": [{"tile": 8, "keep": 20}, {"tile": 16, "keep": 16, "bits": 32}],
    "top-k": [{"density": 0.2}],
}
CASES: dict[str, Codec] = {name: codecs.get(name)() for name in codecs.names()} | {
    f"{name}:{','.join(f'{key}={value}' for key, value in settings.items())}": codecs.get(name)(**settings)
    for name, several in SETTINGS.items()
    for settings in several
}
"""By a name that a test shows."""


def normal(shapes: Shapes = SHAPES, seed: int = 0) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(numel_of(shapes), generator=torch.Generator().manual_seed(seed))


def blank(codec: Codec, numel: int) -> Memory:
    """Its memory at first."""
    return {name: torch.zeros(numel) for name in codec.memories}


def coded(codec: Codec, x: Tensor, shapes: Shapes = SHAPES, draw: Draw = Draw()) -> Tensor:  # noqa: B008  # frozen
    """The code of `x`, nothing remembered."""
    return codec.encode(x, shapes, blank(codec, x.numel()), draw)[0]


def through(codec: Codec, x: Tensor, shapes: Shapes = SHAPES, draw: Draw = Draw()) -> Tensor:  # noqa: B008  # frozen
    """What comes out of the code of `x`, nothing remembered."""
    return codec.decode(coded(codec, x, shapes, draw), shapes, draw)
