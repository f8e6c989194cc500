from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from quorate.buckets.flat import layout_of
from quorate.buckets.ready import ReadyGradients
from quorate.core.vectors import Flat


def rig(model: nn.Module, part_bytes: int = 1) -> tuple[ReadyGradients, list[int], list[tuple[list[bool], set[int]]]]:
    named = list(model.named_parameters())
    flat = Flat.zeros(layout_of(named, header=1, part_bytes=part_bytes, first_part_bytes=part_bytes))
    handed_on: list[int] = []
    headers: list[tuple[list[bool], set[int]]] = []
    ready = ReadyGradients([p for _, p in named], flat, lambda part, x: handed_on.append(part))
    ready.note = lambda header, touched, dirty: headers.append((list(touched), set(dirty)))  # type: ignore[attr-defined]
    return ready, handed_on, headers


def test_parts_are_handed_on_in_order_and_the_last_one_at_the_end():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    ready, handed_on, headers = rig(model)
    model(torch.ones(1, 2)).sum().backward()
    assert handed_on == [0, 1, 2]
    ready.complete(ready.note)
    assert handed_on == [0, 1, 2, 3]
    assert headers == [([True] * 4, set())]
    for index, p in enumerate(model.parameters()):
        assert torch.equal(ready.flat.segment(index), p.grad)


def test_hooks_of_the_script_have_run_when_a_part_is_sent():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    ready, handed_on, _ = rig(model)

    def scale(p: torch.Tensor) -> None:
        p.grad.mul_(3.0)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(scale)
    model(torch.ones(1, 2)).sum().backward()
    ready.complete(ready.note)
    assert handed_on == [0, 1, 2, 3]
    for index, p in enumerate(model.parameters()):
        assert torch.equal(ready.flat.segment(index), p.grad)


def test_a_part_that_never_becomes_ready_holds_the_later_ones_back_until_the_end():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    ready, handed_on, headers = rig(model)
    model[0](torch.ones(1, 2)).sum().backward()  # the parameters that travel first get no gradient
    assert handed_on == []
    ready.complete(ready.note)
    assert handed_on == [0, 1, 2, 3]
    assert headers == [([True, True, False, False], set())]
    assert not ready.flat.segment(2).any()


def test_what_is_packed_is_a_scaled_copy():
    model = nn.Linear(3, 1, bias=False)
    ready, _, _ = rig(model)
    ready.scale = 0.5
    model(torch.tensor([[1.0, 2.0, 3.0]])).sum().backward()
    ready.complete(ready.note)
    assert ready.flat.segment(0).tolist() == [[0.5, 1.0, 1.5]]
    model.weight.grad.zero_()
    assert ready.flat.segment(0).tolist() == [[0.5, 1.0, 1.5]]


def test_nothing_is_handed_on_while_paused_but_what_was_touched_is_known():
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    ready, handed_on, headers = rig(model)
    ready.paused = True
    model[1](torch.ones(1, 2)).sum().backward()
    assert handed_on == []
    ready.paused = False
    model[0](torch.ones(1, 2)).sum().backward()
    ready.complete(ready.note)
    assert headers == [([True] * 4, set())]
    assert torch.equal(ready.flat.segment(2), model[1].weight.grad)


def test_a_tied_weight_in_two_reentrant_segments_makes_its_part_dirty():
    first, tied = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    model = nn.ModuleList([first, tied])
    ready, handed_on, headers = rig(model)
    x = checkpoint(tied, checkpoint(tied, first(torch.ones(1, 2)), use_reentrant=True), use_reentrant=True)
    x.sum().backward()
    assert handed_on == [0]
    ready.complete(ready.note)
    assert headers == [([True, True], {0})]


def test_hooks_are_removed():
    model = nn.Linear(2, 2)
    ready, handed_on, _ = rig(model)
    ready.close()
    model(torch.ones(1, 2)).sum().backward()
    assert handed_on == []
    assert not ready.fired
