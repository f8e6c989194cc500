"""Parameters that are moved to other memory: tensors, views and ties stay what they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from quorate.hogwild.common_parameters import Slots


class Odd(nn.Module):
    """Tied weights, two views of one tensor, a transposed parameter, an empty one, and a buffer that looks at one."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(10.0)
        self.first, self.second = nn.Parameter(whole[:4]), nn.Parameter(whole[4:].view(2, 3))
        self.across = nn.Parameter(torch.randn(3, 5).t())
        self.none = nn.Parameter(torch.empty(0))
        self.wide = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.table = nn.Embedding(4, 2)
        self.tied = nn.Linear(2, 4, bias=False)
        self.tied.weight = self.table.weight
        self.register_buffer("looks", self.wide.detach()[1:])


def moved() -> tuple[Odd, Slots, torch.Tensor, dict[str, Any]]:
    model = Odd()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    slots = Slots(list(model.parameters()), model.buffers())
    memory = torch.zeros(slots.nbytes, dtype=torch.uint8)
    slots.copy_to(memory)
    slots.move_to(memory)
    return model, slots, memory, before


def test_numbers_and_objects_stay() -> None:
    model, _, memory, before = moved()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    lies_in = memory.untyped_storage().data_ptr()
    assert all(p.untyped_storage().data_ptr() == lies_in for p in model.parameters() if p.numel())
    assert model.tied.weight is model.table.weight
    assert model.across.stride() == (1, 5)


def test_views_of_one_tensor_stay_views_of_it() -> None:
    model, _, memory, _ = moved()
    flat = torch.empty(0).set_(memory.untyped_storage(), 0, (10,))
    with torch.no_grad():
        model.first.fill_(7.0)
        model.second.fill_(8.0)
        model.wide.fill_(9.0)
    assert flat.tolist() == [7.0] * 4 + [8.0] * 6
    assert model.looks.tolist() == [9.0, 9.0]  # type: ignore[operator]


def test_what_an_optimizer_keeps_stays_with_its_parameter() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    kept = {p: optimizer.state[p]["momentum_buffer"] for p in model.parameters()}
    slots = Slots(list(model.parameters()))
    slots.move_to(torch.zeros(slots.nbytes, dtype=torch.uint8))
    assert all(optimizer.state[p]["momentum_buffer"] is x for p, x in kept.items())
    assert all(p.grad is not None for p in model.parameters())
    optimizer.step()
    assert float(model.bias.detach()[0]) == pytest.approx(-0.19)  # of 0, which the memory held


def test_edits_are_taken_over_where_others_have_moved_on() -> None:
    _, slots, memory, _ = moved()
    shown = memory.clone()
    written, target = memory.clone(), memory.clone()
    assert not slots.edits(written, shown, into=target)
    wrote, moves = written[:40].view(torch.float32), target[:40].view(torch.float32)
    wrote[2] = 100.0  # nobody else has: it is what was written
    wrote[3] += 5.0
    moves[3] += 1.0  # others have gone on
    moves[5] -= 1.0
    expected = moves.clone()
    expected[2], expected[3] = 100.0, 3.0 + 5.0 + 1.0
    assert slots.edits(written, shown, into=target)
    assert torch.equal(moves, expected)


def test_other_strides_have_another_signature() -> None:
    first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    second.weight = nn.Parameter(torch.randn(3, 3).t())
    assert Slots([first.weight]).signature != Slots([second.weight]).signature
