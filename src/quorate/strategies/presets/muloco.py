"""MuLoCo: DiLoCo over Muon, with a short period and a gentle outer step.

Idea: The strategy `diloco` with its published numbers for Muon as the inner optimizer: a period of 30 steps, an outer
rate of 0.7 and an outer momentum of 0.6. The inner optimizer is the user's: `torch.optim.Muon` for the hidden matrices,
and `AdamW` for embeddings, heads, norms and biases, both distributed under this name on one model.

Cost: As `diloco`, 17 times as often. Muon has one momentum where AdamW has two.

When it loses: As `diloco`. With any other inner optimizer it is `diloco` with these numbers. With many workers the
published outer step is longer: 16 workers had a rate of 1 and a momentum of 0.9, and 8 workers with compressed deltas
0.9 and 0.8. In the authors' tables DiLoCo over AdamW is ahead at 15 billion parameters, and behind at smaller sizes.

Paper: Therien, Huang, Rish, Belilovsky, "MuLoCo: Muon is a practical inner optimizer for DiLoCo", 2025 (arXiv
2505.23725), after public code for one worker. There the outer rate is a factor inside the momentum, which is the same
as long as the rate does not change.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.strategies import register
from quorate.strategies.diloco import DiLoCo


@register("muloco")
@dataclass(frozen=True, kw_only=True)
class MuLoCo(DiLoCo):
    """Local steps of Muon, then one outer step with gentle momentum on the change of the parameters."""

    sync_every: int | str = 30
    """H, as in `local-sgd`, for each fragment."""
    outer_rate: float = 0.7
    outer_momentum: float = 0.6
