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
from tests.world import (
    test_branches,
    test_convolutions,
    test_experts,
    test_sequence_pieces,
    test_stages,
    test_tensor_parallel,
)

pytestmark = [pytest.mark.gpu, needs_gpu, pytest.mark.slow]


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
