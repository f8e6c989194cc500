"""Rows of a worker that dies: all survivors take the same, whoever has received them."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import pytest
import torch

from quorate.core.contracts import Wire
from quorate.core.errors import PeerFailed
from quorate.quorums.rows_in_rounds import HeldRows
from quorate.wire.failure import allow_going_on
from quorate.wire.survivors import DeathTolerance, Survivors
from quorate.wire.virtual.world import VirtualWorld
from tests.support.faulty import Fault, Faulty

DYING = 2


def lived(wire: Wire, lost: Collection[int], late: int, discards: bool) -> list[float] | None:
    """Return the numbers of the dying worker's contribution; messages to ranks in `lost` do not arrive."""
    allow_going_on(wire.board, wire.size, name="1")
    wire.tolerate_deaths("gone")
    wire = Faulty(wire, [Fault("drop", rank=DYING, at=1 + rank, operation="send") for rank in lost])
    tolerance = DeathTolerance()
    tolerance.survivors = Survivors(wire.channel("survivors"))
    held = HeldRows(wire.channel("rows"), tolerance)
    if wire.rank == DYING:
        held.send(1, 0, torch.tensor([1.5, 2.5]))
        wire.clock.sleep(1.0)
        wire.crash()
    wire.clock.sleep(3.0 * (wire.rank == late))
    rows = held.take(DYING, 1, 1)
    if discards:
        held.forget(9, 9)
    wire.clock.sleep(4.0)
    held.close()
    return None if rows is None else rows.tolist()


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize(("lost", "rows"), [((), [1.5, 2.5]), ((0,), [1.5, 2.5]), ((1,), [1.5, 2.5]), ((0, 1), None)])
def test_survivors_take_the_same(lost: tuple[int, ...], rows: list[float] | None, late: int) -> None:
    outcomes = VirtualWorld(3).outcomes(partial(lived, lost=lost, late=late, discards=False))
    assert [outcome.result for outcome in outcomes[:DYING]] == [rows, rows], outcomes


def test_rows_that_were_discarded_are_missed_with_a_sentence() -> None:
    outcomes = VirtualWorld(3).outcomes(partial(lived, lost=(0,), late=0, discards=True))
    assert isinstance(outcomes[0].error, PeerFailed)
    assert "too far behind" in str(outcomes[0].error)
