"""`all-reduce` is torch DDP in every loop: bit for bit at two workers, within rounding at three."""

from __future__ import annotations

import functools

import pytest
import torch

from quorate.launch.worker.world import World
from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.world.loops import CASES, UNFUSED, train

pytestmark = pytest.mark.filterwarnings("ignore")


def both_ways(names: list[str], world: World) -> dict[str, tuple[float, float, bool]]:
    """Per case: the largest difference to DDP, how far training moved, and whether all replicas are equal bits."""
    torch.set_num_threads(1)
    found = {}
    for name in names:
        theirs, mine = train(CASES[name], world, ours=False), train(CASES[name], world, ours=True)
        difference = max(float((a.double() - b.double()).abs().max()) for a, b in zip(theirs, mine, strict=True))
        torch.manual_seed(7)
        moved = max(
            float((a.detach() - b.cpu()).abs().max())
            for a, b in zip(CASES[name].model().parameters(), mine, strict=True)
        )
        bits = world.gather(torch.cat([p.double().reshape(-1) for p in mine]))
        found[name] = (difference, moved, all(torch.equal(other, bits[0]) for other in bits))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("size", "tolerance"), [(2, 0.0), (3, 2e-6)])
def test_every_loop(size: int, tolerance: float, few: Few) -> None:
    cases = few(list(CASES) if size == 2 else UNFUSED)
    found = run_real_world(size, functools.partial(both_ways, cases))[0]
    assert list(found) == cases
    for name, (difference, moved, equal) in found.items():
        room = 2e-3 if tolerance and name.startswith("bf16") else tolerance  # one unit in the last place of bf16
        assert difference <= room, f"{name}: differs from DDP by {difference}"
        assert moved > 1e-3, f"{name}: nothing was trained"
        assert equal, f"{name}: replicas differ"
