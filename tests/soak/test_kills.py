"""A few of the kills of `make soak`: each fault at least once, at times drawn from seeds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quorate.launch.warm.forks import CAN_FORK
from quorate.launch.warm.run_server import RunServer
from tests.soak.kills import FAULTS, GOSSIP, Soak, Trial, own_place

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="a process that has imported torch cannot be forked here")


@pytest.fixture(scope="module")
def soak() -> Iterator[Soak]:
    with (
        tempfile.TemporaryDirectory(prefix="qs-") as place,
        own_place(Path(place)),
        RunServer() as server,
    ):
        yield Soak(server, Path(place))


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_happens_a_run_ends_as_it_should(soak: Soak, fault: str) -> None:
    seed = list(FAULTS).index(fault)
    assert soak.carry_out(Trial.drawn(seed, fault), fault.replace(" ", "-")) == []


@pytest.mark.seeds(5, 16)
def test_the_others_go_on(soak: Soak, seed: int) -> None:
    fault = ("kill worker", "kill worker", "kill two workers", "kill stopped worker", "kill all but one")[seed % 5]
    trial = Trial.drawn(1000 + seed, fault)
    if trial.strategy == "all-reduce":
        trial = replace(trial, strategy="all-reduce+")
    assert trial.is_survived
    assert soak.carry_out(trial, f"goes-on-{seed}") == []


@pytest.mark.parametrize(
    ("seed", "strategy"), [(6, "group-averaging"), (14, "group-averaging"), (5, "all-reduce+"), (7, "diloco")]
)
def test_the_others_go_on_from_their_first_mean(soak: Soak, seed: int, strategy: str) -> None:
    trial = replace(Trial.drawn(seed, "kill worker at first"), strategy=strategy, size=3)
    assert soak.carry_out(replace(trial, rank=trial.rank % 3), f"first-{seed}") == []


@pytest.mark.parametrize("strategy", GOSSIP)
def test_gossip_goes_on(soak: Soak, strategy: str) -> None:
    trial = Trial(fault="kill worker", strategy=strategy, size=3, rank=GOSSIP.index(strategy), delay=0.1)
    assert soak.carry_out(trial, f"gossip-{strategy}") == []


def test_the_draw_has_every_fault() -> None:
    drawn = {Trial.drawn(seed).fault for seed in range(300)}
    assert drawn == set(FAULTS)
