"""Votes: what most of a group have sent, to the bit."""

from __future__ import annotations

import pytest
import torch

from quorate.aggregation.votes import differing, vote


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_vector_that_differs_in_one_bit_is_another(dtype: torch.dtype) -> None:
    rows = torch.ones(3, 1000, dtype=dtype)
    rows[1, 999] = torch.nextafter(rows[1, 999], torch.tensor(2.0, dtype=dtype)) if dtype.itemsize > 2 else 1.125
    rows[:, 0] = torch.tensor([0.0, 0.0, -0.0], dtype=dtype)
    differ = differing(rows, [[0, 1, 2]])
    assert differ.tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_pieces_add_up_and_other_groups_are_not_compared() -> None:
    rows = torch.tensor([[1.0, 2.0], [1.0, 3.0], [4.0, 4.0]])
    whole = differing(rows, [[0, 1], [2]])
    pieces = differing(rows[:, :1], [[0, 1], [2]]) + differing(rows[:, 1:], [[0, 1], [2]])
    assert torch.equal(whole, pieces) and float(whole[0, 1]) == 1 and float(whole[0, 2]) == 0


@pytest.mark.parametrize(
    ("unlike", "votes", "winners"),
    [
        ([], [True] * 3, [0, 1, 2]),
        ([0], [True] * 3, [1, 2]),
        ([0, 1], [True] * 3, []),
        ([], [True, True, False], [0, 1]),
        ([], [True, False, False], []),
    ],
)
def test_more_than_half_of_the_group_have_to_agree(unlike: list[int], votes: list[bool], winners: list[int]) -> None:
    rows = torch.zeros(3, 4)
    for place in unlike:
        rows[place] = place + 1
    assert list(vote(differing(rows, [[0, 1, 2]]), [0, 1, 2], votes).winners) == winners
