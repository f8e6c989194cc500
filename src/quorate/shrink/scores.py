"""Scores of the numbers of a parameter: pruning removes those with the lowest."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

By = Literal["magnitude", "movement", "random"]
Unit = Literal["number", "filter"]


def score(x: Tensor, by: By, unit: Unit, *, before: Tensor | None, generator: torch.Generator) -> Tensor:
    """Return the score of each number of a parameter, on the CPU in double precision.

    Args:
        x: The parameter, of the consensus.
        by: "magnitude": |x|. "movement": (x - before) x, which is large where training has moved a number away from
            zero. "random": uniform draws.
        unit: "filter": each number gets the sum of the scores of its first index, so that rows of matrices and filters
            of convolutions are removed as a whole.
        before: The parameter at the beginning of the movement.
        generator: The source of random scores, in the same state on all workers.

    Source of movement, with gradients in place of differences: Sanh, Wolf and Rush, "Movement pruning", NeurIPS 2020,
    equation 5. Source of filters: Li, Kadav, Durdanovic, Samet and Graf, "Pruning filters for efficient ConvNets", ICLR
    2017, section 3.1.
    """
    x = x.detach().cpu().double()
    if by == "random":
        shape = (len(x), *[1] * (x.dim() - 1)) if unit == "filter" else x.shape
        return torch.rand(shape, dtype=torch.float64, generator=generator).expand(x.shape)
    if by == "magnitude":
        of_numbers = x.abs()
    else:
        assert before is not None
        of_numbers = (x - before.detach().cpu().double()) * x
    if unit == "filter":
        return of_numbers.flatten(1).sum(1).view(-1, *[1] * (x.dim() - 1)).expand(x.shape)
    return of_numbers
