"""Questions to a worker that has died."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quorate.core.contracts import Message
from quorate.core.errors import PeerFailed
from quorate.gossip.neighbours import PendingAnswer


class Answer:
    """Of worker 1: there, or never to come; `wait` takes its time to find that out."""

    def __init__(self, *, is_there: bool) -> None:
        self.is_there, self.waits = is_there, 0

    def done(self) -> bool:
        return self.is_there

    def wait(self, timeout: float | None = None) -> tuple[int, Message]:
        self.waits += 1
        if not self.is_there:
            raise PeerFailed("rank 1 has died", (1,))
        return 1, Message(header={"says": "yes"})


def asked(answer: Answer, gone: set[int]) -> PendingAnswer:
    wire: Any = SimpleNamespace(dead=frozenset(gone))
    return PendingAnswer(wire, 1, answer)


def test_nobody_waits_for_the_answer_of_one_that_is_known_to_be_dead() -> None:
    answer = Answer(is_there=False)
    work = asked(answer, {1})
    assert work.done()
    assert work.wait() == (1, Message())
    assert answer.waits == 0


def test_what_it_answered_before_it_died_counts() -> None:
    assert asked(Answer(is_there=True), {1}).wait()[1].header == {"says": "yes"}


def test_a_death_that_is_not_outlived_is_an_error() -> None:
    work = asked(Answer(is_there=False), {2})
    assert not work.done()
    with pytest.raises(PeerFailed):
        work.wait()
