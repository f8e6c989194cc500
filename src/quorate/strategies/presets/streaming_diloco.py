"""Streaming DiLoCo: fragments take their outer steps in turn, while local steps continue.

Idea: The strategy `diloco` with a shorter period, fragments, and an overlap of one local step. The parameters are cut
into `fragments` of about equal bytes, each with its own outer optimizer and common point. The fragments are averaged in
turn, H / K steps apart: the same numbers in K smaller messages. A mean is computed during the next `overlap` steps.
Each worker then continues from a mixture, `merge` times its current parameters and 1 - `merge` times the outer step's
point. Movement is always measured from the common point.

Cost: As `diloco`; H is 100, so five times as much is sent, in smaller messages. Nobody waits for a message that takes
less than a step.

When it loses: As `diloco`. Each fragment needs at least one tensor. The paper has fragments of three transformer
blocks: set `fragments_by="layer"`, and `fragments` to a third of the blocks; `sync_every` is a multiple of it.

Honesty:
- slow worker: goes on; all workers wait for it when they apply a mean, unless `sync_every` is a time

Paper: Douillard et al., "Streaming DiLoCo with overlapping communication", 2025 (arXiv 2501.18512), Algorithm 2, with H
of 30 and 100 and an overlap of one step, after public descriptions. That there are two fragments, cut by bytes, is
ours, as any model has them; outer rate and momentum are those of `diloco`. Outer gradients travel in full precision,
where the paper has four bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.strategies import register
from quorate.strategies.diloco import DiLoCo


@register("streaming-diloco")
@dataclass(frozen=True, kw_only=True)
class StreamingDiLoCo(DiLoCo):
    """Local steps; outer steps of one fragment after another, whose means overlap with the local steps."""

    sync_every: int | str = 100
    """H, as in `local-sgd`, for each fragment."""
    fragments: int = 2
    overlap: int = 1
