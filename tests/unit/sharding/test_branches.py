"""Branches in one process, how they are dealt out, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.sharding.tensor.dealt import deal


@pytest.mark.parametrize(
    ("costs", "workers", "owners"),
    [
        ([1, 1], 2, [0, 1]),
        ([1, 5, 3, 1], 2, [1, 0, 1, 1]),
        ([2, 9], 3, [1, 0]),
        ([0, 0, 0], 2, [0, 1, 0]),
        ([4], 2, [0]),
    ],
)
def test_the_most_costly_is_dealt_first(costs: list[float], workers: int, owners: list[int]) -> None:
    assert deal(costs, workers) == owners


@pytest.mark.parametrize("how", ["tuple", "concatenate", "sum", "called"])
def test_one_process_has_all_of_them(how: Any) -> None:
    first, second, x = nn.Linear(3, 2), nn.Linear(3, 2), torch.randn(4, 3)
    combine = (lambda both: both[0] * both[1]) if how == "called" else how
    a, b = first(x), second(x)
    wanted: dict[str, Any] = {"tuple": (a, b), "concatenate": torch.cat([a, b], 1), "sum": a + b, "called": a * b}
    combined = quorate.branches([first, second], combine)(x)
    assert all(map(torch.equal, combined, wanted[how])) if how == "tuple" else torch.equal(combined, wanted[how])


def test_each_is_given_its_own() -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        outputs: tuple[Tensor, Tensor] = quorate.branches([nn.ReLU(), nn.Tanh()], inputs="each")(x, y)
        return outputs

    x, y = torch.randn(3), torch.randn(3)
    assert all(map(torch.equal, both(x, y), (x.relu(), y.tanh())))
    with pytest.raises(ConfigurationError, match='2 branches with inputs="each" were given 1 inputs'):
        quorate.branches([nn.ReLU(), nn.Tanh()], inputs="each")(x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: quorate.branches([]), "branches must be a list of at least one module"),
        (lambda: quorate.branches([torch.relu]), "branches must be a list"),
        (
            lambda: quorate.branches([nn.ReLU()], "mean"),
            "Known: concatenate, sum, tuple",
        ),
        (lambda: quorate.branches([nn.ReLU()], inputs="none"), "Known: each, same"),
        (
            lambda: quorate.branches([nn.ReLU()], costs=[1, 2]),
            "must have one number of at least 0 for each of 1 branches",
        ),
        (lambda: quorate.branches([nn.ReLU()], costs=[-1]), "must have one number of at least 0"),
        (lambda: quorate.branches([quorate.branches([nn.ReLU()])]), "branches cannot be nested"),
    ],
)
def test_what_is_refused(call: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()
