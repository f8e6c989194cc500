"""Signatures whose sums show whether all are equal, and samples that they are made of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quorate.observe.local_changes import LocalChanges, Values
from quorate.observe.signatures import LENGTH, Sample, differ, is_due, next_due, signature
from quorate.wire.board import MemoryBoard


def summed(checksums: list[int], dtype: torch.dtype = torch.float32) -> list[float]:
    total = torch.zeros(LENGTH, dtype=dtype)
    for checksum in checksums:
        total += torch.tensor(signature(checksum, len(checksums)), dtype=dtype)
    return [float(x) for x in total]


@given(st.integers(0, 2**32 - 1), st.integers(1, 600))
def test_equal_checksums_do_not_differ(checksum: int, workers: int) -> None:
    assert not differ(summed([checksum] * workers))


@given(st.integers(0, 2**12 - 1), st.integers(0, 2**12 - 1), st.integers(2, 600), st.data())
def test_one_other_checksum_differs(a: int, b: int, workers: int, data: st.DataObject) -> None:
    ranks = [a] * workers
    ranks[data.draw(st.integers(0, workers - 1))] = b
    assert differ(summed(ranks)) is (a != b)


def test_none_and_one_do_not_differ() -> None:
    assert not differ([0.0] * LENGTH)
    assert not differ(signature(12345, 4))


def test_rounds_that_are_compared() -> None:
    assert [number for number in range(65) if is_due(number)] == [1, 2, 4, 8, 16, 32, 48, 64]
    assert all(next_due(number) == min(n for n in range(number + 1, 100) if is_due(n)) for number in range(64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64])
def test_a_sample_sees_a_changed_tensor(dtype: torch.dtype) -> None:
    tensors: list[torch.Tensor | None] = [
        torch.ones(3, 5).to(dtype),
        torch.ones(500).to(dtype),
        torch.ones(()).to(dtype),
    ]
    before = Sample(tensors)
    assert before.checksum == Sample(tensors).checksum
    second = tensors[1]
    assert second is not None
    second.add_(1)
    after = Sample(tensors)
    assert before.checksum != after.checksum
    assert [x == y for x, y in zip(before.checksums(), after.checksums(), strict=True)] == [True, False, True]


def test_a_sample_knows_a_missing_tensor_from_an_empty_one() -> None:
    x = torch.ones(2)
    assert Sample([x, None]).checksum != Sample([x, torch.empty(0)]).checksum
    assert Sample([x, None]).checksums()[1] == -1
    assert Sample([]).checksums() == []


def test_a_sample_of_a_sparse_or_conjugated_tensor_is_of_its_numbers() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (4,), check_invariants=True)
    assert Sample([sparse]).checksum == Sample([torch.tensor([1.0, 2.0])]).checksum
    z = torch.tensor([1 + 2j, 3 - 1j])
    assert Sample([z.conj()]).checksum == Sample([z.conj().clone()]).checksum


def test_workers_that_are_equal_when_they_say_what_they_have_are_not_named() -> None:
    """A worker may have taken a copy between the sample that differed and the details that it writes."""
    wire: Any = SimpleNamespace(size=2, max_size=2, board=MemoryBoard(), name="quorum", rank=0)
    timer: Any = SimpleNamespace(rounds=8)
    changes = LocalChanges.__new__(LocalChanges)
    changes._wire, changes._tells, changes._strategy, changes._samples = wire, False, "quorum", True
    changes._timer = timer
    values = Values([], [1, 2], {"step of 0.weight": 3})
    changes._raise({0: values, 1: values})
