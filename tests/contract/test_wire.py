"""Every check of what a wire must do, on virtual wires of many sizes and on real ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest

from quorate.core.contracts import Wire
from tests.contract import collective_checks, message_checks
from tests.contract.worlds import (
    LAYOUTS,
    REAL_SIZES,
    VIRTUAL_SIZES,
    RealWorkers,
    VirtualWorkers,
    WorkersOnHosts,
    in_words,
)
from tests.support.sampled import Few

Check = Callable[[Wire], bytes]

CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check
    for module in (collective_checks, message_checks)
    for name, check in vars(module).items()
    if name.startswith("check_")
}


@pytest.mark.covering(("name", "size"), product(CHECKS, VIRTUAL_SIZES))
def test_virtual(name: str, size: int) -> None:
    for seed in (0, 1) if size <= 5 else (0,):
        assert len(set(VirtualWorkers(size, seed).run(CHECKS[name]))) == 1, "not the same on all ranks"


@pytest.mark.parametrize("name", ["all_reduce", "groups", "first_in_first_out"])
def test_many_virtual_workers(name: str) -> None:
    assert len(set(VirtualWorkers(32).run(CHECKS[name]))) == 1, "not the same on all ranks"


def every_check(names: list[str], wire: Wire) -> list[bytes]:
    """All checks one after the other, since starting processes takes long; a failure says which it was in."""
    results = []
    for name in names:
        try:
            results.append(CHECKS[name](wire))
        except Exception as error:
            error.add_note(f"in the check {name}")
            raise
    return results


REAL: list[RealWorkers | WorkersOnHosts] = [*map(RealWorkers, REAL_SIZES), *map(WorkersOnHosts, LAYOUTS)]


@pytest.mark.parametrize("workers", REAL, ids=in_words)
def test_real(workers: RealWorkers | WorkersOnHosts) -> None:
    by_rank = workers.run(partial(every_check, list(CHECKS)))
    for name, results in zip(CHECKS, zip(*by_rank, strict=True), strict=True):
        assert len(set(results)) == 1, f"{name}: not the same on all ranks"


def test_every_virtual_seed_keeps_the_contract(times: int, few: Few) -> None:
    for seed in few(range(2, 2 + 3 * times)):
        for name, check in CHECKS.items():
            assert len(set(VirtualWorkers(3, seed).run(check))) == 1, f"{name} with seed {seed}"
