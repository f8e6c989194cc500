"""What a new leader is told of what the others do: rests that are over, and rounds that had begun."""

from __future__ import annotations

from typing import Any

from quorate.rounds.holdings import Announcement
from quorate.rounds.leader import Start
from quorate.rounds.messages import Envelope, Note
from tests.unit.rounds.test_member import Bench, two_first_rounds


def test_a_round_under_way_is_begun_anew_also_when_two_leaders_go_one_after_the_other() -> None:
    """Whoever has given to round 1 waits for it, and calls for nothing."""
    bench = Bench(4, wait_for=1)
    bench.deaf = {0}
    bench.call(3)
    bench.deaf = set()
    start = Envelope(0, 0, 0, 0).header(Start(1, is_pause=False, spans=False).header())
    bench.members[2].received(0, start, None, 0.0)
    bench.under_way.clear()
    bench.members[1].stand(1, 0.0)
    bench.deaf = {0, 1}
    for rank in (2, 3):
        bench.members[rank].received(1, {"kind": "term", "term": 1, "leads": 1, "logged": 0, "log_term": 0}, None, 0.0)
    bench.under_way.clear()
    for rank in (2, 3):
        bench.members[rank].have_died([0, 1], 0.1)
    bench.members[3].note(Note("ride", 0), 0.1)
    bench.members[2].stand(2, 0.1)
    bench.deliver()
    assert bench.members[3].log.newest == 1


def test_a_new_leader_hears_who_steps_again_after_a_rest() -> None:
    """All pause in round 1, and the leader dies before anybody has handed in: nobody pauses any more."""
    bench = Bench(3, wait_for="all")
    for rank in range(3):
        bench.members[rank].note(Note("pause"), 0.0)
    bench.deliver()
    assert bench.logs() == [(1, 0)] * 3
    for rank in (1, 2):
        bench.members[rank].have_died([0], 0.1)
    bench.members[1].stand(1, 0.1)
    bench.deliver()
    assert bench.members[1].log.newest == 1


def test_a_new_leader_hears_of_a_rest_that_is_over_from_one_that_does_not_know_it_yet() -> None:
    bench = Bench(3, wait_for="all")
    for rank in range(3):
        bench.members[rank].note(Note("pause"), 0.0)
    bench.deliver_but("round", to=2)
    assert bench.logs() == [(1, 0), (1, 0), (0, 0)]
    for rank in (1, 2):
        bench.members[rank].have_died([0], 0.1)
    bench.members[1].stand(1, 0.1)
    bench.deliver()
    assert bench.members[2].log.newest == 1
    bench.members[1].note(Note("pause"), 0.1)
    bench.deliver()
    assert bench.members[1].log.newest == 1


def test_what_comes_after_a_round_that_one_does_not_have_is_not_taken() -> None:
    """Rank 0 has formed a round 1 that counts no more. Until it is a copy of another replica it is sent no round 2, and
    takes none that comes all the same."""
    bench = two_first_rounds()
    bench.members[2].stand(2, bench.now)
    bench.deliver()
    assert bench.members[2].leader is not None and bench.members[2].copies_wanted == [0]
    told: list[int] = []
    send = bench.members[2]._send

    def watched(to: int, header: dict[str, Any], vector: Any) -> None:
        told.extend([to] if header["kind"] == "round" else [])
        send(to, header, vector)

    bench.members[2]._send = watched
    bench.call(1)
    bench.deliver()
    assert bench.logs() == [(1, 0), (2, 2), (2, 2)] and told == [1]
    one = bench.members[1].log.get(2)
    assert one is not None
    header = Envelope(2, 2, 2, 2).header(Announcement(one, votes=False, acknowledged=0, after=1).header())
    bench.members[0].received(2, header, one.sum, bench.now)
    assert bench.logs()[0] == (1, 0)
