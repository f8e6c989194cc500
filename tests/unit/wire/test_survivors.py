"""What survivors say to each other: the same on all of them, whoever dies at whatever call."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from quorate.core.contracts import Wire
from quorate.core.errors import Mismatch, PeerFailed, WireTimeout
from quorate.wire.failure import allow_going_on, forbid_going_on, is_survived, report_death
from quorate.wire.members import history_in, read_deaths
from quorate.wire.survivors import Survivors
from quorate.wire.virtual.stage import VirtualBoard
from quorate.wire.virtual.world import VirtualWorld
from tests.support.faulty import Fault, Faulty

CALLS = 8


def gathered(size: int, faults: list[Fault], seed: int) -> list[list[list[int]] | None]:
    draw = random.Random(seed)
    pauses = [[draw.uniform(0.0, 0.02) for _ in range(CALLS)] for _ in range(size)]

    def task(wire: Wire) -> list[list[int]]:
        faulty = Faulty(wire, faults)
        allow_going_on(wire.board, wire.size, name="t")
        faulty.tolerate_deaths("gone")
        faulty.barrier().wait()
        survivors, sums = Survivors(faulty.channel("s")), []
        for number in range(CALLS):
            wire.clock.sleep(pauses[wire.rank][number])
            sums.append([int(x) for x in survivors.all_gather(torch.tensor(10 * wire.rank + number)).wait()])
        return sums

    outcomes = VirtualWorld(size, seed=seed, timeout=30.0).outcomes(task)
    for outcome in outcomes:
        assert outcome.is_crashed or outcome.error is None, outcome.error
    return [outcome.result for outcome in outcomes]


@pytest.mark.parametrize("seed", range(20))
def test_a_result_is_everyones_or_nobodys(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5])
    victims = draw.sample(range(size), draw.randint(1, size - 1))
    faults = [Fault(kind="stop", rank=rank, at=draw.randint(2, 12 * size)) for rank in victims]
    results = gathered(size, faults, seed)
    left = [result for result in results if result is not None]
    dead = {fault.rank for fault in faults if fault.fired}
    assert len(left) == size - len(dead)
    assert all(result == left[0] for result in left)
    for number, values in enumerate(left[0]):
        ranks = [(value - number) // 10 for value in values]
        assert ranks == sorted(ranks)
        assert set(range(size)) - dead <= set(ranks)


@pytest.mark.parametrize("seed", range(12))
def test_what_only_one_has_got_does_not_count(seed: int) -> None:
    """Rank 3 dies when it has sent to rank 0 only, and rank 2 comes when the others have noticed."""

    def task(wire: Wire) -> list[int]:
        fault = Fault(kind="stop", rank=3, at=2, operation="send")
        allow_going_on(wire.board, wire.size, name="t")
        wire.tolerate_deaths("gone")
        wire.barrier().wait()
        if wire.rank == 2:
            wire.clock.sleep(0.2)
        survivors = Survivors(Faulty(wire, [fault]).channel("s"))
        return [int(x) for x in survivors.all_gather(torch.tensor(wire.rank)).wait()]

    outcomes = VirtualWorld(4, seed=seed).outcomes(task)
    assert [outcome.result for outcome in outcomes] == [[0, 1, 2], [0, 1, 2], [0, 1, 2], None]


def test_all_of_all_where_nobody_dies() -> None:
    for result in gathered(3, [], 0):
        assert result == [[number, 10 + number, 20 + number] for number in range(CALLS)]


def test_one_that_does_not_come_is_named() -> None:
    def task(wire: Wire) -> None:
        if wire.rank == 1:
            wire.clock.sleep(100.0)
        else:
            with pytest.raises(WireTimeout, match="for rank 1 in barrier"):
                Survivors(wire.channel("s")).barrier().wait(2.0)

    VirtualWorld(3).run(task)


def test_different_calls_are_told() -> None:
    def task(wire: Wire) -> None:
        survivors = Survivors(wire.channel("s"))
        with pytest.raises(Mismatch, match=r"rank 0 barrier, rank 1 all_gather torch.float32"):
            (survivors.barrier() if wire.rank == 0 else survivors.all_gather(torch.ones(1))).wait(2.0)

    VirtualWorld(2).run(task)


def test_a_death_is_outlived_only_where_all_have_said_so_and_somebody_is_left() -> None:
    def task(wire: Wire) -> None:
        board = wire.board
        allow_going_on(board, 3, name="a")
        allow_going_on(board, 3, name="a")
        assert not is_survived(board, 1)
        allow_going_on(board, 3, name="a")
        assert report_death(board, 1, "was killed", "h")
        assert report_death(board, 1, "was killed", "h"), "told twice, it is one death"
        assert [death.in_words for death in read_deaths(board)] == ["rank 1 (host h) was killed"]
        assert report_death(board, 0, "raised", "h")
        assert not is_survived(board, 2), "it is the last one"
        forbid_going_on(board)
        assert not is_survived(board, 0)
        assert history_in(None) == []

    VirtualWorld(1).run(task)


def test_who_needs_one_that_has_died_is_told_so() -> None:
    def task(wire: Wire) -> None:
        allow_going_on(wire.board, wire.size, name="t")
        wire.tolerate_deaths("gone")
        wire.barrier().wait()
        if wire.rank == 1:
            wire.crash()
        with pytest.raises(PeerFailed, match="rank 1 ended"):
            wire.receive(1, "never").wait()
        assert wire.dead == {1}
        assert wire.receive(wire.rank, "gone").wait()[1].header == {"gone": [1]}

    outcomes = VirtualWorld(3).outcomes(task)
    assert [outcome.error for outcome in outcomes if outcome.rank != 1] == [None, None]


def test_a_call_reads_the_board_a_few_times_however_many_workers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    size, reads = 12, [0]

    def get_all(board: VirtualBoard, keys: Sequence[str]) -> list[bytes | None]:
        reads[0] += 1
        return [board._values.get(key) for key in keys]

    def get(board: VirtualBoard, key: str) -> bytes | None:
        return get_all(board, [key])[0]

    monkeypatch.setattr(VirtualBoard, "get_all", get_all)
    monkeypatch.setattr(VirtualBoard, "get", get)

    def task(wire: Wire) -> None:
        Survivors(wire.channel("s")).barrier().wait()

    VirtualWorld(size, seed=0, timeout=30.0).run(task)
    assert reads[0] <= 4 * size
