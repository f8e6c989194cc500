"""Sequences that lie whole on one worker, and models that are not for pieces of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.sharding.tensor.plan import sequence_plan


def test_in_one_process_it_is_the_attention_of_torch() -> None:
    q, k, v = (torch.randn(2, heads, 5, 4) for heads in (4, 2, 2))
    attended = quorate.sequence_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.3)
    assert torch.equal(attended, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.3))
    assert quorate.sequence_piece(q) is q


def test_losses_count_by_their_weights() -> None:
    losses = torch.tensor([[1.0, 2.0], [3.0, 10.0]])
    assert quorate.sequence_mean(losses).item() == 4.0
    assert quorate.sequence_mean(losses, torch.tensor([[True, True], [True, False]])).item() == 2.0
    with pytest.raises(ConfigurationError, match=r"weights are of the shape \(2,\), and losses \(2, 2\)"):
        quorate.sequence_mean(losses, torch.ones(2))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.MultiheadAttention(4, 2), "1 is a MultiheadAttention, which looks at positions of other workers"),
        (nn.GRU(4, 2), "1 is a GRU"),
        (nn.BatchNorm1d(4), "1 is a BatchNorm1d"),
        (nn.GroupNorm(2, 4), "1 is a GroupNorm"),
        (quorate.branches([nn.Linear(4, 4)]), "quorate.branches cannot be combined with pieces of the sequence"),
    ],
)
def test_a_model_that_looks_elsewhere_by_itself_is_refused(module: nn.Module, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        sequence_plan(nn.Sequential(nn.Linear(4, 4), module), 2)
