"""Every gradient of a survivor is in the rows of the rounds, whoever of those that write them dies."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from quorate.observe.step_times import Timing
from quorate.report.reading.run import read_run
from quorate.wire import current
from tests.support.raw_rows import RawRow
from tests.support.scene import Scene, Trainer
from tests.unit.rounds.test_deaths import planned, training
from tests.unit.rounds.test_silence import let_stand_still, small_logs, stand_still


def start(trainer: Trainer) -> None:
    current.here().context(Timing).recorder.write(RawRow("start", rank=trainer.rank, size=trainer.world.size))


def recorded(folder: Path, plan: Scene) -> tuple[dict[int, float], dict[int, float]]:
    """By survivor, how many of its gradients rounds have taken, as it knows itself, and as the rows say."""
    outcomes = plan.but(records=folder, begin=start).outcomes()
    assert all(found.is_crashed or found.error is None for found in outcomes)
    made = {found.rank: found.result.ledger.taken for found in outcomes if found.result is not None}
    rows = dict.fromkeys(made, 0.0)
    for merged in read_run(folder).merged():
        for rank, given in merged.round.taken.items():
            if rank in rows:
                rows[rank] += sum(count for _, count in given)
    return made, rows


def test_those_that_are_left_tell_of_all_that_have_died(tmp_path: Path) -> None:
    """Rank 0, which is to tell of rank 2, dies before it has seen that death; the others have seen it."""

    def pauses(rank: int, step: int) -> float:
        wire = current.here().wire
        if (rank, step) == (0, 3):
            wire.clock.sleep(0.3)
        if (rank, step) in ((0, 3), (2, 3)):
            wire.crash()
        return 0.05

    recorded(tmp_path, training(4, {}, pause=pauses, wait_for=1))
    assert sorted(death.rank for death in read_run(tmp_path).deaths) == [0, 2]


@pytest.mark.seeds(4, 12)
def test_the_rows_have_what_the_survivors_gave(seed: int, tmp_path: Path) -> None:
    plan, draw = planned(seed), random.Random(seed)
    plan.deaths = {0: draw.randint(1, 60)}
    if plan.size > 2:
        plan.deaths[draw.randrange(1, plan.size)] = draw.randint(1, 60)
    made, rows = recorded(tmp_path, plan)
    assert rows == made


@pytest.mark.parametrize(("seed", "deaths"), [(2, {}), (10, {}), (8, {1: 49}), (58, {0: 83}), (94, {0: 36})])
def test_the_rows_have_what_a_copy_brought(
    seed: int, deaths: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker stands still, and goes on from a copy of another replica: rounds are not kept for so long."""
    let_stand_still(monkeypatch)
    small_logs(monkeypatch)
    plan, draw = planned(seed), random.Random(seed)
    stuck, usual = (draw.randrange(2), draw.randrange(6)), plan.pause

    def pauses(rank: int, step: int) -> float:
        if (rank, step) == stuck:
            stand_still(1.0)
        return max(float((rank, step) == stuck), usual(rank, step))

    plan.deaths, plan.pause = deaths, pauses
    made, rows = recorded(tmp_path, plan)
    assert rows == made
