"""The headers of messages between workers and servers, as they are on the wire."""

from __future__ import annotations

import json

import pytest

from quorate.core.fields import Fields
from quorate.servers.messages import (
    Again,
    AnswerFields,
    Attempt,
    Failed,
    Invitation,
    PartFields,
    PartsMessage,
    PushMessage,
    Signal,
    Wanted,
)
from quorate.servers.order import Decision, Taken
from quorate.servers.succession import Announcement, Decided, NumberedDecision, Succeeds

DECISION = NumberedDecision(7, (2,), 1, Decision(3, (Taken(0, 1, 0.5, 2),), readers=((0, 1),), joined=((4, 9),)))
DECISION_JSON = (
    '{"index": 7, "dead": [2], "stretch": 1, "one": {"version": 3, "taken": '
    '[{"source": 0, "number": 1, "factor": 0.5, "staleness": 2}], "rate": 1.0, "dropped": [], "readers": [[0, 1]], '
    '"options_of": [-1, 0], "is_last": false, "there": [], "ended": [], "repeats": false, "joined": [[4, 9]]}}'
)
PART, PART_JSON = PartFields(1, 2, [], 0), '{"part": 1, "numbers": 2, "states": [], "kept": 0}'
LAST_PART = PartFields(1, 2, ["x"], 1, options=[], beside={})
HEADERS: list[tuple[Fields, str]] = [
    (Signal("has read", 2), '{"kind": "has read", "stretch": 2}'),
    (Attempt("joins", 2, 1), '{"kind": "joins", "stretch": 2, "attempt": 1}'),
    (Again(2, 5, [3]), '{"kind": "again", "stretch": 2, "number": 5, "dead": [3]}'),
    (
        PushMessage(2, 6, True, 1, [{"lr": 0.5}], 5, 4, 3, True, False, [[0]]),
        '{"kind": "push", "stretch": 2, "draw": 6, "reads": true, "count": 1, "options": [{"lr": 0.5}], "number": 5, '
        '"version": 4, "has read": 3, "has gradient": true, "has edit": false, "unused": [[0]], '
        '"weight": 1.0, "has row edit": false}',
    ),
    (
        PartsMessage(2, "digest", False, [PART], {"name": "ssp"}),
        f'{{"kind": "part", "stretch": 2, "layout": "digest", "centre": false, "parts": [{PART_JSON}], '
        '"call": {"name": "ssp"}}',
    ),
    (LAST_PART, '{"part": 1, "numbers": 2, "states": ["x"], "kept": 1, "options": [], "beside": {}}'),
    (
        AnswerFields(7, 3, [0, 1], [PART], 2, True, 5, None, 9),
        f'{{"index": 7, "version": 3, "there": [0, 1], "parts": [{PART_JSON}], "contributors": 2, "is whole": true, '
        '"number": 5, "staleness": null, "clock": 9}',
    ),
    (Wanted(False), '{"wanted": false}'),
    (Failed("ValueError: x"), '{"failed": "ValueError: x"}'),
    (Invitation(3), '{"stretch": 3}'),
    (Announcement(DECISION), f'{{"kind": "decision", "told": {DECISION_JSON}}}'),
    (Succeeds(7, [2]), '{"kind": "succeeds", "index": 7, "dead": [2]}'),
    (Decided(8, [DECISION]), f'{{"kind": "decided", "index": 8, "told": [{DECISION_JSON}]}}'),
]


@pytest.mark.parametrize(("fields", "text"), HEADERS)
def test_headers_are_read_back_from_their_json(fields: Fields, text: str) -> None:
    assert json.dumps(fields.header()) == text
    assert type(fields).read(json.loads(text)) == fields
