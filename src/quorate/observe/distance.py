"""Rows about the distance of one replica from the mean of all, and about outer steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quorate.core.local_tensor import local
from quorate.core.precision import widest
from quorate.observe.step_times import StepTimer
from quorate.records.rows import Distance, Outer


def note_distance(timer: StepTimer, own: Sequence[Tensor], mean: Sequence[Tensor]) -> None:
    """Write a `distance` row of two lists of parameters, if records are kept. Cost: two passes in double precision."""
    recorder = timer.recorder
    if recorder is not None:
        away = _norm([local(x).detach() - y for x, y in zip(own, mean, strict=True)])
        now = timer.clock.now()
        recorder.write(Distance(step=timer.steps, time=now, optimizer=timer.name, distance=away, norm=_norm(mean)))


def note_outer_step(timer: StepTimer, fragment: int, measured: Mapping[str, Any]) -> None:
    """Write an `outer` row, if records are kept."""
    recorder = timer.recorder
    if recorder is not None:
        now = timer.clock.now()
        recorder.write(Outer(step=timer.steps, time=now, optimizer=timer.name, fragment=fragment, **measured))


def _norm(parts: Sequence[Tensor]) -> float:
    """Return the Euclidean norm, in double precision."""
    wide = (part.to(widest(part.device).to_complex() if part.is_complex() else widest(part.device)) for part in parts)
    return math.sqrt(sum(float(torch.linalg.vector_norm(part) ** 2) for part in wide))
