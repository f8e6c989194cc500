"""Masks from scores: pure functions, with the same bits on all workers that have the same scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

Scope = Literal["layer", "global"]


def kept_by(
    scores: Mapping[str, Tensor], amount: float, scope: Scope, before: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return, by name, which numbers are kept when the lowest scores are pruned.

    Args:
        scores: The scores of each parameter, on the CPU.
        amount: The share of numbers that are pruned, earlier ones included.
        scope: "layer": the share of each parameter; "global": of all together.
        before: The numbers kept so far; a number that is pruned stays pruned. Parameters without an entry are full.

    At least one number of each parameter is kept. Equal scores are pruned in the order of their places.
    Cost: a sort of all scores.
    """
    lowest = {name: _with_pruned(x, before.get(name)) for name, x in scores.items()}
    if scope == "layer":
        return {name: _kept([x], amount)[0] for name, x in lowest.items()}
    kept = _kept(list(lowest.values()), amount)
    for x, flags in zip(lowest.values(), kept, strict=True):
        if not flags.any():
            flags.view(-1)[x.reshape(-1).argmax()] = True
    return dict(zip(lowest, kept, strict=True))


def _with_pruned(scores: Tensor, kept: Tensor | None) -> Tensor:
    return scores if kept is None else torch.where(kept.cpu(), scores, -math.inf)


def _kept(scores: Sequence[Tensor], amount: float) -> list[Tensor]:
    joined = torch.cat([x.reshape(-1) for x in scores])
    flags = torch.ones(len(joined), dtype=torch.bool)
    flags[joined.argsort(stable=True)[: min(round(amount * len(joined)), len(joined) - 1)]] = False
    pieces = flags.split([x.numel() for x in scores])
    return [piece.view(x.shape) for piece, x in zip(pieces, scores, strict=True)]


def kept_filters(scores: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `kept` with each filter kept or pruned as a whole: a filter of which some number is kept stays."""
    rows = {name: flags.flatten(1).any(1).view(-1, *[1] * (flags.dim() - 1)) for name, flags in kept.items()}
    return {name: flags.expand(scores[name].shape).clone() for name, flags in rows.items()}
