"""The gradients on which an optimizer's update depends: listed for torch's own, tried for others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from quorate.core.errors import ConfigurationError
from quorate.optim import LAMB, LARS
from quorate.replica.by_tensors import reach_of, shard_by_of
from tests.support.sharded_trainings import Lars

TORCHS: dict[str, str] = {
    "ASGD": "numbers",
    "Adadelta": "numbers",
    "Adafactor": "tensors",
    "Adagrad": "numbers",
    "Adam": "numbers",
    "AdamW": "numbers",
    "Adamax": "numbers",
    "Muon": "tensors",
    "NAdam": "numbers",
    "RAdam": "numbers",
    "RMSprop": "numbers",
    "Rprop": "numbers",
    "SGD": "numbers",
}


class Plain(torch.optim.Optimizer):
    """Its `size` says over what a gradient is divided by the length."""

    over = "numbers"

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        every = [p for group in self.param_groups for p in group["params"]]
        length = torch.stack([p.grad.norm() for p in every]).norm() if self.over == "all" else 1.0
        for p in every:
            p.sub_(self.param_groups[0]["lr"] * p.grad / length)


class Coupled(Plain):
    over = "all"


class Noisy(Plain):
    """It draws, as Langevin dynamics do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"]):
            p.sub_(0.1 * p.grad + 0.01 * torch.randn_like(p))


class Odd(Plain):
    """It cannot be tried."""

    def __init__(self, params: Any, model: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)


def group_of(plain: Any) -> Any:
    return plain([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1).param_groups[0]


@pytest.mark.parametrize("name", sorted(TORCHS))
def test_a_trial_says_what_is_known_of_torchs_own(name: str) -> None:
    plain = getattr(torch.optim, name)
    group = group_of(plain)
    assert reach_of(plain, group) == TORCHS[name]
    is_whole = TORCHS[name] == "tensors" or name == "Rprop"  # whose step fails on pieces
    assert shard_by_of(plain, [group], None) == ("tensors" if is_whole else "rows")


def test_no_optimizer_of_torch_is_forgotten() -> None:
    every = {n for n, x in vars(torch.optim).items() if isinstance(x, type) and issubclass(x, Optimizer)}
    assert every - {"Optimizer"} == {*TORCHS, "LBFGS", "SparseAdam"}


@pytest.mark.parametrize(("plain", "by"), [(Plain, "rows"), (Lars, "tensors"), (Noisy, "tensors")])
def test_of_a_stranger(plain: Any, by: str) -> None:
    for lr in (0.1, 0.0):
        group = plain([torch.nn.Parameter(torch.ones(2, 2))], lr=lr).param_groups[0]
        assert shard_by_of(plain, [group], None) == by


def test_one_that_cannot_be_tried_goes_by_tensors() -> None:
    group = Odd([torch.nn.Parameter(torch.ones(2))], None).param_groups[0]
    assert shard_by_of(Odd, [group], None) == "tensors"
    assert shard_by_of(Odd, [group], "rows") == "rows"


def test_refused() -> None:
    group = group_of(Coupled)
    with pytest.raises(ConfigurationError, match='^Coupled calculates with all parameters at once, .*"tensors"$'):
        shard_by_of(Coupled, [group], None)
    assert shard_by_of(Coupled, [group], "tensors") == "tensors"
    with pytest.raises(ConfigurationError, match='^Muon computes with full tensors; leave out shard_by="rows"$'):
        shard_by_of(torch.optim.Muon, [group_of(torch.optim.Muon)], "rows")


@pytest.mark.parametrize("plain", [LARS, LAMB])
def test_those_that_add_up_norms_themselves_go_by_rows(plain: Any) -> None:
    group = {"lr": 0.1}
    assert shard_by_of(plain, [group], None) == shard_by_of(plain, [group], "rows") == "rows"
    with pytest.raises(ConfigurationError, match='leave out shard_by="tensors"'):
        shard_by_of(plain, [group], "tensors")
