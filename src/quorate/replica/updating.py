"""One step of the user's optimizer on given numbers: another gradient, other options, at another place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Parameter

from quorate.core.vectors import Flat


@contextmanager
def standing_at(parameters: Sequence[Parameter], at: Flat | None) -> Iterator[None]:
    """Inside, `parameters` are the numbers of `at`, which what becomes of them is written to; after it, what they were.

    None: they stay where they are. Numbers of another dtype than the parameters' are rounded to it on the way.
    """
    if at is None:
        yield
        return
    before = [p.data for p in parameters]
    there = [x if x.dtype == p.dtype else x.to(p.dtype) for p, x in zip(parameters, at.segments(), strict=True)]
    for p, x in zip(parameters, there, strict=True):
        p.data = x
    try:
        yield
        with torch.no_grad():
            for numbers, x in zip(at.segments(), there, strict=True):
                if x is not numbers:
                    numbers.copy_(x)
    finally:
        for p, x in zip(parameters, before, strict=True):
            p.data = x


@contextmanager
def with_gradient(parameters: Sequence[Parameter], gradient: Flat, used: Sequence[bool]) -> Iterator[None]:
    """Set `.grad` from `gradient` where `used`, to None elsewhere; restore it on exit."""
    kept: list[Tensor | None] = [p.grad for p in parameters]
    try:
        for p, numbers, is_used in zip(parameters, gradient.segments(), used, strict=True):
            p.grad = numbers.to(p.dtype) if is_used else None
        yield
    finally:
        for p, grad in zip(parameters, kept, strict=True):
            p.grad = grad


def has_gradient(parameters: Sequence[Parameter]) -> bool:
    """Whether there is a gradient, be it zeros: the numbers differ between workers, and must not decide."""
    return any(p.grad is not None for p in parameters)
