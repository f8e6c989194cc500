"""Which buffers of a model have changed between two looks."""

from __future__ import annotations

import torch
from torch import nn

from quorate.means.forward_buffers import ForwardBuffers


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("queue", torch.zeros(4, 2))
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        self.queue: torch.Tensor
        self.mask: torch.Tensor


def looked(buffers: ForwardBuffers) -> list[str]:
    names = [slot.name for slot in buffers.changed()]
    buffers.seen()
    return names


def begun() -> tuple[Holder, ForwardBuffers]:
    model = Holder()
    buffers = ForwardBuffers(model)
    buffers.seen(reads=True)
    return model, buffers


def test_batch_norm_has_none() -> None:
    assert [slot.name for slot in begun()[1].slots] == ["queue", "mask"]


def test_what_stays_has_not_changed() -> None:
    _, buffers = begun()
    assert [looked(buffers) for _ in range(9)] == [[]] * 9


def test_writes_in_place_and_new_tensors_are_seen_once() -> None:
    model, buffers = begun()
    model.queue[0] = 1.0
    assert looked(buffers) == ["queue"]
    assert looked(buffers) == []
    model.mask = model.mask.clone()
    assert looked(buffers) == ["mask"]
    assert [looked(buffers) for _ in range(6)] == [[]] * 6


def test_a_buffer_that_is_written_through_data_counts_as_changed_from_there_on() -> None:
    model, buffers = begun()
    model.queue.data.add_(1)
    assert looked(buffers) == ["queue"]
    assert [looked(buffers) for _ in range(4)] == [["queue"]] * 4


def test_buffers_that_come_are_found() -> None:
    model, buffers = begun()
    model.register_buffer("more", torch.zeros(2))
    buffers.find()
    assert [slot.name for slot in buffers.slots] == ["queue", "mask", "more"]
    assert looked(buffers) == []
