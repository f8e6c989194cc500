"""Saved tensors for the backward pass are counted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from quorate.observe.activations import Saved, storage_of


def most(*modules: nn.Module, run: Any) -> dict[str, int]:
    """By the class of the module, after `run`."""
    saved = Saved()
    with saved.watching():
        run()
    parameters = {storage_of(p): None for module in modules for p in module.parameters()}
    return {type(module).__name__: nbytes for module, nbytes in saved.by_module(parameters).items()}


class Up(nn.Linear):
    pass


class Gelu(nn.GELU):
    pass


def test_inputs_and_outputs_count_once_and_parameters_do_not() -> None:
    model = nn.Sequential(Up(8, 32), nn.ReLU(), nn.Linear(32, 4))
    bytes_of = most(model, run=lambda: model(torch.ones(5, 8)).sum().backward())
    assert bytes_of == {"Up": 5 * 8 * 4, "ReLU": 5 * 32 * 4}, "the last layer saves what the ReLU saves"


def test_what_is_trained_is_known_without_being_named_and_what_is_frozen_is_not() -> None:
    model = nn.Sequential(Up(8, 32), Gelu(), nn.Linear(32, 4))
    plain = {"Up": 5 * 8 * 4, "Gelu": 5 * 32 * 4, "Linear": 5 * 32 * 4}
    assert most(run=lambda: model(torch.ones(5, 8)).sum().backward()) == plain
    model[2].requires_grad_(False)
    frozen = most(run=lambda: model(torch.ones(5, 8)).sum().backward())
    assert frozen == plain | {"Linear": 32 * 4 * 4}, "its weight, and no input"
    assert "Linear" not in most(model, run=lambda: model(torch.ones(5, 8)).sum().backward())


def test_what_is_freed_in_between_is_not_added() -> None:
    model = nn.Sequential(Up(8, 32), Gelu())

    def twice() -> None:
        for _ in range(2):
            model(torch.ones(5, 8)).sum().backward()

    once = most(model, run=lambda: model(torch.ones(5, 8)).sum().backward())
    assert once == most(model, run=twice) == {"Up": 5 * 8 * 4, "Gelu": 5 * 32 * 4}


def test_the_most_is_that_of_the_greatest_batch() -> None:
    model = nn.Sequential(Up(8, 32), Gelu())

    def several() -> None:
        for batch in (2, 5, 3):
            model(torch.ones(batch, 8)).sum().backward()

    assert most(model, run=several) == {"Up": 5 * 8 * 4, "Gelu": 5 * 32 * 4}


def test_pieces_of_one_tensor_are_no_more_than_it() -> None:
    model = Up(8, 24)

    def attend() -> None:
        q, k, v = model(torch.ones(5, 8)).chunk(3, dim=1)
        ((q @ k.T) @ v).sum().backward()

    bytes_of = most(model, run=attend)
    assert sum(bytes_of.values()) == 4 * (5 * 8 + 5 * 24 + 5 * 5), "the input, the three pieces, and q k"


def test_of_a_data_set_only_the_batch_counts() -> None:
    model, data = Up(8, 4), torch.ones(1000, 8)
    assert most(model, run=lambda: model(data[10:15]).sum().backward()) == {"Up": 5 * 8 * 4}


def test_what_is_computed_again_is_not_saved() -> None:
    model = nn.Sequential(Up(8, 32), Gelu(), nn.Linear(32, 8))

    def run() -> None:
        x: Tensor = torch.ones(5, 8, requires_grad=True)
        y: Any = checkpoint(model, x, use_reentrant=False)
        (y * 2.0).sum().backward()

    plain = sum(most(model, run=lambda: model(torch.ones(5, 8)).sum().backward()).values())
    assert sum(most(model, run=run).values()) <= plain


def test_gradients_are_those_without_a_watch() -> None:
    model = nn.Sequential(Up(8, 32), Gelu(), nn.Linear(32, 8))
    grads = []
    for watched in (False, True):
        model.zero_grad()
        if watched:
            most(model, run=lambda: model(torch.ones(5, 8)).square().sum().backward())
        else:
            model(torch.ones(5, 8)).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        assert a is not None and b is not None
        assert torch.equal(a, b)
