"""The headers of messages between neighbours, and of requests, as they are on the wire."""

from __future__ import annotations

import json

import pytest

from quorate.core.fields import Fields
from quorate.gossip.exchanges import Away, Contribution
from quorate.gossip.neighbours import AtPause, QuestionFields
from quorate.gossip.requests import Answered, Asked, Failed, Registered

HEADERS: list[tuple[Fields, str]] = [
    (Contribution(4, [0.5], 0.25, 1.5), '{"round": 4, "scalars": [0.5], "weight": 0.25, "before": 1.5}'),
    (
        Contribution(4, [], 0.25, 1.5, is_written=True),
        '{"round": 4, "scalars": [], "weight": 0.25, "before": 1.5, "written": true}',
    ),
    (Away("pauses", 4, 1.5), '{"away": "pauses", "round": 4, "before": 1.5}'),
    (AtPause(4, 1.0, [], [2]), '{"round": 4, "mass": 1.0, "balances": [], "dead": [2]}'),
    (
        QuestionFields("model", 3, {"step": 1}, 2),
        '{"name": "model", "sequence": 3, "header": {"step": 1}, "pauses": 2}',
    ),
    (Registered("add"), '{"served": "add"}'),
    (Asked("add", 3, "[1]"), '{"name": "add", "number": 3, "said": "[1]"}'),
    (Answered("[1]"), '{"said": "[1]"}'),
    (Failed("raised", "ValueError: x"), '{"failed": {"kind": "raised", "why": "ValueError: x"}}'),
]


@pytest.mark.parametrize(("fields", "text"), HEADERS)
def test_headers_are_read_back_from_their_json(fields: Fields, text: str) -> None:
    assert json.dumps(fields.header()) == text
    assert type(fields).read(json.loads(text)) == fields
