"""Attacks: vectors that wrong workers send in place of their gradients, for tests and for teaching; pure.

Some attacks need the vectors of honest workers, as their authors assume; they receive them as an argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from quorate.core.codec import Draw
from quorate.core.errors import ConfigurationError, unknown
from quorate.core.settings import settings_for, written_settings

Name = Literal[
    "sign-flip", "constant", "noise", "nan", "little-is-enough", "inner-product", "mimic", "replayed", "delayed"
]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The attack of the last `count` workers."""

    name: Name
    count: int = 1
    """Number of workers that attack, those with the greatest ranks."""
    scale: float | None = None
    """Strength; None: the default of the attack, see `ATTACKS`."""
    steps: int = 10
    """Steps until `replayed` sends a gradient again, or `delayed` sends it at all."""

    def __post_init__(self) -> None:
        if self.count < 0 or self.steps < 1:
            raise ConfigurationError(
                f"{self.name}: count is {self.count} and steps {self.steps}; they must be counts, from 0 and from 1 on"
            )

    @property
    def knows_all(self) -> bool:
        """Whether it depends on the vectors of honest workers."""
        return ATTACKS[self.name].knows_all

    @property
    def remembers(self) -> bool:
        """Whether it depends on earlier gradients of this worker."""
        return self.name in ("replayed", "delayed")

    def attackers(self, size: int) -> range:
        """Return the ranks of the attackers among `size` workers."""
        return range(max(0, size - self.count), size)

    def sent(self, own: Tensor, honest: Tensor | None, draw: Draw, *, unit: float = 1.0) -> Tensor:
        """Return the vector sent in place of `own` (d); `honest` (h, d) are those of honest workers, if `knows_all`.
        For attacks that remember, `own` is the earlier gradient. `unit`: the length of a gradient of length 1."""
        kind = ATTACKS[self.name]
        scale = kind.scale if self.scale is None else self.scale
        scale *= unit if kind.is_absolute else 1.0
        return kind.make(own, honest, scale, draw).to(own.dtype)


@dataclass(frozen=True)
class _Kind:
    make: Callable[[Tensor, Any, float, Draw], Tensor]
    scale: float
    knows_all: bool = False
    is_absolute: bool = False
    """Whether the scale is in units of a gradient, and not a factor."""


def _noise(own: Tensor, honest: Any, scale: float, draw: Draw) -> Tensor:
    """Return normal numbers whose norm is on average `scale` times that of the gradient."""
    generator, length = draw.generator(own.device), scale * float(own.norm()) / max(1, own.numel()) ** 0.5
    return torch.randn(own.shape, generator=generator, device=own.device).mul_(length)


def _little(own: Tensor, honest: Tensor, scale: float, draw: Draw) -> Tensor:
    """Return the mean less `scale` standard deviations, per coordinate (Baruch, Baruch and Goldberg 2019)."""
    return honest.mean(0) - scale * honest.std(0, correction=0)


ATTACKS: Mapping[str, _Kind] = {
    "sign-flip": _Kind(lambda own, honest, scale, draw: -scale * own, 10.0),
    "constant": _Kind(lambda own, honest, scale, draw: torch.full_like(own, scale), -100.0, is_absolute=True),
    "noise": _Kind(_noise, 100.0),
    "nan": _Kind(lambda own, honest, scale, draw: torch.full_like(own, torch.nan), 1.0),
    "little-is-enough": _Kind(_little, 1.5, knows_all=True),
    # Xie, Koyejo and Gupta 2019: against the mean of the honest
    "inner-product": _Kind(lambda own, honest, scale, draw: -scale * honest.mean(0), 10.0, knows_all=True),
    # Karimireddy, He and Jaggi 2022: all send the vector of one honest worker
    "mimic": _Kind(lambda own, honest, scale, draw: scale * honest[0], 1.0, knows_all=True),
    "replayed": _Kind(lambda own, honest, scale, draw: scale * own, 1.0),
    "delayed": _Kind(lambda own, honest, scale, draw: scale * own, 1.0),
}
"""The attacks by name, with their default scales."""


def attack_from(text: str) -> Attack:
    """Parse `sign-flip`, `sign-flip:2` (two workers), or `sign-flip:count=2,scale=5`. Raises `ConfigurationError`."""
    match = re.fullmatch(r"([\w-]+):(\d+)(?:,(.*))?", text)
    if match is not None:
        text = f"{match[1]}:count={match[2]}" + (f",{match[3]}" if match[3] else "")
    name, raw = written_settings(text, "attack")
    if name not in ATTACKS:
        raise unknown("attack", name, ATTACKS)
    made: Any = name
    return replace(Attack(name=made), **settings_for(Attack, {**raw, "name": name}, name))
