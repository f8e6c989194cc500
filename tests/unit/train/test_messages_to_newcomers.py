"""The headers of messages to newcomers."""

from __future__ import annotations

import json

import pytest

from quorate.core.fields import Fields
from quorate.train.joining import Admitted, Invited, Sender

MESSAGES: list[tuple[Fields, str]] = [
    (Sender(2), '{"source": 2}'),
    (
        Admitted(1, {"updates": 3}, 7, [0, 1, 2], [4, 1], [True, False]),
        '{"source": 1, "replica": {"updates": 3}, "calls": 7, "members": [0, 1, 2], "stands": [4, 1], '
        '"flags": [true, false]}',
    ),
    (
        Invited({"updates": 3}, 2, 7, {"pauses": 2}, 1),
        '{"replica": {"updates": 3}, "stretch": 2, "calls": 7, "training": {"pauses": 2}, "tensors": 1}',
    ),
]


@pytest.mark.parametrize(("message", "text"), MESSAGES)
def test_a_message_is_read_back_from_its_json(message: Fields, text: str) -> None:
    assert json.dumps(message.header()) == text
    assert type(message).read(json.loads(text)) == message
