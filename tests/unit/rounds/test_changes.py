"""Settings that change between rounds: asked for by members, decided by the leader, and in the log from then on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat
from quorate.rounds.messages import Note, Wish
from quorate.rounds.pending import PendingGradients
from quorate.rounds.terms import Agreed, amended, check_change
from tests.unit.rounds.test_member import LAYOUT, Bench


def ask(bench: Bench, rank: int, request: int, why: str = "", **settings: Any) -> None:
    bench.members[rank].wish = Wish(request, settings, why)
    bench.members[rank].ping()


def rounds_of(bench: Bench, rank: int = 0) -> list[tuple[int, int, Any, str | None]]:
    """(number, quorum, wait_for from the next one on, why)"""
    log = bench.members[rank].log
    found = [log.get(number) for number in range(1, log.newest + 1)]
    return [(one.number, one.quorum, one.settings.get("wait_for"), one.why) for one in found if one is not None]


def test_a_request_is_in_force_from_the_round_after_the_next_on() -> None:
    bench = Bench(3, wait_for=1)
    ask(bench, 1, 0, "it is slow", wait_for=2)
    bench.deliver()
    bench.call(1)
    bench.deliver()
    bench.call(2)
    bench.deliver()
    assert [member.log.newest for member in bench.members] == [1, 1, 1]
    bench.call(0)
    bench.deliver()
    expected = [(1, 1, 2, "it is slow"), (2, 2, 2, None)]
    assert [rounds_of(bench, rank) for rank in range(3)] == [expected] * 3


def test_of_requests_the_newest_counts_and_of_equal_ones_the_first() -> None:
    bench = Bench(3, wait_for=1)
    for _ in range(3):
        bench.call(0)
        bench.deliver()
    ask(bench, 1, 2, wait_for=2)
    ask(bench, 0, 2, wait_for=3)
    bench.deliver()
    bench.call(0)
    bench.deliver()
    assert rounds_of(bench)[-1][2] == 2
    ask(bench, 2, 1, wait_for=3)
    bench.deliver()
    bench.call(0)
    bench.call(1)
    bench.deliver()
    assert rounds_of(bench)[-1][1:3] == (2, 2)
    ask(bench, 2, 5, wait_for=3)
    ask(bench, 1, 4, wait_for=1)
    bench.deliver()
    bench.call(0)
    bench.call(1)
    bench.deliver()
    assert rounds_of(bench)[-1][2] == 3


def test_a_new_leader_goes_by_what_is_in_force() -> None:
    bench = Bench(3, wait_for=1)
    ask(bench, 2, 0, wait_for=2)
    bench.deliver()
    bench.call(2)
    bench.deliver()
    bench.deaf = {0}
    bench.under_way.clear()
    bench.members[1].stand(1, bench.now)
    bench.deliver()
    bench.now = 2.0
    bench.members[1].passed(bench.now)
    bench.deliver()
    bench.call(1)
    bench.deliver()
    assert bench.logs()[1:] == [(1, 0), (1, 0)]
    bench.call(2)
    bench.deliver()
    assert bench.logs()[1:] == [(2, 1), (2, 1)]
    assert rounds_of(bench, 1)[-1] == (2, 2, 2, None)


def test_a_request_that_the_old_leader_took_along_is_said_to_the_new_one() -> None:
    bench = Bench(3, wait_for=1)
    bench.deaf = {0}
    ask(bench, 2, 0, wait_for=3)
    bench.under_way.clear()
    bench.members[1].stand(1, bench.now)
    bench.deliver()
    bench.now = 2.0
    bench.members[1].passed(bench.now)
    bench.call(1)
    bench.deliver()
    assert rounds_of(bench, 1) == [(1, 1, 3, "")]


def test_a_copy_of_a_replica_comes_with_what_is_in_force() -> None:
    bench = Bench(2, wait_for=1)
    ask(bench, 0, 0, wait_for=2)
    bench.deliver()
    bench.call(0)
    bench.deliver()
    source = bench.members[0]
    source.applied = 1
    fresh = Bench(2, wait_for=1).members[1]
    fresh.jump(source.about_copy(source.applied))
    assert (fresh.log.settings, fresh.log.request) == ({"wait_for": 2}, 0)


def test_a_checkpoint_keeps_what_is_in_force() -> None:
    bench = Bench(2, wait_for=1)
    ask(bench, 0, 1, wait_for=2)
    bench.call(0)
    bench.deliver()
    bench.call(0)
    bench.deliver()
    bench.members[0].keeping.keep(2)
    kept = bench.members[0].keeping.kept
    assert kept is not None and kept.settings == {"wait_for": 2}
    again = Bench(2, wait_for=1)
    for member in again.members:
        member.keeping.kept = kept
        member.restore()
    again.call(0)
    again.deliver()
    assert again.logs() == [(2, 0)] * 2
    again.call(1)
    again.deliver()
    assert [member.log.newest for member in again.members] == [3, 3]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"wait_for": 9}, "wait_for is 9"),
        ({"late": "drop"}, "unknown setting of rounds that changes"),
        ({"max_staleness": 17}, "max_staleness is 17"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_change(Agreed(size=3), settings)


def test_the_bound_can_be_made_tighter() -> None:
    agreed = Agreed(size=3)
    check_change(agreed, {"max_staleness": 2})
    assert amended(agreed, {"max_staleness": 2}).max_staleness == 2
    assert amended(agreed, {}) is agreed


def test_what_is_told_with_gradients_comes_with_their_round() -> None:
    bench = Bench(2, wait_for=1)
    for rank, words in ((0, ["a"]), (1, ["b", "c"])):
        for word in words:
            bench.members[rank].pending.add(Flat([torch.ones(2)], LAYOUT), 1.0, 0, 1, None, word)
    bench.members[0].note(Note("call", None, 0), bench.now)
    bench.deliver()
    for member in bench.members:
        one = member.log.get(1)
        assert one is not None and one.measures == {0: ["a"], 1: ["b", "c"]}


def test_what_was_given_back_is_told_again() -> None:
    agreed = Agreed(size=2)
    pending = PendingGradients(agreed)
    pending.add(Flat([torch.ones(2)], LAYOUT), 1.0, 0, 1, None, "a")
    given = pending.take(1)
    pending.add(Flat([torch.ones(2)], LAYOUT), 1.0, 0, 2, None, "b")
    pending.give_back(given)
    assert pending.take(2).contribution.measures == ["a", "b"]
