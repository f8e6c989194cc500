"""Which buffers of a model have changed between two looks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from quorate.means.forward_buffers import ForwardBuffers, count_in, numbers_of, take_numbers


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


@pytest.mark.parametrize("into", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[1.5, -3e38, math.inf], [-math.inf, 0.0, 1e-45]]),
        torch.tensor([1.1, -1e-300, 1e300], dtype=torch.float64),
        torch.tensor([2**62 + 1, -7, 0]),
        torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32),
        torch.tensor([-(2**15), 12345], dtype=torch.int16),
        torch.tensor([0, 255], dtype=torch.uint8),
        torch.tensor([-128, 127], dtype=torch.int8),
        torch.tensor([[True], [False]]),
        torch.tensor([1.5, 65504.0], dtype=torch.float16),
        torch.tensor(3e38, dtype=torch.bfloat16),
        torch.tensor(7),
        torch.zeros(0, 3),
    ],
    ids=lambda x: str(x.dtype).removeprefix("torch."),
)
def test_numbers_that_are_added_to_zeros_are_those_of_the_buffer(x: torch.Tensor, into: torch.dtype) -> None:
    numbers = numbers_of(x, into)
    assert numbers.numel() == count_in(x.numel(), x.dtype, into)
    received = torch.zeros_like(x)
    take_numbers(received, torch.zeros_like(numbers) + numbers + 0.0)
    assert torch.equal(received, x)
