"""A follower's training thread tells its member itself what it does, in the order of its words."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

from quorate.core.fields import Fields
from quorate.rounds.events import Event, Said, Word
from quorate.rounds.messages import Note
from quorate.rounds.progress import RoundTask


class Task(RoundTask):
    """Collects words by the way they take: `noted` at once, or `queued` for the task."""

    def __init__(self, *, leads: int, notes_at_once: bool = True) -> None:
        self.noted, self.queued = list[Fields](), list[dict[str, Any]]()
        self.notes_at_once, self.error = notes_at_once, None
        self._turn, self._unheard = threading.Lock(), deque[None]()
        self.member: Any = SimpleNamespace(leads=leads, rank=1)
        self._wire: Any = SimpleNamespace(rank=1, send=lambda message, to, tag: self.queued.append(message.header))

    def _happens(self, event: Event, message: Any = None) -> None:
        assert self._turn.locked() and isinstance(event, Said)
        self.noted.append(event.word)

    def ways(self, *words: Fields) -> tuple[int, int]:
        for word in words:
            self.say(word)
        return len(self.noted), len(self.queued)


NOTE, LOOK = Note("ride", 3), Word("look")


def test_a_follower_notes_at_once() -> None:
    assert Task(leads=0).ways(NOTE, NOTE) == (2, 0)


def test_a_leader_and_the_virtual_world_leave_it_to_the_task() -> None:
    assert Task(leads=1).ways(NOTE) == (0, 1)
    assert Task(leads=0, notes_at_once=False).ways(NOTE) == (0, 1)


def test_words_stay_in_order() -> None:
    """Behind a word that the task has not taken, a note waits too."""
    task = Task(leads=0)
    assert task.ways(LOOK, NOTE) == (0, 2)
    task._unheard.clear()
    assert task.ways(NOTE) == (1, 2)


def test_a_note_does_not_wait_for_the_turn_of_the_task() -> None:
    task = Task(leads=0)
    with task._turn:
        assert task.ways(NOTE) == (0, 1)
