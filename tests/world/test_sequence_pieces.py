"""Models that calculate on pieces of sequences, on real workers: the numbers of one process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from tests.support.processes import run_real_world
from tests.support.sequence_trainings import Case, in_pieces, whole
from tests.support.tensor_trainings import End
from tests.world.test_tensor_parallel import far


def all_of(cases: Sequence[Case], world: Any) -> list[End]:
    return [in_pieces(case, world) for case in cases]


def check(cases: Sequence[Case], workers: int) -> None:
    for case, *found in zip(cases, *run_real_world(workers, partial(all_of, cases), 100.0), strict=True):
        wanted = whole(case)
        for rank, end in enumerate(found):
            same = wanted[rank * len(wanted) // workers]
            if rank < case.mesh["tensor"]:
                assert end.losses == pytest.approx(same.losses, rel=1e-9), case
            assert end.norms == pytest.approx(same.norms, rel=1e-9), case
            assert far(end.gradients, same.gradients) < 1e-9, case
            assert far(end.parameters, same.parameters) < 1e-9, case


def test_two_workers_share_sequences() -> None:
    """Of lengths that divide, and that do not."""
    check([Case({"tensor": 2}, length) for length in (8, 11)], 2)
