"""Axes of a mesh on GPUs: the numbers of the CPU, by collectives of the device alone, in one order on all workers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.counted_axes import run_counted
from tests.support.on_gpu import needs_gpu
from tests.support.sampled import Few
from tests.support.second_device.process_group import Call, differences
from tests.world import (
    test_branches,
    test_convolutions,
    test_experts,
    test_sequence_pieces,
    test_stages,
    test_tensor_parallel,
)

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.slow]


A, B = ("a", (0, 1)), ("b", (0, 1))


def calls(*groups: tuple[str, tuple[int, ...]]) -> list[Call]:
    return [Call(name, ranks, "all_reduce") for name, ranks in groups]


def message(sender: int, receiver: int, batch: int = 0) -> Call:
    return Call("a", (0, 1, 2), "message", (sender, receiver), batch)


def test_orders_that_end_are_found_from_those_that_do_not() -> None:
    assert differences([calls(A, B, A), calls(A, B, A)]) == []
    assert differences([calls(A, A), calls(A)])
    assert differences([calls(A, B), calls(B, A)])
    circle = [[message(0, 1), message(2, 0)], [message(1, 2), message(0, 1)], [message(2, 0), message(1, 2)]]
    assert len(differences(circle)) == 3
    batches = [[call._replace(batch=1) for call in log] for log in circle]
    assert differences(batches) == []


def of_the_cpu() -> Iterator[Any]:
    """Tests of ways to cut a model, held here against the same numbers."""
    for test in (
        test_tensor_parallel.test_two_workers_compute_an_mlp,
        test_tensor_parallel.test_an_mlp_on_four_workers,
        test_convolutions.test_two_workers_share_filters,
        test_sequence_pieces.test_two_workers_share_sequences,
        test_branches.test_two_workers_have_branches_of_their_own,
        test_experts.test_two_workers_are_one_process,
        test_stages.test_every_schedule,
        test_stages.test_loops_of_many_kinds,
        test_stages.test_stages_beside_other_axes,
    ):
        yield pytest.param(test, id=test.__name__)


@pytest.mark.parametrize("test", list(of_the_cpu()))
def test_no_tensor_goes_by_messages(test: Any, monkeypatch: pytest.MonkeyPatch, few: Few) -> None:
    monkeypatch.setattr(sys.modules[test.__module__], "run_real_world", run_counted)
    test(few) if "few" in inspect.signature(test).parameters else test()
