"""The operations and the memory of sparse attention, by formula. Importing this module imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.attention.pattern import AnyPattern, Blocks, block_mask, pattern_of


@dataclass(frozen=True, kw_only=True)
class AttentionCost:
    """The costs of one head in one sequence."""

    scores: float
    """Scores in the blocks of the pattern, the mean of the heads."""
    dense_scores: float
    """Scores in all blocks, and under a causal mask in those up to the diagonal."""

    @property
    def share(self) -> float:
        """The scores of the pattern over those of dense attention."""
        return self.scores / self.dense_scores

    def operations(self, size: int, *, backward: bool) -> float:
        """Return the operations of products for heads of `size` numbers: two products forward, and five backward."""
        return (10.0 if backward else 4.0) * size * self.scores


def cost_of(
    pattern: AnyPattern, length: int, *, heads: int = 1, is_causal: bool = False, layer: int = 0
) -> AttentionCost:
    """Return the costs of `sparse_attention`. Of its tensors query, key and value are kept for the backward pass.

    CPUs compute a few more scores without effect, so that fewer products are started.

    Raises `ConfigurationError` for an unknown pattern.
    """
    resolved = pattern_of(pattern)
    block = resolved.block
    count = -(-length // block)
    alike = heads if resolved.differs_between_heads else 1
    # One head after the other, and none is kept: the blocks of a million positions take 256 MB.
    pairs = sum(
        int(block_mask.__wrapped__(Blocks(resolved, count, is_causal, layer, head)).sum()) for head in range(alike)
    )
    every = count * (count + 1) // 2 if is_causal else count**2
    return AttentionCost(scores=pairs / alike * block**2, dense_scores=float(every * block**2))
