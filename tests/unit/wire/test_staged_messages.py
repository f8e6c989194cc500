"""Copies of a GPU's tensors in messages: one for all receivers of the same tensors, and never that of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from quorate.core.contracts import Message
from quorate.wire.real.wire import RealWire


def test_a_copy_is_of_the_tensor_that_is_sent_however_long_earlier_copies_live() -> None:
    """A tensor that is freed leaves its id to a later one."""
    wire: Any = SimpleNamespace(_newest_staged=([], []))
    kept = []
    for number in range(50):
        kept.append(RealWire._staged(wire, Message(tensors=(torch.full((3,), float(number)),))))
        assert kept[-1].tensors[0].tolist() == [number] * 3


def test_receivers_of_the_same_tensors_get_one_copy_until_these_are_written() -> None:
    wire: Any = SimpleNamespace(_newest_staged=([], []))
    x = torch.zeros(3)
    first, second = (RealWire._staged(wire, Message(tensors=(x,))) for _ in range(2))
    assert first.tensors[0] is second.tensors[0]
    x.add_(1.0)
    assert RealWire._staged(wire, Message(tensors=(x,))).tensors[0].tolist() == [1.0] * 3
