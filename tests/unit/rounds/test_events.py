"""The headers of events and words, as the first worker of a replica in pieces sends them to the others."""

from __future__ import annotations

import json

import pytest

from quorate.core.fields import Fields
from quorate.rounds.events import (
    Died,
    Event,
    Jumped,
    LeaseRead,
    LeaseTaken,
    Passed,
    Received,
    Said,
    Save,
    Wished,
    Word,
    read_word,
)
from quorate.rounds.log import Jump, LogState
from quorate.rounds.messages import Lease, Note, Wish
from quorate.rounds.pieces.row_tasks import RowEvent, RowEvents

WORDS: list[tuple[Fields, str]] = [
    (Note("ride", 3), '{"note": "ride", "computing": 3}'),
    (Word("keep"), '{"keep": true}'),
    (Save(7), '{"save": 7}'),
    (Wished(Wish(3, {"grace": 1.0}, "late")), '{"wish": {"request": 3, "settings": {"grace": 1.0}, "why": "late"}}'),
]
EVENTS: list[tuple[Event, str]] = [
    (
        Received(1, {"kind": "pong", "term": 2}),
        '{"what": "message", "source": 1, "header": {"kind": "pong", "term": 2}',
    ),
    (Passed(), '{"what": "passed"'),
    (Died([1, 2]), '{"what": "died", "ranks": [1, 2]'),
    (LeaseRead(Lease(3, 1)), '{"what": "lease", "held": {"term": 3, "leads": 1}'),
    (LeaseTaken(4), '{"what": "stand", "term": 4'),
    *((Said(word), f'{{"what": "said", "said": {text}') for word, text in WORDS),
]


@pytest.mark.parametrize(("word", "text"), WORDS)
def test_a_word_is_read_back_from_its_json(word: Fields, text: str) -> None:
    assert json.dumps(word.header()) == text
    assert read_word(json.loads(text)) == word


def test_a_jump_is_read_back_from_its_json() -> None:
    word = Jumped(Jump(LogState(3, 1, 0.5, None, marks=[[3, 1]], era=2), 4))
    assert read_word(json.loads(json.dumps(word.header()))).header() == json.loads(json.dumps(word.header()))


@pytest.mark.parametrize(("event", "text"), EVENTS)
@pytest.mark.parametrize("stream", [None, "vectors"])
def test_events_are_read_back_from_their_json(event: Event, text: str, stream: str | None) -> None:
    about = "" if stream is None else f', "stream": "{stream}"'
    events = RowEvents([RowEvent(event, 0.5, 6, stream)])  # type: ignore[arg-type]
    assert json.dumps(events.header()) == f'{{"events": [{text}, "now": 0.5, "applied": 6{about}}}]}}'
    assert RowEvents.read(json.loads(json.dumps(events.header()))) == events
