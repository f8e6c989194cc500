"""The settings of a script for stages, and features that stages do not support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch.nn import Module

from quorate.core.axes import Offload
from quorate.core.errors import ConfigurationError
from quorate.sharding.experts import Experts
from quorate.sharding.tensor.branches import branches_in

Cuts = Literal["auto", "memory"] | Sequence[str]


@dataclass(frozen=True)
class StageChoice:
    """The arguments of `parallelize`, under their names there."""

    cuts: Cuts = "auto"
    schedule: str = "1f1b"
    microbatches: Any = None
    example: Any = None


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
