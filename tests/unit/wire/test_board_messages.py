"""The headers of messages between copies of a replicated board, and of writes, as they are on the connections."""

from __future__ import annotations

import json

import pytest

from quorate.core.fields import Fields
from quorate.wire.real.clock_exchange import ClockAnswer, ClockQuestion
from quorate.wire.replicated.messages import (
    Acknowledgement,
    Append,
    AppliedState,
    Hello,
    Proposal,
    ReadIndex,
    ReadRequest,
    TakenForDead,
    Vote,
    VoteRequest,
    read,
)
from quorate.wire.replicated.state import LEFT, NOTHING, Write

WRITES: list[tuple[Fields, str]] = [
    (Write(1, 2, 0, "set", "k", "v"), '{"by": 1, "number": 2, "done": 0, "do": "set", "key": "k", "value": "v"}'),
    (
        Write(1, 2, 0, "swap", "k", "v"),
        '{"by": 1, "number": 2, "done": 0, "do": "swap", "key": "k", "expected": null, "value": "v"}',
    ),
    (
        Write(1, 2, 0, "add", "k", amount=3),
        '{"by": 1, "number": 2, "done": 0, "do": "add", "key": "k", "amount": 3}',
    ),
    (Write(1, 2, 0, "delete", "k"), '{"by": 1, "number": 2, "done": 0, "do": "delete", "key": "k"}'),
    (Write(1, 2, 0, LEFT), '{"by": 1, "number": 2, "done": 0, "do": "left the board"}'),
    (Write(-1, 0, 0, NOTHING), '{"do": "nothing", "by": -1, "number": 0, "done": 0}'),
]
MESSAGES: list[tuple[Fields, str]] = [
    (TakenForDead(), '{"kind": "gone"}'),
    (Hello("h:1"), '{"kind": "hello", "address": "h:1"}'),
    (
        Proposal(Write(1, 2, 0, "delete", "k")),
        '{"kind": "propose", "write": {"by": 1, "number": 2, "done": 0, "do": "delete", "key": "k"}}',
    ),
    (ReadRequest(3), '{"kind": "read", "number": 3}'),
    (ReadIndex(3, 7), '{"kind": "index", "number": 3, "index": 7}'),
    (VoteRequest("poll", 2, [1, 7]), '{"kind": "poll", "term": 2, "place": [1, 7]}'),
    (Vote("voted", 2, True, 2), '{"kind": "voted", "term": 2, "yes": true, "now_in": 2}'),
    (
        Append(2, 0.5, 6, 0.0, 0.25, 7, 1, [(2, Write(-1, 0, 0, NOTHING))], 5),
        '{"kind": "append", "term": 2, "stamp": 0.5, "applied": 6, "age": 0.0, "unheard": 0.25, "behind": 7, '
        '"behind_term": 1, "entries": [[2, {"do": "nothing", "by": -1, "number": 0, "done": 0}]], "all_have": 5}',
    ),
    (
        AppliedState(2, 0.5, 6, 0.0, 0.25, {"size": 3}, 1),
        '{"kind": "whole", "term": 2, "stamp": 0.5, "applied": 6, "age": 0.0, "unheard": 0.25, "state": {"size": 3}, '
        '"applied_term": 1}',
    ),
    (
        Acknowledgement(2, False, 7, 0.5, 6),
        '{"kind": "acked", "term": 2, "yes": false, "number": 7, "stamp": 0.5, "applied": 6}',
    ),
]
CLOCKS: list[tuple[Fields, str]] = [
    (ClockQuestion(0.5), '{"kind": "clock asked", "sent": 0.5}'),
    (ClockAnswer(0.5, 1.5, 2.5), '{"kind": "clock answered", "sent": 0.5, "came": 1.5, "went": 2.5}'),
]


@pytest.mark.parametrize(("fields", "text"), [*WRITES, *MESSAGES, *CLOCKS])
def test_headers_are_read_back_from_their_json(fields: Fields, text: str) -> None:
    assert json.dumps(fields.header()) == text
    assert type(fields).read(json.loads(text)) == fields


@pytest.mark.parametrize(("message", "text"), MESSAGES)
def test_the_kind_of_a_message_names_its_class(message: Fields, text: str) -> None:
    assert read(json.loads(text)) == message
