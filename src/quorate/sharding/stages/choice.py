"""The settings of a script for stages, and features that stages do not support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch.nn import Module

from quorate.core.axes import Axes, Offload
from quorate.core.errors import ConfigurationError
from quorate.sharding.experts import Experts
from quorate.sharding.stages.orders import DELAYED
from quorate.sharding.tensor.branches import branches_in

Cuts = Literal["auto", "memory"] | Sequence[str]


@dataclass(frozen=True)
class StageChoice:
    """The arguments of `parallelize`, under their names there."""

    cuts: Cuts = "auto"
    schedule: str = "1f1b"
    microbatches: Any = None
    example: Any = None
    corrects: bool = False
    """Whether steps are corrected for gradients that are one batch old."""


def check_stages(model: Module, *, is_on_meta: bool, offload: Offload | None, tensor: object) -> None:
    """Raise `ConfigurationError` for settings that cannot be combined with stages."""
    refused = {
        "a model on the meta device; make it on the CPU": is_on_meta,
        'offload="all"; "optimizer" and "disk" go': offload == "all",
        'tensor="sequence"; cut layers instead': tensor == "sequence",
        "quorate.Experts, whose routes depend on numbers": any(isinstance(part, Experts) for part in model.modules()),
        "quorate.branches; cut their modules into stages instead": bool(branches_in(model)),
    }
    for setting, is_asked in refused.items():
        if is_asked:
            raise ConfigurationError(f"stages cannot be combined with {setting}")


def check_delayed(schedule: str, correct: object, axes: Axes, *, offload: Offload | None, precision: object) -> bool:
    """Return whether gradients are one batch old. Raises `ConfigurationError` for settings that do not go with that."""
    if schedule != DELAYED:
        return False
    if correct not in (None, "delay"):
        raise ConfigurationError(f'correct={correct!r} is not known; it must be "delay" or None')
    refused = {
        "one stage; give the mesh stages": axes.stages == 1,
        "shards; leave them out of the mesh": axes.shards > 1,
        "the axis tensor; leave it out of the mesh": axes.tensor > 1,
        "offload=; leave it out": offload is not None,
        "precision=; use torch.autocast": precision is not None,
    }
    for setting, is_asked in refused.items():
        if is_asked:
            raise ConfigurationError(f'schedule="{DELAYED}" cannot be combined with {setting}')
    return True
