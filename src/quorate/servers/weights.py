"""What each gradient counts in a step of the servers, and at how much of the learning rate the step is made."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.core.servers import ServerTerms
from quorate.servers.decisions import Push, Taken


def weighed(pushes: Sequence[Push], terms: ServerTerms, version: int, everyone: int) -> tuple[tuple[Taken, ...], float]:
    """The gradients of a step on parameters of `version`, and its rate; `everyone` is how many workers there are."""
    ages = [version - push.version for push in pushes]
    scales = [1 / max(1, age) if terms.staleness_scaling == "inverse" else 1.0 for age in ages]
    counts = [push.count * scale for push, scale in zip(pushes, scales, strict=True)]
    total = sum(counts)
    taken = tuple(
        Taken(push.source, push.number, count / total, age)
        for push, count, age in zip(pushes, counts, ages, strict=True)
    )
    return taken, _rate(total, len(pushes), terms, everyone)


def _rate(total: float, pushes: int, terms: ServerTerms, everyone: int) -> float:
    """A step of fewer gradients than `backup` leaves, as where some have ended, goes less far."""
    if terms.mode == "sync":
        is_whole = terms.step_size == "full" or not terms.backup
        return 1.0 if is_whole else min(1.0, total / max(1, everyone - terms.backup))
    if terms.mode == "bounded" and not terms.max_staleness:
        return 1.0
    return total / (max(1, everyone) if terms.step_size == "share" else pushes)
