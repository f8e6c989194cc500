"""Models in stages on real workers: the numbers of one process, with every schedule, and along any other axis."""

from __future__ import annotations

from functools import partial

import pytest
from torch import Tensor

from quorate.sharding.stages.orders import SCHEDULES
from tests.support.processes import run_real_world
from tests.support.staged import images
from tests.support.staged_trainings import Case, End, of_pictures, of_rows, replicated, six_untied, staged, wide

EXACT = 1e-10
CUTS = ["2", "6"]


def check(workers: int, cases: list[Case]) -> None:
    """All in one world, each held against whole replicas."""
    every = run_real_world(workers, partial(staged, cases), 120.0)
    for place, case in enumerate(cases):
        check_one(case, [ends[place] for ends in every])


def check_one(case: Case, ends: list[End]) -> None:
    wanted, each = replicated(case), len(ends) // case.mesh.get("replicas", 1)
    of_shard = case.mesh.get("tensor", 1)
    for rank, end in enumerate(ends):
        replica = wanted[rank // each]
        assert end.norms == pytest.approx(replica.norms, rel=EXACT), (case, rank)
        if rank // of_shard % case.shards == 0:
            assert end.losses == pytest.approx(replica.losses, rel=EXACT), (case, rank)
        assert furthest(end.parameters, replica.parameters) < EXACT, (case, rank)
    names = set[str]().union(*(end.parameters for end in ends[:each]))
    assert names == set(wanted[0].parameters), case


def furthest(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    return max(float((x - wanted[name]).abs().max()) for name, x in found.items())


def test_two_stages() -> None:
    mesh = {"stages": 2}
    cases = [Case(mesh, chosen={"schedule": name, "microbatches": 8}) for name in SCHEDULES]
    cases += [
        Case(mesh, is_loop=True, chosen={"microbatches": 3}),
        Case(mesh, images, of_pictures, chosen={"stages": ["6"], "microbatches": 4}),
        Case(mesh, images, of_pictures, is_loop=True),
    ]
    check(2, cases)


SQUARE = {"shards": 2, "stages": 2}


def test_stages_beside_other_axes() -> None:
    pair = {"replicas": 2, "stages": 2}
    cases = [
        Case(pair),
        Case(pair, strategy="quorum", settings={"wait_for": "all", "grace": 5.0}, clip=None),
        Case(pair, strategy="local-sgd", settings={"sync_every": 2}),
        Case(pair, strategy="diloco", settings={"sync_every": 2}),
        *(Case(SQUARE, chosen={"zero": zero}, steps=1) for zero in (1, 2, 3)),
        Case(SQUARE, six_untied, chosen={"zero": 2, "schedule": "zbv"}, steps=1),
        Case({"stages": 2, "tensor": 2}, wide, of_rows),
        Case({"stages": 4}, chosen={"schedule": "gpipe"}),
    ]
    check(4, cases)


def test_three_axes() -> None:
    check(8, [Case({"replicas": 2, **SQUARE}, steps=1)])
