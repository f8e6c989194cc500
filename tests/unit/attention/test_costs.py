"""The formulas of sparse attention hold against the operations and the bytes that are counted."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import quorate
from quorate.attention.costs import cost_of
from quorate.observe.activations import Saved
from tests.unit.attention.drawings import BLOCK, PATTERNS

COUNT, HEADS, SIZE = 64, 3, 4


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", PATTERNS)
def test_operations_are_those_that_are_computed(name: str, is_causal: bool) -> None:
    q, k, v = (torch.randn(1, HEADS, COUNT * BLOCK, SIZE, requires_grad=True) for _ in range(3))
    cost = cost_of(PATTERNS[name], COUNT * BLOCK, heads=HEADS, is_causal=is_causal, layer=2)
    with FlopCounterMode(display=False) as forward:
        attended = quorate.sparse_attention(q, k, v, PATTERNS[name], is_causal=is_causal, layer=2)
    with FlopCounterMode(display=False) as backward:
        attended.sum().backward()
    ratios = [
        counter.get_total_flops() / HEADS / cost.operations(SIZE, backward=counter is backward)
        for counter in (forward, backward)
    ]
    assert ratios[0] == ratios[1]
    assert 1.0 <= ratios[0] < 1.5, "a few blocks are computed without effect, most of them on so short a sequence"


def test_the_share_falls_with_the_length() -> None:
    shares = [cost_of("longformer:block=8", 8 * count, is_causal=True).share for count in (16, 32, 64)]
    assert shares[0] > 1.7 * shares[1] > 1.7**2 * shares[2]
    assert cost_of("dense", 128).share == 1.0


def test_query_key_and_value_are_kept_for_the_backward_pass() -> None:
    """As `quorate doctor --memory` counts it; scores that are written out are kept beside them."""
    kept = {}
    for name in ("sparse", "written out"):
        q, k, v = (torch.randn(1, HEADS, 512, SIZE, requires_grad=True).clone() for _ in range(3))
        saved = Saved()
        with saved.watching():
            if name == "sparse":
                attended = quorate.sparse_attention(q, k, v, "window:width=1", is_causal=True)
            else:
                attended = (q @ k.mT).softmax(-1) @ v
        kept[name] = sum(saved.by_module(without={}).values())
        del attended
    tensors = 3 * HEADS * 512 * SIZE * 4
    assert kept["sparse"] == tensors
    assert kept["written out"] >= tensors + HEADS * 512**2 * 4
