"""Differential privacy of clients: ways of bounded length, and Gaussian noise in their sum.

The sum of a round's ways, each no longer than S, plus noise of deviation z S, hides whether any one client took part
(McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models", ICLR 2018, Algorithm 1,
flat clipping, with a fixed denominator). Each worker adds its share of the noise to what it hands in, in every round:
also where none of its clients was drawn, or nobody's. The noise does not depend on how many clients were drawn.
"""

from __future__ import annotations

import math
import secrets

import numpy as np
import torch

from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat


def check_privacy(weigh: str, clip: float, noise: float) -> None:
    """Raise `ConfigurationError` for settings under which noise would hide nothing."""
    if not (clip >= 0 and noise >= 0 and math.isfinite(clip) and math.isfinite(noise)):
        raise ConfigurationError(f"clip={clip}, noise={noise}: they are numbers from 0 on")
    if noise > 0 and not clip > 0:
        raise ConfigurationError("noise is measured in units of clip, the greatest length of a way; set clip as well")
    if noise > 0 and weigh != "equal":
        raise ConfigurationError(
            "with noise all clients count the same, because noise hides a client with more weight "
            'less; set weigh="equal"'
        )


def clipped(way: Flat, most: float) -> Flat:
    """The way, shortened in place to the length `most` where it is longer; 0: as it is.

    With a bound, one that is not finite becomes zeros: its length is none.
    """
    if not most:
        return way
    length = math.sqrt(sum(float(part.detach().abs().double().square().sum()) for part in way.bare().parts))
    if not math.isfinite(length):
        return way.map(torch.zeros_like)
    return way.mul_(most / length) if length > most else way


def noised(x: Flat, deviation: float, seed: list[int] | None) -> Flat:
    """`x` plus Gaussian noise in every coordinate, from the operating system's randomness or from `seed`."""
    draw = torch.Generator().manual_seed(secrets.randbits(63) if seed is None else _mixed(seed))
    return x.map(lambda part: part + (deviation * torch.randn(part.shape, generator=draw)).to(part))


def _mixed(seed: list[int]) -> int:
    return int(np.random.SeedSequence([number % 2**64 for number in seed]).generate_state(1, np.uint64)[0] >> 1)
