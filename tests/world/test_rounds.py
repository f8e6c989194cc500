"""Rounds among real workers: delays, processes that stand still, and replicas that end with the same bits."""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import pytest

from quorate.launch.worker.world import World
from quorate.train.chosen import chosen_in
from quorate.wire import current
from tests.support.processes import run_real_world
from tests.support.sampled import Few
from tests.support.scene import Scene, Trainer, squares
from tests.world.loops import CASES, UNFUSED
from tests.world.test_matches_ddp import both_ways


@dataclass
class Told:
    digest: list[float]
    produced: float
    accounted: float
    pending: float
    rounds: int
    longest_step: float
    slept: int


STILL = 2.5
"""Seconds in which one process stands still."""
LESS = 1.8
"""Seconds in which the others have gone on, whatever else the machine does."""


def stand_still(how: str) -> None:
    """For `STILL` seconds or so: stopped by a signal, or in one call that keeps the interpreter."""
    if how == "stopped":
        subprocess.Popen(["sh", "-c", f"sleep {STILL}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    end, length = time.monotonic() + STILL, 14
    while time.monotonic() < end:  # each takes twice as long as the one before
        length += 1
        re.fullmatch(r"(a|a)*b", "a" * length)


def task(strategy: str, settings: dict[str, Any], stops: int, steps: int, world: World, how: str = "stopped") -> Told:
    """Train; rank `stops` stands still before its twentieth step."""

    def before(trainer: Trainer) -> None:
        if trainer.rank == stops and trainer.step == 20:
            stand_still(how)

    pause, seconds = (lambda rank, step: 0.03 if rank == 2 else 0.01), list[float]()
    fields: dict[str, Any] = {"model": (20, 50, 5), "rate": 0.01, "heavy": 0.9, "loss": squares, "steps": steps}
    end = Scene(strategy, pause=pause, before=before, settings=settings, **fields).play(world)
    seconds += [late - early for early, late in itertools.pairwise(end.times)]
    ledger = end.ledger
    return Told(
        end.parameters.tolist(),
        ledger.produced,
        ledger.taken + ledger.dropped + ledger.replaced + ledger.expired,
        end.pending,
        end.worker.timer.rounds,
        max(seconds[9:]),
        sum(each > LESS for each in seconds),
    )


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("quorum", {"wait_for": "all"}),
        ("quorum", {"wait_for": 2, "overlap": True}),
        ("eager-solo", {}),
        ("eager-majority", {}),
        ("backup-workers", {"wait_for": 2}),
        ("bounded-staleness", {"max_staleness": 1}),
        ("adaptive", {"window": 2}),
    ],
)
def test_replicas_end_equal_and_nothing_is_lost(strategy: str, settings: dict[str, Any]) -> None:
    if settings.get("wait_for") == "all":
        settings = {**settings, "grace": 5.0}  # nobody is left out of a round because the machine is busy
    found = run_real_world(3, functools.partial(task, strategy, settings, -1, 30))
    for told in found:
        assert told.digest == found[0].digest
        assert told.produced == told.accounted == 30
        assert told.pending == 0
    if settings.get("wait_for") == "all":
        assert found[0].rounds == 30


@pytest.mark.parametrize(
    ("stops", "how"),
    [(0, "stopped"), (3, "in one long call")],
    ids=["the one that leads is stopped", "another one is in one long call"],
)
def test_the_others_go_on_while_a_process_stands_still(stops: int, how: str) -> None:
    found = run_real_world(4, functools.partial(task, "quorum", {"wait_for": 2}, stops, 60, how=how))
    for told in found:
        assert told.digest == found[0].digest
        assert told.produced == told.accounted == 60
        assert told.pending == 0
    assert all(told.longest_step < LESS for rank, told in enumerate(found) if rank != stops)


UNCHANGED = ("plain", "accumulated", "scheduled_before", "scheduled", "loaded", "unused")
"""Loops that leave gradients alone between backward and step, so that it does not matter where workers agree."""


def loops_under_a_quorum_of_all(names: list[str], world: World) -> dict[str, tuple[float, float, bool]]:
    """Per loop: the largest difference to DDP, how far training moved, and whether replicas are equal."""
    told = chosen_in(current.here())
    told.strategy_name, told.settings = "quorum", {"wait_for": "all", "grace": 5.0}
    return both_ways(names, world)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_loop_trains_under_a_quorum_of_all_and_equals_ddp_where_gradients_are_left_alone(few: Few) -> None:
    found = run_real_world(2, functools.partial(loops_under_a_quorum_of_all, few(UNFUSED)), timeout=110)[0]
    for name, (difference, moved, equal) in found.items():
        if CASES[name].loop.__name__ in UNCHANGED:
            assert difference == 0.0, f"{name}: differs from DDP by {difference}"
        assert equal, f"{name}: replicas differ"
        assert moved > 1e-3, f"{name}: nothing was trained"
