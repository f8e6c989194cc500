"""Every check of what a reducer must do, for each one in the registry, in both worlds."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from quorate.core.contracts import Wire
from quorate.means import OF_VECTORS
from tests.contract import reducer_checks
from tests.contract.reducer_checks import one_dies_between, one_dies_within, one_is_late, one_sums_something_else
from tests.contract.worlds import RealWorkers, VirtualWorkers, Workers, WorkersOnHosts, in_both_worlds, in_words

CHECKS = {name.removeprefix("check_"): each for name, each in vars(reducer_checks).items() if name[:6] == "check_"}
BY_MESSAGES = tuple(name for name in OF_VECTORS if name != "dense")


@pytest.mark.parametrize("size", [*range(1, 10), 16])
@pytest.mark.parametrize("name", OF_VECTORS)
def test_virtual(name: str, size: int) -> None:
    for check, task in CHECKS.items():
        assert len(set(VirtualWorkers(size).run(partial(task, name)))) == 1, f"{check}: not the same on all ranks"


def every_check(wire: Wire) -> list[tuple[str, bytes]]:
    """Of all reducers, one after the other, since starting processes takes long."""
    found = []
    for name in OF_VECTORS:
        for check, task in CHECKS.items():
            try:
                found.append((f"{name} {check}", task(name, wire)))
            except Exception as error:
                error.add_note(f"in the check {check} of {name}")
                raise
    return found


REAL: list[Any] = [
    *map(RealWorkers, (2, 3, 4)),
    pytest.param(WorkersOnHosts((2, 1)), marks=pytest.mark.on_hosts),
]


@pytest.mark.parametrize("workers", REAL, ids=in_words)
def test_real(workers: RealWorkers | WorkersOnHosts) -> None:
    for results in zip(*workers.run(every_check), strict=True):
        assert len(set(results)) == 1, f"{results[0][0]}: not the same on all ranks"


DEATHS: list[Any] = [
    *((VirtualWorkers(size), dead, name) for size in (2, 5) for dead in range(size) for name in OF_VECTORS),
    *((RealWorkers(3), dead, name) for dead, name in ((0, "tree"), (1, "ring"), (2, "recursive-doubling"))),
    (RealWorkers(4), 1, "halving-doubling"),
    pytest.param(WorkersOnHosts((1, 1, 1)), 1, "ring", marks=pytest.mark.on_hosts),
]


@pytest.mark.parametrize(("workers", "dead", "name"), DEATHS, ids=in_words)
def test_a_death_ends_the_sums_of_all_others(workers: Workers, dead: int, name: str) -> None:
    fates = workers.fates(partial(one_dies_between, name, dead))
    assert fates[dead].is_crashed
    for rank in set(range(workers.size)) - {dead}:
        seen = fates[rank].result
        assert seen is not None, fates[rank]
        assert seen[:2] == ("PeerFailed", (dead,))
        assert seen[2] < (4.0 if isinstance(workers, WorkersOnHosts) else 1.0)  # an election may come before it


@pytest.mark.parametrize("name", BY_MESSAGES)
@pytest.mark.parametrize("workers", in_both_worlds((4,), (4,)), ids=in_words)
def test_a_death_between_two_messages_of_a_sum_ends_sums_everywhere(workers: Workers, name: str) -> None:
    fates = workers.fates(partial(one_dies_within, name, 0))
    assert fates[0].is_crashed
    for fate in fates[1:]:
        assert fate.result is not None, fate
        assert fate.result[:2] == ("PeerFailed", (0,))
        assert fate.result[2] < 1.0


@pytest.mark.parametrize("name", OF_VECTORS)
@pytest.mark.parametrize("workers", in_both_worlds((2, 3, 5), ()), ids=in_words)
def test_a_sum_that_was_waited_for_in_vain_goes_on(workers: Workers, name: str) -> None:
    fates = workers.fates(partial(one_is_late, name))
    assert [fate.error for fate in fates] == [None] * workers.size
    results = [fate.result for fate in fates if fate.result is not None]
    assert [found for *_, found in results] == [workers.size] * workers.size
    assert [kind for kind, *_ in results] == ["WireTimeout"] * (workers.size - 1) + [""]
    assert any(workers.size - 1 in ranks for _, ranks, _ in results), "somebody names who was late"


@pytest.mark.parametrize("how", ["length", "type"])
@pytest.mark.parametrize("name", OF_VECTORS)
@pytest.mark.parametrize("workers", in_both_worlds((2, 3, 4), ()), ids=in_words)
def test_a_worker_that_sums_something_else_is_named(workers: Workers, name: str, how: str) -> None:
    fates = workers.fates(partial(one_sums_something_else, name, how))
    told = [fate.result for fate in fates if fate.result]
    assert told, fates
    assert any(f"rank {workers.size - 1}" in words for words in told)
