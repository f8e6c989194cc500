"""The argument of `world.mean` of one worker, as it travels."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError

_LENGTH = 8
"""Bytes of a length."""


@dataclass(frozen=True)
class Weighed:
    """`x * weight` of one worker as bytes, with its kind, by which workers compare their arguments."""

    carried: Tensor
    weight: float
    rank: int
    kind: str

    @classmethod
    def of(cls, x: Tensor, weight: float, rank: int) -> Weighed:
        """Return the argument of one worker."""
        carried = (x * weight).cpu().contiguous().reshape(-1).view(torch.uint8)
        return cls(carried, weight, rank, f"{x.dtype} of the shape {tuple(x.shape)}")

    @property
    def whole(self) -> Tensor:
        """All fields in one tensor, so that one gather has them from the same workers."""
        about = json.dumps([self.weight, self.rank, self.kind]).encode()
        tail = torch.frombuffer(bytearray(about), dtype=torch.uint8)
        return torch.cat([self.carried, tail, torch.tensor([len(about)]).view(torch.uint8)])

    @classmethod
    def read(cls, whole: Tensor) -> Weighed:
        """The inverse of `whole`."""
        end = whole.numel() - _LENGTH
        begin = end - int(whole[end:].clone().view(torch.int64))
        return cls(whole[:begin], *json.loads(bytes(whole[begin:end].tolist())))

    def like(self, x: Tensor) -> Tensor:
        """The numbers, as those of `x` are laid out."""
        return self.carried.clone().view(x.dtype).reshape(x.shape)


def numbers_of(x: object) -> Tensor:
    """Return the argument of `world.mean` as a tensor. Raises `ConfigurationError`."""
    if isinstance(x, Tensor):
        check_dense(x, "mean")
        value = x.detach()
        return value if value.is_floating_point() or value.is_complex() else value.float()
    if not isinstance(x, Real):
        raise ConfigurationError(f"world.mean takes a tensor or a real number, not a {type(x).__name__}")
    return torch.tensor(float(x), dtype=torch.float64)


def weight_of(weight: object) -> float:
    """Return the weight as a number. Raises `ConfigurationError` for anything else."""
    number = weight.item() if isinstance(weight, Tensor) and weight.numel() == 1 else weight
    if not isinstance(number, Real) or not math.isfinite(number):
        raise ConfigurationError(f"the weight of world.mean must be a finite number, not {weight!r}")
    return float(number)


def check_dense(x: Tensor, call: str) -> None:
    """Raise `ConfigurationError` for a tensor that cannot be sent."""
    if x.layout is not torch.strided or x.is_meta:
        kind = "one on the meta device" if x.is_meta else f"one of the layout {x.layout}"
        raise ConfigurationError(f"world.{call} takes dense tensors with values, not {kind}")
