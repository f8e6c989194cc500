"""Rounds among real workers: delays, processes that stand still, and replicas that end with the same bits."""

from __future__ import annotations

import functools
import os
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from quorate.launch.worker.world import World
from quorate.train.chosen import Chosen
from quorate.wire import current
from tests.support.launching import LIMIT
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


def stand_still(trainer: Trainer, how: str) -> None:
    """Until the others go on: stopped by a signal, or in long calls that keep the interpreter."""
    trainer.wire.board.set("stands still", str(os.getpid()).encode())
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    length = 14
    while trainer.wire.board.get("they go on") is None:  # each call takes twice as long as the one before
        length = min(length + 1, 22)
        re.fullmatch(r"(a|a)*b", "a" * length)


def go_on(trainer: Trainer) -> None:
    """Rank `stops` stands still while rank 1 makes ten steps."""
    if trainer.step == 20:
        trainer.wire.board.wait(["stands still"], LIMIT)
    if trainer.step == 30 and trainer.rank == 1:
        trainer.wire.board.set("they go on", b"1")
        with suppress(ProcessLookupError):
            os.kill(int(trainer.wire.board.get("stands still") or b""), signal.SIGCONT)


def task(strategy: str, settings: dict[str, Any], stops: int, steps: int, world: World, how: str = "stopped") -> Told:
    """Train; before the twentieth step all meet, and rank `stops` stands still."""

    def before(trainer: Trainer) -> None:
        if trainer.rank == stops and trainer.step == 20:
            stand_still(trainer, how)
        if stops not in (-1, trainer.rank):
            go_on(trainer)

    pause = lambda rank, step: 0.03 if rank == 2 else 0.01  # noqa: E731
    fields: dict[str, Any] = {"model": (20, 50, 5), "rate": 0.01, "heavy": 0.9, "loss": squares, "steps": steps}
    rests = [20] * (stops != -1)
    end = Scene(strategy, pause=pause, before=before, rests=rests, settings=settings, **fields).play(world)
    ledger = end.ledger
    return Told(
        end.parameters.tolist(),
        ledger.produced,
        ledger.taken + ledger.dropped + ledger.replaced + ledger.expired,
        end.pending,
        end.worker.timer.rounds,
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
        settings = {**settings, "grace": LIMIT}  # nobody is left out of a round because the machine is busy
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
    """Else it would stand still for ever."""
    found = run_real_world(4, functools.partial(task, "quorum", {"wait_for": 2}, stops, 60, how=how))
    for told in found:
        assert told.digest == found[0].digest
        assert told.produced == told.accounted == 60
        assert told.pending == 0


UNCHANGED = ("plain", "accumulated", "scheduled_before", "scheduled", "loaded", "unused")
"""Loops that leave gradients alone between backward and step, so that it does not matter where workers agree."""


def loops_under_a_quorum_of_all(names: list[str], world: World) -> dict[str, tuple[float, float, bool]]:
    """Per loop: the largest difference to DDP, how far training moved, and whether replicas are equal."""
    told = current.here().context(Chosen)
    told.strategy_name, told.settings = "quorum", {"wait_for": "all", "grace": LIMIT}
    return both_ways(names, world)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_loop_trains_under_a_quorum_of_all_and_equals_ddp_where_gradients_are_left_alone(few: Few) -> None:
    found = run_real_world(2, functools.partial(loops_under_a_quorum_of_all, few(UNFUSED)))[0]
    for name, (difference, moved, equal) in found.items():
        if CASES[name].loop.__name__ in UNCHANGED:
            assert difference == 0.0, f"{name}: differs from DDP by {difference}"
        assert equal, f"{name}: replicas differ"
        assert moved > 1e-3, f"{name}: nothing was trained"
