"""The headers of questions to the worker that reads for all, and of its answers, as they are on the connections."""

from __future__ import annotations

import json

import pytest

from quorate.core.contracts import Done, Message
from quorate.core.errors import BadFile
from quorate.core.fields import Fields
from quorate.data.files.dataset import Answer, Question

MESSAGES: list[tuple[Fields, str]] = [
    (Question(3, [7, 8]), '{"sequence": 3, "numbers": [7, 8]}'),
    (Answer([{"plain": 1}]), '{"examples": [{"plain": 1}]}'),
    (Answer(error="no such file"), '{"error": "no such file"}'),
]


@pytest.mark.parametrize(("message", "text"), MESSAGES, ids=[text for _, text in MESSAGES])
def test_the_keys_are_those_of_earlier_versions(message: Fields, text: str) -> None:
    assert json.dumps(message.header()) == text
    assert type(message).read(json.loads(text)) == message


def test_an_error_is_raised_where_the_answer_is_taken() -> None:
    with pytest.raises(BadFile, match="no such file"):
        Answer.take(Done((2, Message(header=Answer(error="no such file").header()))))
