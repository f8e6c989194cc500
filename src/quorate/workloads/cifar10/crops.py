"""Random crops and flips, drawn by counting: a pure function of a seed and of which images are asked for together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from quorate.core.draws import mixed

MARGIN = 4
"""Pixels of black on every side before the crop."""


def augmented(pixels: Tensor, seed: int, indices: Sequence[int]) -> Tensor:
    """Return a random crop of each padded image (n, channels, height, width), of its own size; half are mirrored.

    What is drawn depends on `seed` and on all `indices`, in their order.
    """
    number, channels, height, width = pixels.shape
    random = torch.Generator().manual_seed(mixed(seed, *indices))
    top, left = torch.randint(0, 2 * MARGIN + 1, (2, number, 1), generator=random)
    is_mirrored = torch.randint(0, 2, (number, 1), generator=random).bool()
    rows = top + torch.arange(height)
    columns = left + torch.where(is_mirrored, torch.arange(width - 1, -1, -1), torch.arange(width))
    padded = pad(pixels, (MARGIN, MARGIN, MARGIN, MARGIN))
    return padded[
        torch.arange(number).view(-1, 1, 1, 1),
        torch.arange(channels).view(1, -1, 1, 1),
        rows.view(number, 1, height, 1),
        columns.view(number, 1, 1, width),
    ]
